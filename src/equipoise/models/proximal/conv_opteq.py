"""z = f_L∘…∘f_1(z),  f_l(z) = α W_lᵀ⋆σ(W_l⋆z + U_l⋆g(x) + b_l) + (1 − α) z: deep OptEq of images [xie2021].

`W ⋆` is a convolution and `Wᵀ⋆` its transpose, so that each f_l is a proximal map where ‖W_l‖ ≤ 1, the norm
of the convolution as a linear map of images. That norm is bounded soundly, by the symbol on an FFT grid
(`linalg.conv_norm_upper`); the norm of the reshaped kernel is far below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...checks import within
from ...differentiate import Implicit
from ...differentiate.method import Solvers
from ...linalg import conv_norm_upper
from ...solve import Activation, Anderson, Picard, Stop
from ..checks import all_counts, counts, odd
from ..images.model import ImageModel
from ..images.parts import Extractor, Maker, added, convolved, head_for, reduced, transposed_kernel
from .pieces import Skip, pace, tightened
from .properties import Property

_BOUNDS = ": it bounds ‖W_l‖"


class ConvLayer(nn.Module):
    """f(z) = α Wᵀ⋆σ(W⋆z + c) + (1 − α) z,  c = U⋆g(x) + b.

    W (n, m, k, k), U (n, F, r, r), b (n,): m channels of the state, n hidden ones, F of the features.
    """

    def __init__(
        self,
        state: tuple[int, int, int],
        hidden: int,
        features: int,
        kernel: int,
        reach: int,
        stride: int,
        norm: float,
        make: Maker,
    ) -> None:
        super().__init__()
        m = state[0]
        self.size, self.stride, self.padding, self.reach = state[1:], stride, kernel // 2, reach
        self.W = nn.Parameter(make.normal(hidden, m, kernel, kernel, std=(m * kernel**2) ** -0.5))
        self.U = nn.Parameter(
            make.normal(hidden, features, reach, reach, std=(2 / (features * reach**2)) ** 0.5)
        )
        self.b = nn.Parameter(make.zeros(hidden))
        with torch.no_grad():
            self.W.mul_(norm / self.norm_upper())

    def injection(self, g: Tensor) -> Tensor:
        """c = U⋆g(x) + b, (N, n, h, w)."""
        return convolved(g, self.U, self.b, self.stride, self.reach // 2)

    def transposed(self) -> Tensor:
        """The kernel of Wᵀ⋆, (m, n, k, k) at stride 1, where it is a convolution; else W itself."""
        return self.W if self.stride > 1 else transposed_kernel(self.W)

    def norm_upper(self) -> float:
        """≥ ‖W‖ as a map of images of the state's size; inf if W is not finite."""
        return conv_norm_upper(self.W, self.size, self.stride, self.padding)

    @property
    def lost(self) -> tuple[int, int]:
        """Rows and columns beyond the last stride, the `output_padding` of the transposed convolution."""
        (h, w), (i, j) = self.size, reduced(self.size, self.stride)
        return h - 1 - (i - 1) * self.stride, w - 1 - (j - 1) * self.stride


@dataclass(frozen=True)
class _Geometry:
    stride: int
    padding: int
    lost: tuple[int, int]


def _compose(
    alpha: float,
    activation: Activation,
    geometry: tuple[_Geometry, ...],
    regulariser: Property | None,
    z: Tensor | None,
    *tensors: Tensor,
) -> Tensor:
    """T_R∘f_L∘…∘f_1(z); `tensors` are c_1 … c_L, W_1 … W_L, Wᵀ_1 … Wᵀ_L (`ConvLayer.transposed`).

    None stands for z = 0, which needs no convolution.
    """
    for layer in _layers(geometry, tensors):
        f = _target(activation, z, *layer)
        if alpha < 1:
            f = alpha * f if z is None else torch.lerp(z, f.to(z.dtype), alpha)  # which autocast lowers
        z = f
    assert z is not None
    return z if regulariser is None else regulariser(z.flatten(1)).reshape(z.shape)


def _whole_step(
    alpha: float, activation: Activation, geometry: tuple[_Geometry, ...], z: Tensor, *tensors: Tensor
) -> Tensor:
    """z + (T(z) − z)/s, s = 1 − (1 − α)^L: the equilibria of T, as near as its residual says."""
    at, moved = z, torch.zeros_like(z)
    for layer in _layers(geometry, tensors):
        move = _target(activation, at, *layer) - at
        at, moved = torch.add(at, move, alpha=alpha), moved + move
    return torch.add(z, moved, alpha=alpha / pace(alpha, len(geometry)))


def _layers(
    geometry: tuple[_Geometry, ...], tensors: Sequence[Tensor]
) -> Iterator[tuple[_Geometry, Tensor, Tensor, Tensor]]:
    L = len(geometry)
    return zip(geometry, tensors[:L], tensors[L : 2 * L], tensors[2 * L :], strict=True)


