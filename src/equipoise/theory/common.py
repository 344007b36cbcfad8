"""What the papers' theorems share: obstacles, hypotheses and the frame of a certificate."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from sys import float_info
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..linalg import Interval
from ..models.methods import returned
from ..models.proximal.activations import KNOWN
from .certificate import EXACT_GRADIENTS, Certificate, Kind
from .claim import Claim, Claims
from .instance import Instance
from .register import family_in

HALF_SQUARE = "the loss is ½‖ŷ − y‖² summed over the samples"
FULL_BATCH = "every parameter moves by full-batch gradient steps of one step size"
FULL_FLOW = "every parameter follows the gradient flow of the full batch"
KINKS = "the flow meets the kinks of relu at a null set of times, so that the chain rule holds along it"

FEATURES = "the features φ(X) are those computed in float64, and stay what they are"

SAME = {"printed": "the conditions are the same"}  # where printed=True finds no difference


class PaperTheorem(ABC):
    """A theorem of a paper about its ReLU family with one output, trained with one step size or by a flow.

    `obstacle` says what else it needs of an instance, and `argued` states its claims from σ_min(Z(0)) on.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    needs_targets: ClassVar[bool] = True
    contracting: ClassVar[bool] = True  # whether the proof rests on a map that contracts

    def prove(self, instance: Instance) -> Certificate:
        """The verdict on an instance."""
        frame: dict[str, Any] = {"kind": self.kind, "options": self.options()}
        if obstacle := obstacle_of(instance, self.name) or self.obstacle(instance):
            return certificate(self.name, instance, obstacle=obstacle, **frame)
        claims = Claims()
        if not well_posed(claims, instance, self.contracting):
            return certificate(self.name, instance, claims, **frame)
        least = independent_rows(claims, instance).left
        found = self.argued(claims, instance, least)
        return certificate(self.name, instance, claims, **found, **frame)

    def obstacle(self, instance: Instance) -> str:
        """Why the theorem cannot speak of an instance of its family; empty when it can."""
        return ""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """The constants as they were given, to certify once more."""

    @abstractmethod
    def argued(self, claims: Claims, instance: Instance, least: Interval) -> dict[str, Any]:
        """State the claims from σ_min(Z(0)) on, and say what a certificate holds if they are true."""


def along_the_flow(exponent: float) -> dict[str, Any]:
    """What a theorem on gradient flow promises."""
    words = f"the loss falls at least as exp(−{exponent:.3g} t), and equilibria stay unique."
    return {"exponent": exponent, "promise": words}


def obstacle_of(instance: Instance, theorem: str, scalar: bool = True) -> str:
    """Why a theorem of a paper, by its name, cannot speak of the instance at all; empty when it can."""
    paper = theorem.partition(".")[0]
    if instance.facts.paper != paper:
        return (
            f"the theorem is about {family_in(paper)}. Got {type(instance.model).__name__} instead: "
            f"'two_timescale' and 'safeguarded' speak of every family."
        )
    if scalar and instance.model.outputs != 1:
        return (
            f"the theorem is about one output. Got {instance.model.outputs} instead: 'two_timescale' and "
            f"'safeguarded' allow any number."
        )
    return instance.obstacle


def trained_features(model: object) -> str:
    """Why no theorem speaks of a feature map that training would change; empty if there is none."""
    features = getattr(model, "feature_map", None)
    if not isinstance(features, nn.Module) or not any(p.requires_grad for p in features.parameters()):
        return ""
    return (
        "the theorem is about features that are not trained. Got a feature_map with trained parameters "
        "instead: feature_map.requires_grad_(False) freezes it."
    )


def well_posed(claims: Claims, instance: Instance, contracting: bool = False) -> bool:
    """Claim one equilibrium for every input, by contraction if the proof needs that; whether it holds."""
    at = instance.enclosure
    needed = (at.contraction,) if contracting and at.contraction is not None else at.unique
    claims.items.extend(needed)
    return all(c.holds for c in needed)


