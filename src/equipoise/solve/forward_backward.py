"""z ← prox_{αφ}(z − α((I − W) z − b))."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .problem import AffineMap, Map
from .solver import SolverState, shared
from .splitting import Splitting, parts


@dataclass
class ForwardBackwardState(SolverState):
    """The step α, the same for all rows."""

    alpha: float = shared()


@dataclass(frozen=True)
class ForwardBackward(Splitting):
    """z ← prox_{αφ}(z − α((I − W) z − b)): forward along I − W, backward along ∂φ [hieu2022].

    The forward step contracts by ‖I − α(I − W)‖ ≤ √(1 − 2αμ + α²ℓ²), which is below 1 for α
    in (0, 2μ/ℓ²); the proximal map does not expand. The bound is least at α = μ/ℓ², the default, where
    it is √(1 − μ²/ℓ²). It factorises nothing; `PeacemanRachford` takes fewer steps.
    """

    def constants(self, affine: AffineMap) -> tuple[float, float]:
        """μ and ℓ."""
        return self.margin_of(affine), affine.lipschitz if self.lipschitz is None else self.lipschitz

    def alpha(self, affine: AffineMap) -> float:
        """The step α as given, or μ/ℓ²; a ValueError if the given one need not converge."""
        margin, lipschitz = self.constants(affine)
        best = margin / lipschitz**2
        if self.step_size is None:
            return best
        if not self.step_size < 2 * best:
            raise ValueError(
                f"step_size must lie in (0, 2μ/ℓ²) = (0, {2 * best:.4g}) for μ = {margin:.4g} and "
                f"ℓ = {lipschitz:.4g}. Got {self.step_size:.4g} instead; the best is μ/ℓ² = {best:.4g}."
            )
        return self.step_size

    def rate(self, affine: AffineMap) -> float:
        """√(1 − 2αμ + α²ℓ²)."""
        alpha, (margin, lipschitz) = self.alpha(affine), self.constants(affine)
        return math.sqrt(max(0.0, 1 - 2 * alpha * margin + (alpha * lipschitz) ** 2))

    def init(self, f: Map, z: Tensor) -> ForwardBackwardState:
        """The step α of this map."""
        return ForwardBackwardState(self.alpha(parts(f)))

    def step(
        self, f: Map, z: Tensor, fz: Tensor, state: ForwardBackwardState
    ) -> tuple[Tensor, ForwardBackwardState]:
        """One forward and one backward step."""
        affine, alpha = parts(f), state.alpha
        damped = torch.lerp(z, affine.bias, alpha)  # (1 − α) z + α b
        forward = torch.addmm(damped, z, affine.weight.T, alpha=alpha)  # z − α((I − W) z − b)
        return self.prox(affine)(forward, alpha), state