def _target(
    activation: Activation, z: Tensor | None, g: _Geometry, c: Tensor, W: Tensor, W_T: Tensor
) -> Tensor:
    """Wᵀ⋆σ(W⋆z + c): the target of a layer, towards which it moves z by the share α."""
    if z is None:
        h = activation(c)
    else:
        h = activation.overwrite(added(convolved(z, W, None, g.stride, g.padding), c))  # (N, n, h, w)
    if g.stride == 1:
        return convolved(h, W_T, padding=g.padding)
    return F.conv_transpose2d(h, W_T, stride=g.stride, padding=g.padding, output_padding=g.lost)


class ConvOptEq(Skip, ImageModel):
    """z = f_L∘…∘f_1(z),  f_l(z) = α W_lᵀ⋆σ(W_l⋆z + U_l⋆g(x) + b_l) + (1 − α) z,  ŷ = head(z).    [xie2021]

    Args:
        inputs: (channels, height, width) of an image.
        state: channels of z, which has the size of g(x).
        hidden: channels n_1 … n_L of the layers.
        outputs: classes.
        alpha: α ∈ (0, 1]; 1 is the plain composition.
        strides: of each layer's convolution (its transpose leads back to z); 1 by default.
        kernel, reach: sizes of the kernels of W_l and of U_l, odd.
        extractor: the strides of the 3×3 convolutions of g, `features` channels each: (1,) keeps the size of
            the image, (2, 2) makes z a quarter as high and wide.
        activation: monotone and 1-Lipschitz.
        regulariser: a property of the state appended as a layer T_R, such as `L1(0.1)`.
        limit: `project_` keeps ‖W_l‖ ≤ limit ≤ 1. Below 1 every image has exactly one equilibrium.
        norm: ‖W_l‖ at the start.
        task: "classification" (means over a `pool` × `pool` grid, normalised unless `normalise` is False,
            then linear) or "segmentation" (1×1 convolution, bilinear to the size of the image).
        solver, gradient, stop, on_failure: as for `Equilibrium`. By default plain iteration for α = 1, where
            the map contracts fast, then Anderson on the images on which that failed; for α < 1 Anderson with
            a memory of 4.
    """

    settings = (
        *("inputs", "outputs", "kernel", "reach", "features", "limit", "norm", "pool", "normalise"),
        *("task",),
    )
    described = (
        "z = f_L∘…∘f_1(z), f_l(z) = α W_lᵀ⋆{0.activation.name}(W_l⋆z + U_l⋆g(x) + b_l) + (1 − α) z; "
        "z {0.state}, hidden={0.hidden}, alpha={0.alpha:g}, k={0.outputs}"
    )
    plainly_iterated = channels_last = True

    def __init__(
        self,
        inputs: Sequence[int],
        state: int,
        hidden: Sequence[int],
        outputs: int = 10,
        *,
        alpha: float = 1.0,
        strides: Sequence[int] | None = None,
        kernel: int = 3,
        reach: int = 1,
        features: int = 16,
        extractor: Sequence[int] = (1,),
        activation: str | Activation = "relu",
        regulariser: Property | Mapping[str, Any] | None = None,
        limit: float = 0.95,
        norm: float = 0.7,
        pool: int = 4,
        normalise: bool = True,
        task: str = "classification",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
        **how: Any,
    ) -> None:
        super().__init__(inputs, outputs, **how)
        state, features, pool = counts(state=state, features=features, pool=pool)
        kernel, reach = odd(kernel=kernel, reach=reach)
        hidden = all_counts("hidden", hidden)
        strides = all_counts("strides", strides if strides is not None else (1,) * len(hidden))
        if not hidden or len(strides) != len(hidden):
            raise ValueError(
                f"strides must be one for each layer of hidden, and there must be a layer. "
                f"Got {len(strides)} strides for {len(hidden)} layers instead."
            )
        within("limit", limit, "(0, 1]", _BOUNDS)
        if not 0 < norm <= limit:
            raise ValueError(f"norm must lie in (0, limit]: it is ‖W_l‖ at the start. Got {norm} instead.")
        if (chosen := self.set_activation(activation)).lipschitz > 1:
            raise ValueError(f"activation must be 1-Lipschitz. Got {chosen.name} instead.")
        self.regulariser = regulariser
        make = Maker(dtype, device, generator)
        self.alpha, self.limit, self.norm = alpha, float(limit), float(norm)
        self.kernel, self.reach, self.pool = kernel, reach, pool
        self.normalise, self.task = normalise, task
        self.extractor = Extractor(self.inputs, features, all_counts("extractor", extractor), make)
        self.features, self.state = self.extractor.channels, (state, *self.extractor.size)
        self.layers: Sequence[ConvLayer] = nn.ModuleList(  # type: ignore[assignment]
            ConvLayer(self.state, n, self.extractor.channels, kernel, reach, s, norm, make)
            for n, s in zip(hidden, strides, strict=True)
        )
        self.head = head_for(task, state, self.extractor.size, self.inputs, outputs, pool, make, normalise)
        self.project_()

    @property
    def hidden(self) -> list[int]:
        """Channels n_1 … n_L of the layers."""
        return [len(layer.b) for layer in self.layers]

    @property
    def cell(self) -> Callable[..., Tensor]:  # type: ignore[override]
        """T(z, c_1, …, c_L, W_1, …, W_L, Wᵀ_1, …, Wᵀ_L)."""
        return partial(_compose, self.alpha, self.activation, self._geometry, self.regulariser)

    @property
    def solved_cell(self) -> Callable[..., Tensor]:
        """z + (T(z) − z)/s; with a property, T itself, solved to a tolerance smaller by the factor s."""
        if self.alpha == 1 or not self._whole_steps:
            return self.cell
        return partial(_whole_step, self.alpha, self.activation, self._geometry)

    def cell_stop(self, stop: Stop) -> Stop:
        """The tolerance of T itself, a step of which goes only part of the way."""
        s = pace(self.alpha, len(self.layers))
        return tightened(stop, self.alpha, s, self.layers[0].W)

    def solved_stop(self, stop: Stop) -> Stop:
        """`stop` itself for whole steps."""
        return stop if self._whole_steps else self.cell_stop(stop)

    @property
    def _whole_steps(self) -> bool:
        return self.regulariser is None and type(self).cell is ConvOptEq.cell

    @property
    def _geometry(self) -> tuple[_Geometry, ...]:
        return tuple(_Geometry(layer.stride, layer.padding, layer.lost) for layer in self.layers)

    def default_solver_chain(self) -> Solvers:
        """Plain iteration first where T contracts fast."""
        return (Picard(), Anderson(memory=4)) if self.alpha == 1 else Anderson(memory=4)

    def injection(self, x: Tensor) -> tuple[Tensor, ...]:
        """c_l = U_l⋆g(x) + b_l of every layer."""
        g = self.extractor(x)
        return tuple(layer.injection(g) for layer in self.layers)

    def shared(self) -> tuple[Tensor, ...]:
        """The kernels of every W_l⋆, then those of every W_lᵀ⋆."""
        return (*(layer.W for layer in self.layers), *(layer.transposed() for layer in self.layers))

    def default_start(self, c: Sequence[Tensor]) -> Tensor:
        """T(0), which is one step ahead of zero and costs less than a step."""
        return self.cell(None, *c, *self.shared())

    def default_gradient(self) -> Implicit:
        """The adjoint by plain iteration first, as the forward pass."""
        return Implicit((Picard(), Anderson(memory=4))) if self.alpha == 1 else Implicit()

    # -- bounded layers ----------------------------------------------------------------------------------

    def norms(self) -> tuple[float, ...]:
        """Sound upper bounds of ‖W_l‖."""
        return tuple(layer.norm_upper() for layer in self.layers)

    def layer_sizes(self) -> list[tuple[float, float]]:
        """For each layer a sound bound of ‖W_l‖, and 1, the norm up to which it is a proximal map."""
        return [(n, 1.0) for n in self.norms()]

    @torch.no_grad()
    def project_(self, bound: float | None = None) -> Self:
        """Scale every W_l that is too large until ‖W_l‖ ≤ limit, proved. Returns the model.

        A `bound` below the limit of the model takes its place. Call this after each step of an optimiser, or
        let `keep_projected` do it.
        """
        for name, value in (("bound", bound), ("limit", self.limit)):
            within(name, 1.0 if value is None else value, "(0, 1]", _BOUNDS)
        limit = self.limit if bound is None else min(self.limit, bound)
        for i, (layer, size) in enumerate(zip(self.layers, self.norms(), strict=True), 1):
            if "W" not in layer._parameters:
                raise ValueError(
                    f"W_{i} must be a parameter of its own to be projected. Got one that is computed from "
                    f"others (a parametrisation, a pruning, a spectral norm): remove that first."
                )
            if not size < math.inf:
                raise ValueError(
                    f"W_{i} must be finite. Got NaN or infinity instead: training diverged; use a smaller "
                    f"learning rate, and project after every step."
                )
            while size > limit:
                layer.W.mul_(limit / size * (1 - 2**-20))  # rounding must not lift it above the limit
                size = layer.norm_upper()
        return self

    def keep_projected(self, optimiser: torch.optim.Optimizer, every: int = 1) -> None:
        """Project after every `every`-th step of `optimiser`; between projections nothing is proved."""
        (every,) = counts(every=every)
        taken = 0

        def after(*_: Any) -> None:
            nonlocal taken
            taken += 1
            if taken % every == 0:
                self.project_()

        optimiser.register_step_post_hook(after)

    # -- housekeeping ------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """The settings, the layers, α, σ and the property."""
        strides = [layer.stride for layer in self.layers]
        own = {"state": self.state[0], "hidden": self.hidden, "strides": strides, **self.skip_config()}
        return super().config() | own