def independent_rows(claims: Claims, instance: Instance) -> Claim:
    """σ_min(Z(0)) > 0: without it every theorem of this kind promises L ≤ L(0) and no more."""
    least = instance.sigma_N
    return claims.need(
        "σ_min(Z) > 0",
        least,
        ">",
        0.0,
        "the equilibria of the samples are linearly independent",
        method=f"{instance.method}, less the error of the equilibria",
        remedy="" if least.lo > 0 else dependence(instance),
    )


def dependence(instance: Instance) -> str:
    """What to change if the equilibria of N samples are not independent."""
    m, N = instance.model.width, instance.N
    if m < N:
        return f"a width of at least {N}, the number of samples, or theorem='safeguarded' with slack"
    slack = "theorem='safeguarded' with slack"
    X = instance.X.reshape(N, -1)
    zero = torch.nonzero(~X.any(dim=1)).flatten().tolist()
    if zero:
        return f"removing row {zero[0]}, which is zero, or {slack}"
    _, first, counts = torch.unique(X, dim=0, return_inverse=True, return_counts=True)
    if bool((counts > 1).any()):
        i, j = torch.nonzero(first == int(counts.argmax())).flatten()[:2].tolist()
        return f"removing one of row {i} and row {j}, which are equal, or {slack}"
    return f"a larger width, removing rows that nearly repeat others, or {slack}"


def step_exists(claims: Claims, label: str, largest: Interval) -> float:
    """The claim that a positive step size is allowed; returns it."""
    claims.need(
        label, largest, ">", float_info.min, "a step size that the theorem allows, and a float holds, exists"
    )
    return max(largest.lo, 0.0)


def certificate(
    theorem: str,
    instance: Instance,
    claims: Claims | None = None,
    *,
    kind: Kind,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Certificate:
    """A certificate with what every training theorem of a ReLU family and one step size states."""
    moves = (FULL_FLOW, KINKS) if kind == "flow" else (FULL_BATCH,)
    return Certificate(
        theorem=theorem,
        claims=tuple(claims.items) if claims else (),
        kind=kind,
        hypotheses=(HALF_SQUARE, *moves, EXACT_GRADIENTS, instance.arithmetic, *instance.facts.rests_on),
        options={k: v for k, v in (options or {}).items() if v is not None},
        tier=instance.tier,
        fingerprint=instance.fingerprint,
        **more,
    )


def relative_movement(instance: Instance, distance: Interval) -> float | None:
    """An upper bound of ‖Z − Z(0)‖_F as a share of ‖Z(0)‖_F; None if there is none."""
    share = (distance / instance.equilibria.frobenius).hi
    return share if math.isfinite(share) else None


# -- networks of layers --------------------------------------------------------------------------------------


def declared(model: Any) -> list[str]:
    """Hypotheses about parts of the user's own, and the remark that a model does not return equilibria."""
    activation, regulariser = getattr(model, "activation", None), getattr(model, "regulariser", None)
    found = []
    if activation is not None and activation not in KNOWN.values():
        found.append(f"{activation.name} is monotone with slopes ≤ {activation.lipschitz:g}, as declared")
    if regulariser is not None and regulariser.nonexpansive and regulariser.declared:
        found.append(regulariser.declared)
    if instead := returned(model.method):
        found.append(f"what is said is of equilibria: the model itself returns {instead}")
    return found


def unknown_layer(layers: Iterable[nn.Module], *known: type[nn.Module]) -> str:
    """Why a layer of an unknown class, which may compute anything, stands in the way; empty if none does."""
    for i, layer in enumerate(layers):
        if type(layer) not in known:
            return (
                f"layers[{i}] is of the class {type(layer).__name__}, which may compute otherwise than "
                f"{known[-1].__name__}, which is known: certify a model of such layers with its parameters "
                f"(load_state_dict)."
            )
    return ""


def not_finite(model: nn.Module, X: Tensor) -> str:
    """The data or the weight that is NaN or infinite; empty if none is."""
    for name, value in (("X", X), *model.state_dict().items()):
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            bad = torch.nonzero(~torch.isfinite(value))
            where = f" in row {int(bad[0, 0])}" if name == "X" else ""
            return f"{name} holds NaN or infinity{where}: nothing can be said of it."
    return ""
