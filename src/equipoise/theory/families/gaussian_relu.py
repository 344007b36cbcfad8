"""z = relu(W z + U x),  ŷ = z a    [ling2023].

W itself is the effective weight, so that nothing but the product U x is rounded. The equilibrium is unique
where ‖W‖ < 1 or λ_max(sym W) < 1. In a ball ‖W − W(0)‖ ≤ δ, R = 1/(1/R(0) − δ), K = S̄² + ‖X‖², β = S̄.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...linalg import Interval
from ...linalg.ball import balls
from ...models.affine import GaussianReLU
from ...models.norms import spectral_norm
from ..enclosure import product_rounding
from ..geometry import Contracting, input_norm, inverse_gap
from ..instance import Instance
from ..lipschitz import AffineBounds
from ..register import facts_of
from ..verify.network import UnitNetwork
from .contracting import ContractingFacts, Singular


@facts_of(GaussianReLU)
class GaussianReLUFacts(ContractingFacts):
    """What is known of GaussianReLU."""

    family, paper = "GaussianReLU", "ling2023"
    remedy = "a smaller W (sigma_w2)"
    linear_injection = True

    def norms(self, of: Singular) -> tuple[Interval, dict[str, Interval]]:
        """‖W‖ itself."""
        norm = of(self.model.W).norm
        return norm, {"W": norm}

    def injection_error(self, X: Tensor) -> float:
        """The rounding of one product."""
        return product_rounding(X, self.model.U.T).hi

    def in_balls(self, X: Tensor) -> tuple[Any, Any]:
        """W as it is stored, and the product."""
        return balls(self.model.W), balls(X) * balls(self.model.U.T)

    def geometry(self, instance: Instance) -> Contracting:
        """The geometry with the coordinate c = W."""
        return Contracting(q=inverse_gap(instance), g=Interval(1.0), x=input_norm(instance))

    def input_map(self) -> Tensor:
        """U."""
        return self.model.U

    def contract(self, to: float) -> tuple[str, dict[str, float]]:
        """W times a factor."""
        factor = to / spectral_norm(self.model.W)
        self.model.W.mul_(factor)
        return f"W multiplied by {factor:.3g}, so that ‖W‖ = {to:g}", {"W": factor}

    def units(self, known: AffineBounds) -> UnitNetwork:
        """The units of the equation as it stands."""
        return known.units(self.model.U)
