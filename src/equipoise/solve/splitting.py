"""0 ∈ (I − W) z − b + ∂φ(z), σ = prox_φ: the equilibria of z = σ(W z + b), as zeros of a sum."""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from .activation import ACTIVATIONS
from .problem import AffineMap, Map
from .solver import Solver


@dataclass(frozen=True)
class Splitting(Solver):
    """What the splitting solvers share: the constants of I − W, and a step size that follows from them.

    μ = λ_min(sym(I − W)) is the margin and ℓ = ‖I − W‖ the Lipschitz constant. They are computed once for
    each W, as far as they are needed. If you know them, give `margin` (a lower bound of μ) or `lipschitz` (an
    upper bound of ℓ).
    """

    margin: float | None = None
    lipschitz: float | None = None
    step_size: float | None = None
    uses_value = False
    smooth = True
    affine_only = True

    def __post_init__(self) -> None:
        for name in ("margin", "lipschitz", "step_size"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be a finite number > 0. Got {value} instead.")
        if self.margin is not None and self.lipschitz is not None and self.margin > self.lipschitz:
            raise ValueError(
                f"margin must be ≤ lipschitz, since λ_min(sym(I − W)) ≤ ‖I − W‖. "
                f"Got {self.margin} and {self.lipschitz} instead."
            )

    def require(self, f: Map) -> None:
        """Raise a TypeError if the activation has no proximal map."""
        self.prox(parts(f))

    def applies(self, f: Map) -> bool:
        """Whether I − W is strongly monotone, so that the splitting converges. It takes an eigenvalue."""
        affine = parts(f)
        return self.margin is not None or affine.margin > _rounding(affine)

    @abstractmethod
    def alpha(self, affine: AffineMap) -> float:
        """The step α on this map."""

    @abstractmethod
    def rate(self, affine: AffineMap) -> float:
        """The factor by which each step reduces the distance to the equilibrium, at least."""

    def margin_of(self, affine: AffineMap) -> float:
        """μ > 0, as given or computed from W; an error if I − W is not strongly monotone."""
        if self.margin is not None:
            return self.margin
        if not affine.margin > _rounding(affine):
            raise self.not_monotone(f"μ = {affine.margin:.3g}")
        return affine.margin

    def not_monotone(self, found: str) -> ValueError:
        """The error for a W that is not strongly monotone, with what was found."""
        return ValueError(
            f"{type(self).__name__} needs a strongly monotone I − W: the margin μ = λ_min(sym(I − W)) must "
            f"be > 0. Got {found} instead; smaller weights or W = (1 − μ)I − AᵀA + B − Bᵀ have one, and "
            f"Anderson or Newton may do without one."
        )

    def prox(self, affine: AffineMap) -> Callable[[Tensor, float], Tensor]:
        """prox_{αφ} of the activation."""
        if affine.activation.prox is None:
            works = sorted(name for name, a in ACTIVATIONS.items() if a.prox is not None)
            raise TypeError(
                f"{type(self).__name__} needs an activation with a proximal map: one of {works}, or an "
                f"Activation(…, prox=…). Got {affine.activation.name!r} instead; "
                f"Anderson and Newton need none."
            )
        return affine.activation.prox


def _rounding(affine: AffineMap) -> float:
    """The error that the margin of W may have, in float64."""
    return len(affine.weight) * sys.float_info.epsilon * (1 + float(affine.weight.norm()))


def parts(f: Map) -> AffineMap:
    """The AffineMap in f; the driver lets no other f come this far."""
    assert f.affine is not None
    return f.affine
