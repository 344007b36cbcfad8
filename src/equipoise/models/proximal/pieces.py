"""z = T(z, c_1, …, c_L, W_1, …, W_L): the equation of an OptEq model, and what its constructors need."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ...checks import within
from ...differentiate import Equation, Method
from ...solve import Activation, Stop
from ...solve.autocast import compute_dtype
from ...solve.problem import Layout
from ...solve.solution import Unsolvable
from ..draws import Draws
from ..norms import spectral_norm
from .activations import KNOWN, monotone_activation
from .properties import Property, as_property


class ProximalEquation(Equation):
    """z = T(z, c_1, …, c_L, W_1, …, W_L): injections, batch-first, then weights."""

    def __init__(
        self,
        T: Callable[[Tensor, Sequence[Tensor], Sequence[Tensor]], Tensor],
        injections: Sequence[Tensor],
        weights: Sequence[Tensor],
        method: Method,
        start: Tensor,
    ) -> None:
        self.T, self.method, self.batched = T, method, len(injections)
        self.tensors, self.start, self.layout = (*injections, *weights), start, Layout.of(start)

    def __call__(self, z: Tensor, *tensors: Tensor) -> Tensor:
        return self.T(z, tensors[: self.batched], tensors[self.batched :])

    def name(self, index: int) -> str:
        """What the user calls tensor `index`."""
        kind, layer = ("injection", index) if index < self.batched else ("weight", index - self.batched)
        return f"{kind} of layer {layer + 1}"


class Skip:
    """f(z) = α target(z) + (1 − α) z for every layer, α ∈ (0, 1]; a property may follow the last one."""

    _regulariser: Property | None
    _activation: str | Activation

    @property
    def alpha(self) -> float:
        """α, the share of a layer in a step."""
        return self._alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        within("alpha", alpha, "(0, 1]")
        if 1 - alpha == 1:
            raise ValueError(f"alpha must be large enough for 1 − α to differ from 1. Got {alpha} instead.")
        self._alpha = float(alpha)

    @property
    def regulariser(self) -> Property | None:
        """T_R behind the layers, if there is one."""
        return self._regulariser

    @regulariser.setter
    def regulariser(self, regulariser: Property | Mapping[str, Any] | None) -> None:
        found = as_property(regulariser)
        if hasattr(self, "_regulariser"):
            del self._regulariser  # or torch would store a module elsewhere and still find the old value
        self._regulariser = found

    @property
    def activation(self) -> Activation:
        """σ."""
        return KNOWN[self._activation] if isinstance(self._activation, str) else self._activation

    def set_activation(self, which: str | Activation) -> Activation:
        """Take σ, by its name where it has a known one, so that copies and files need no function."""
        chosen = monotone_activation(which)
        self._activation = next((n for n, a in KNOWN.items() if a == chosen), chosen)
        return chosen

    @property
    def share(self) -> float:
        """1 if whole steps are solved; α if T itself is solved, because a property follows the layers."""
        return 1.0 if self.regulariser is None else self.alpha

    def skip_config(self) -> dict[str, Any]:
        """What a file keeps of α, σ and the property."""
        name = self._activation if isinstance(self._activation, str) else self._activation.name
        behind = {} if self.regulariser is None else {"regulariser": self.regulariser.config()}
        return {"alpha": self.alpha, "activation": name, **behind}


def pace(alpha: float, layers: int) -> float:
    """s = 1 − (1 − α)^L: the part of the way to the targets of L layers that one step of T goes."""
    return -math.expm1(layers * math.log1p(-alpha)) if alpha < 1 else 1.0


def tightened(stop: Stop, alpha: float, pace: float, weight: Tensor) -> Stop:
    """The tolerance of T itself, whose step goes only the part `pace` of the way: smaller by that factor.

    Raise Unsolvable if products with `weight`, in its dtype, cannot reach it.
    """
    if pace == 1:
        return stop
    dtype = compute_dtype(weight)
    asked, reach = stop.resolve(dtype), Stop.reach(dtype)
    assert asked.rtol is not None
    if asked.rtol >= reach > pace * asked.rtol:
        raise Unsolvable(
            f"rtol must be at least {reach / pace:.1e} in {dtype} with α = {alpha:g}: a step leads "
            f"{pace:.1e} of the way. Got {asked.rtol:g}: ask for less, or use float64."
        )
    return replace(asked, rtol=pace * asked.rtol, atol=None if asked.atol is None else pace * asked.atol)


def draw_layer(
    n: int, m: int, d: int, size: float, make: Draws
) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
    """W Gaussian with ‖W‖ = size, U_ij ~ N(0, 1/d), b = 0."""
    W, U = (make.normal(n, k) for k in (m, d))
    return nn.Parameter(W * (size / spectral_norm(W))), nn.Parameter(U / d**0.5), nn.Parameter(make.zeros(n))


def draw_readout(m: int, k: int, make: Draws) -> nn.Parameter:
    """V_ij ~ N(0, 1/m), (m,) or (m, k)."""
    return nn.Parameter(make.normal(*((m,) if k == 1 else (m, k))) / m**0.5)


class Cell(nn.Module):
    """(z, x) ↦ T(z, x): the map of a model as a cell of its own, which shares the parameters."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.W, self.U, self.b = (
            nn.ParameterList(getattr(layer, name) for layer in model.blocks) for name in ("W", "U", "b")
        )
        self.feature_map = model.feature_map
        self.map, self.effective = model.T, model.effective

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """T(z, x), (N, m)."""
        x = x if self.feature_map is None else self.feature_map(x)
        injections = [x @ U.T + b for U, b in zip(self.U, self.b, strict=True)]
        return self.map(z, injections, self.effective(list(self.W)))
