"""z = relu(γ Aᵀ z + relu(Wᵀ x)),  ŷ = z b    [gao2022].

The effective weight is γAᵀ, each entry rounded once. The equilibrium is unique where γ‖A‖ < 1 or
λ_max(sym(γA)) < 1. In a ball ‖γA − γA(0)‖ ≤ δ, R = 1/(1/R(0) − δ), K = γ²S̄² + ‖X‖², β = γ²S̄.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...linalg import Interval, frobenius, gamma
from ...linalg.ball import balls, python_flint
from ...models.affine import ScaledReLU
from ...models.norms import spectral_norm
from ..enclosure import product_rounding
from ..geometry import Contracting, input_norm, inverse_gap
from ..instance import Instance
from ..register import facts_of
from ..rigorous import relu_of_balls
from .contracting import ContractingFacts, Singular


@facts_of(ScaledReLU)
class ScaledReLUFacts(ContractingFacts):
    """What is known of ScaledReLU."""

    family = "ScaledReLU"
    condition = "γ‖A‖ < 1"
    remedy = "a smaller γ or A"

    def norms(self, of: Singular) -> tuple[Interval, dict[str, Interval]]:
        """γ‖A‖."""
        size = of(self.model.A).norm
        return abs(Interval(float(self.model.gamma))) * size, {"A": size}

    def weight_error(self, weight: Tensor) -> float:
        """Each entry of γA is rounded once, or is subnormal."""
        return (gamma(2) * frobenius(weight) + Interval(0.0, weight.numel() * 2.0**-1074)).hi

    def injection_error(self, X: Tensor) -> float:
        """Of one product; relu moves nothing further."""
        return product_rounding(X, self.model.W).hi

    def in_balls(self, X: Tensor) -> tuple[Any, Any]:
        """γAᵀ and relu(Wᵀx)."""
        W = balls(self.model.A.T) * python_flint().arb(self.model.gamma)
        return W, relu_of_balls(balls(X) * balls(self.model.W))

    def geometry(self, instance: Instance) -> Contracting:
        """c = γA."""
        g = Interval(float(self.model.gamma))
        return Contracting(q=inverse_gap(instance), g=g, x=input_norm(instance))

    def input_map(self) -> Tensor:
        """Wᵀ: relu(Wᵀx) moves no further than Wᵀx."""
        return self.model.W.T

    def contract(self, to: float) -> tuple[str, dict[str, float]]:
        """γ = to/‖A‖."""
        self.model.gamma = to / spectral_norm(self.model.A)
        return f"gamma = {self.model.gamma:.6g}, so that γ‖A‖ = {to:g}", {"gamma": self.model.gamma}
