"""The families of networks that a recipe names: what each takes, what it starts from, and how it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import Recipe

Inputs = int | tuple[int, int, int]  # columns, or (channels, height, width) of an image

LARGEST = 0.9  # the largest ‖W‖ of a Gaussian start, which is about 0.8 for a wide network
SIDE = 8  # longest side of the state of an image: convolutions of stride 2 in front make it no larger


@dataclass(frozen=True)
class Family:
    """What is known of one family, such as the options that it takes."""

    kind: str  # the name of its class in `equipoise.models`
    words: str  # what kind of equilibrium network it is
    equation: str
    sizes: Callable[[Any, Any], dict[str, Any]]  # its keywords, from a resolved recipe and the inputs
    options: Mapping[str, float] = field(default_factory=dict)  # those of its own, with their defaults
    sized: bool = True  # whether it takes a width
    images: bool = False  # whether its inputs are images, and its width counts channels
    affine: bool = False  # whether safeguarded training can train it
    usual: Mapping[str, Any] = field(default_factory=dict)  # its own defaults of training in batches

    def numbers(self, width: int | None, columns: int) -> int:
        """About how many numbers the state of a row has."""
        if not self.sized:
            return columns
        return (width or 1) * (SIDE * SIDE if self.images else 1)


def build(recipe: Recipe, inputs: Inputs, outputs: int) -> Any:
    """The network of a resolved recipe at its start, with a readout of 0 for safeguarded training.

    ‖W‖ of a narrow Gaussian draw may reach 1: it is then scaled down to 0.9.
    """
    import torch

    from .. import models
    from ..models.norms import spectral_norm

    family = recipe.built
    if family.images != isinstance(inputs, tuple):
        wanted = "images, (channels, height, width)" if family.images else "rows, a number of columns"
        raise ValueError(f"{recipe.family} takes {wanted}. Got {inputs} instead.")
    generator = torch.Generator().manual_seed(recipe.seed)
    at = {"outputs": outputs, "dtype": recipe.torch_dtype, "generator": generator}
    model = getattr(models, family.kind)(inputs, **family.sizes(recipe, inputs), **at)
    if recipe.family == DEFAULT and (q := spectral_norm(model.W)) > LARGEST:
        model.W.data.mul_(LARGEST / q)
    if recipe.path == "safeguarded":
        with torch.no_grad():
            model.get_parameter(model.readout_name).zero_()
    return model


def _of_images(recipe: Recipe, inputs: tuple[int, int, int]) -> dict[str, Any]:
    """Convolutions of stride 2 in front, until no side of the state is longer than `SIDE`."""
    strides, side = [1], max(inputs[1:])
    while side > SIDE:
        strides, side = [*strides, 2], (side - 1) // 2 + 1
    return {"features": 2 * (recipe.width or 1), "extractor": tuple(strides), "pool": SIDE}


_IMAGES: dict[str, Any] = {"width": 16, "rate": 3e-3}

DEFAULT = "gaussian-relu"
FAMILIES: dict[str, Family] = {
    "linear": Family(
        "LinearEquilibrium",
        "linear",
        "Z = γ Z Sᵀ + φ(X),  ŷ = Z Bᵀ",
        lambda r, _: {"gamma": r.gamma},
        {"gamma": 0.8},
        sized=False,
        affine=True,
    ),
    "scaled-relu": Family(
        "ScaledReLU",
        "scaled ReLU",
        "Z = relu(γ Z A + relu(X W)),  ŷ = Z b",
        lambda r, _: {"width": r.width, "gamma": r.gamma},
        {"gamma": 0.5},
        affine=True,
    ),
    DEFAULT: Family(
        "GaussianReLU",
        "Gaussian ReLU",
        "Z = relu(Z Wᵀ + X Uᵀ),  ŷ = Z a",
        lambda r, _: {"width": r.width, "sigma_w2": r.sigma_w2},
        {"sigma_w2": 0.08},
        affine=True,
    ),
    "monotone": Family(
        "Monotone",
        "monotone",
        "Z = relu(Z Wᵀ + X Uᵀ),  W = (1−μ)I − AᵀA + B − Bᵀ,  ŷ = Z u",
        lambda r, _: {"width": r.width, "margin": r.margin},
        {"margin": 0.5},
        affine=True,
    ),
    "opteq": Family(
        "OptEq",
        "optimisation-induced",
        "z = Wᵀ relu(W z + U x + b),  ŷ = Vᵀz",
        lambda r, _: {"state": r.width, "hidden": r.width},
    ),
    "deep-opteq": Family(
        "DeepOptEq",
        "deep optimisation-induced",
        "z = f_L∘…∘f_1(z),  f_l(z) = W_lᵀ relu(W_l z + U_l x + b_l),  ŷ = Vᵀz",
        lambda r, _: {"state": r.width, "hidden": [r.width] * r.layers},
        {"layers": 2},
    ),
    "conv-opteq": Family(
        "ConvOptEq",
        "convolutional optimisation-induced",
        "z = f_L∘…∘f_1(z),  f_l(z) = W_lᵀ⋆relu(W_l⋆z + U_l⋆g(x) + b_l),  ŷ = head(z)",
        lambda r, d: {"state": r.width, "hidden": [2 * r.width] * r.layers, **_of_images(r, d)},
        {"layers": 1},
        images=True,
        usual=_IMAGES,
    ),
    "conv-monotone": Family(
        "ConvMonotone",
        "convolutional monotone",
        "z = relu(W⋆z + U⋆g(x) + b),  W = (1−μ)I − Aᵀ⋆A⋆ + B⋆ − Bᵀ⋆,  ŷ = head(z)",
        lambda r, d: {"channels": r.width, "margin": r.margin, "norm": 0.5, **_of_images(r, d)},
        {"margin": 1.0},
        images=True,
        usual=_IMAGES,
    ),
}
OWN = tuple(dict.fromkeys(name for family in FAMILIES.values() for name in family.options))
