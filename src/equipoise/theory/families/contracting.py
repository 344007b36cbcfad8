"""‖W‖ < 1, or λ_max(sym W) < 1: what the families that have one equilibrium for either reason share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from ...linalg import Interval, SingularBounds, norm_upper, singular_bounds
from ..claim import Claim
from ..enclosure import SVD, Enclosure, Iteration, contracts, margin_of, reasons, stored_error
from ..facts import AffineFacts
from ..rigorous import METHOD, BallEnclosure, ball_enclosure, margin_in_balls, precision, singular
from ..watch import WeightWatch

Singular = Callable[[Tensor], SingularBounds]


class ContractingFacts(AffineFacts):
    """The facts of a family with R = 1/(1 − ‖W‖) or 1/(1 − λ_max(sym W)), whichever is less.

    A family says how far its computed W and u are from the exact ones, and what W is made of.
    """

    condition: ClassVar[str] = "‖W‖ < 1"
    remedy: ClassVar[str] = "a smaller W"

    def norms(self, of: Singular) -> tuple[Interval, dict[str, Interval]]:
        """‖W(θ)‖, and the norms of parameters that it comes from, by singular values of either tier."""
        return of(self.model.weight()).norm, {}

    def weight_error(self, weight: Tensor) -> float:
        """≥ ‖W − W exact‖_F of the computed weight."""
        return 0.0

    def injection_error(self, X: Tensor) -> float:
        """≥ ‖u − u exact‖_F of the computed injection."""
        return 0.0

    def in_balls(self, X: Tensor) -> tuple[Any, Any]:
        """W and u as matrices of balls."""
        raise self._missing("W and u in ball arithmetic", "in_balls(X)")

    def contraction(self, norm: Interval, method: str) -> Claim:
        """The claim that W contracts."""
        return contracts(norm, method, self.condition, self.remedy)

    def enclosure(self, X: Tensor) -> Enclosure:
        """The enclosure, by an SVD and a Cholesky witness of the computed weight."""
        norm, norms = self.norms(singular_bounds)
        weight = self.model.weight()
        margin = margin_of(weight, self.weight_error(weight))
        return self._enclosed(X, weight, norm, reasons(self.contraction(norm, SVD), margin), norms)

    def enclosure_near(self, X: Tensor, watch: WeightWatch) -> Enclosure:
        """The enclosure, by the drift from a weight whose bounds the watch holds."""
        weight = self.model.weight()
        norm, error = watch.norm(weight), self.weight_error(weight)
        if error:
            norm = norm + Interval.within(error)  # the watch sees the computed weight
        contraction = self.contraction(norm, "a Cholesky witness, and the drift from it")
        margin = (Interval(watch.margin(weight)) - error).lo
        return self._enclosed(X, weight, norm, reasons(contraction, margin), {})

    def enclosure_in_balls(self, X: Tensor) -> BallEnclosure:
        """The enclosure, by residuals of an SVD and of a Cholesky factor in ball arithmetic."""
        norm, norms = self.norms(singular)
        with precision():
            W, u = self.in_balls(X)
        why = reasons(self.contraction(norm, METHOD), margin_in_balls(W, self.model.weight()))
        return ball_enclosure(self.model, X, W, u, norm, norms=norms, **why)

    def iteration(self, weight: Tensor, shift: Tensor) -> Iteration:
        """The plain iteration, which contracts by ‖W‖."""
        error = stored_error(shift) + self.weight_error(weight)
        return Iteration(1.0, Interval(norm_upper(weight)) + error, 1.0, error)

    def _enclosed(
        self, X: Tensor, weight: Tensor, norm: Interval, why: dict[str, Any], norms: dict[str, Interval]
    ) -> Enclosure:
        return Enclosure(
            weight=weight,
            weight_error=self.weight_error(weight),
            weight_norm=norm,
            injection=self.model.injection(X),
            injection_error=self.injection_error(X),
            norms=norms,
            **why,
        )
