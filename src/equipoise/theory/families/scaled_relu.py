"""z = relu(γ Aᵀ z + relu(Wᵀ x)),  ŷ = z b    [gao2022].

The effective weight is γAᵀ, each entry rounded once. The equilibrium is unique where γ‖A‖ < 1 or
λ_max(sym(γA)) < 1. In a ball ‖γA − γA(0)‖ ≤ δ, R = 1/(1/R(0) − δ), K = γ²S̄² + ‖X‖², β = γ²S̄.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...linalg import Interval, frobenius, gamma
from ...linalg.ball import balls, python_flint
from ...models.affine import ScaledReLU
from ...models.norms import spectral_norm
from ..enclosure import product_rounding
from ..geometry import Contracting, input_norm, inverse_gap
from ..instance import Instance
from ..lipschitz import AffineBounds
from ..register import facts_of
from ..rigorous import relu_of_balls
from ..verify.network import UnitNetwork
from .contracting import ContractingFacts, Singular


@facts_of(ScaledReLU)
class ScaledReLUFacts(ContractingFacts):
    """What is known of ScaledReLU."""

    family, paper = "ScaledReLU", "gao2022"
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
        """The rounding of one product, which relu does not enlarge."""
        return product_rounding(X, self.model.W).hi

    def in_balls(self, X: Tensor) -> tuple[Any, Any]:
        """γAᵀ and relu(Wᵀx)."""
        W = balls(self.model.A.T) * python_flint().arb(self.model.gamma)
        return W, relu_of_balls(balls(X) * balls(self.model.W))

    def geometry(self, instance: Instance) -> Contracting:
        """The geometry with the coordinate c = γA."""
        g = Interval(float(self.model.gamma))
        return Contracting(q=inverse_gap(instance), g=g, x=input_norm(instance))

    def input_map(self) -> Tensor:
        """Wᵀ: relu(Wᵀx) moves no further than Wᵀx."""
        return self.model.W.T

    def contract(self, to: float) -> tuple[str, dict[str, float]]:
        """γ = to/‖A‖."""
        self.model.gamma = to / spectral_norm(self.model.A)
        return f"gamma = {self.model.gamma:.6g}, so that γ‖A‖ = {to:g}", {"gamma": self.model.gamma}

    def units(self, known: AffineBounds) -> UnitNetwork:
        """The units y = relu(Wᵀx) of the injection are stacked below those of z = relu(γAᵀz + y).

        With injections b of both, ‖z − z'‖ ≤ R(‖b₁ − b₁'‖ + ‖b₂ − b₂'‖), so that 1 + √2R bounds the stack.
        """
        net, m = known.units(self.model.W.T), self.model.width
        zero, eye = torch.zeros(m, m, dtype=torch.float64), torch.eye(m, dtype=torch.float64)
        return replace(
            net,
            weight=torch.cat([torch.cat([net.weight, eye], dim=1), torch.cat([zero, zero], dim=1)]),
            inputs=torch.cat([torch.zeros_like(net.inputs), net.inputs]),
            offset=torch.zeros(2 * m, dtype=torch.float64),
            readout=torch.cat([net.readout, torch.zeros_like(net.readout)], dim=1),
            resolvent=(1 + Interval(2.0).sqrt() * net.resolvent).hi,
        )
