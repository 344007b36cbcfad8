"""L(k) ≤ (1 − ηα₀²/4)^k L(0): gradient flow and descent of ScaledReLU [gao2022, Theorems 4.2 and 4.4].

With λ₁ = ‖W(0)‖ + C₁, λ₂ = ‖A(0)‖ + C₂, λ₃ = ‖b(0)‖ + C₃, γ₀ = γλ₂ < 1, α₀ = σ_min(Z(0)),
B = 1 + (γ₀/(1−γ₀))²(λ₁/λ₂)², λ₀ = max{λ₁/C₃, γ₀λ₁λ₃/((1−γ₀)C₂λ₂), λ₃/C₁}:

    flow      (14) α₀² ≥ 4/(1−γ₀) λ₀ ‖X‖_F ‖r(0)‖        (15) α₀³ ≥ 8λ₃B/(1−γ₀)² ‖X‖_F² ‖r(0)‖
    descent   (17) the same with 8                          (18) with 16
              (19) α₀² ≥ 16λ₃²B/(1−γ₀)² ‖X‖_F²             (20) η < min(4/α₀², 2Q₂/Q₁²)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..linalg import Interval, maximum, minimum
from ..models.scaled_relu import ScaledReLU
from .certificate import Certificate
from .claim import Claims
from .common import certificate, independent_rows, obstacle_of, relative_movement, well_posed
from .instance import Instance
from .search import best_constants, log_margin

_REMEDY = "init='section5.1' with a larger beta (γ rescaled with it), or theorem='safeguarded'"


@dataclass(frozen=True)
class _Constants:
    """The constants of [gao2022, §4.1]; in floats for the search, in intervals for the proof."""

    lambda1: Any
    lambda2: Any
    lambda3: Any
    gamma0: Any
    B: Any
    lambda0: Any

    @classmethod
    def of(cls, gamma: Any, W: Any, A: Any, b: Any, C: Sequence[float], top: Any) -> _Constants:
        C1, C2, C3 = C
        l1, l2, l3 = W + C1, A + C2, b + C3
        g0 = gamma * l2
        B = 1 + (g0 / (1 - g0)) ** 2 * (l1 / l2) ** 2
        return cls(l1, l2, l3, g0, B, top(l1 / C3, g0 * l1 * l3 / ((1 - g0) * C2 * l2), l3 / C1))


@dataclass(frozen=True)
class _Theorem:
    """C = (C₁, C₂, C₃), the radii of the ball the weights stay in; chosen for the best margin when None."""

    C: tuple[float, float, float] | None = None

    needs_targets: ClassVar[bool] = True
    name: ClassVar[str]
    ball: ClassVar[int]  # the number in (14) and (17)
    spectrum: ClassVar[int]  # the number in (15) and (18)
    labels: ClassVar[tuple[str, str]]

    def __post_init__(self) -> None:
        if self.C is not None and (len(self.C) != 3 or not all(c > 0 for c in self.C)):
            raise ValueError(f"C must be three numbers > 0. Got {self.C} instead.")

    def prove(self, instance: Instance) -> Certificate:
        options = {"C": None if self.C is None else list(self.C)}
        kind = "flow" if self.name.endswith("flow") else "descent"
        obstacle = obstacle_of(instance, ScaledReLU)
        if obstacle:
            return certificate(self.name, instance, kind=kind, options=options, obstacle=obstacle)  # type: ignore[arg-type]
        claims = Claims()
        well_posed(claims, instance)
        a0 = independent_rows(claims, instance).left
        C = self.C or self._choose(instance)
        model = instance.model
        assert isinstance(model, ScaledReLU)
        k = _Constants.of(
            Interval(model.gamma),
            instance.norm("W"),
            instance.norm("A"),
            instance.norm("b"),
            C,
            maximum,
        )
        X, r = instance.X_frobenius, instance.residual_norm
        claims.need(
            "γ₀ < 1", k.gamma0, "<", 1.0, "the map contracts in the whole ball", remedy="a smaller γ or C₂"
        )
        near, far = self.labels
        claims.need(
            near,
            a0**2,
            ">=",
            self.ball / (1 - k.gamma0) * k.lambda0 * X * r,
            "the weights stay in the ball of radii C₁, C₂, C₃",
            remedy=_REMEDY,
        )
        claims.need(
            far,
            a0**3,
            ">=",
            k.B * self.spectrum * k.lambda3 / (1 - k.gamma0) ** 2 * X**2 * r,
            "σ_min(Z) stays above α₀/2",
            remedy=_REMEDY,
        )
        more = self._finish(claims, instance, k, a0)
        return certificate(
            self.name,
            instance,
            claims,
            kind=kind,  # type: ignore[arg-type]
            options=options,
            movement=relative_movement(instance, a0 / 2),
            constants={
                "C": list(C),
                "alpha0": a0.lo,
                "gamma0": k.gamma0.hi,
                "lambda0": k.lambda0.hi,
                "B": k.B.hi,
            },
            **more,
        )

    def _choose(self, instance: Instance) -> tuple[float, ...]:
        """C with the best worst margin; kept inside γ(‖A‖ + C₂) < 1."""
        model, mid = instance.model, lambda x: (x.lo + x.hi) / 2
        assert isinstance(model, ScaledReLU)
        W, A, b, X, r, a0 = map(
            mid,
            (
                instance.norm("W"),
                instance.norm("A"),
                instance.norm("b"),
                instance.X_frobenius,
                instance.residual_norm,
                instance.sigma_N,
            ),
        )
        room = 1 / model.gamma - A

        def score(C: Sequence[float]) -> float:
            if not 0 < C[1] < room:
                return -1e9 - abs(C[1])
            k = _Constants.of(model.gamma, W, A, b, C, max)
            return log_margin(*self._sides(k, X, r, max(a0, 1e-300)))

        if room <= 0:
            return (1.0, 1.0, 1.0)
        middle = min(1.0, room / 2)
        return best_constants(
            score, [(1.0, middle, 1.0), (max(W, 1e-3), middle, max(b, 0.1)), (10.0, middle, 10.0)]
        )

    def _sides(self, k: _Constants, X: float, r: float, a0: float) -> list[tuple[float, float]]:
        return [
            (a0**2, self.ball / (1 - k.gamma0) * k.lambda0 * X * r),
            (a0**3, k.B * self.spectrum * k.lambda3 / (1 - k.gamma0) ** 2 * X**2 * r),
        ]

    def _finish(self, claims: Claims, instance: Instance, k: _Constants, a0: Interval) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True)
class Flow(_Theorem):
    """L(t) ≤ exp(−α₀² t/2) L(0) under (14), (15)    [gao2022, Theorem 4.2]."""

    name = "gao2022.flow"
    ball, spectrum, labels = 4, 8, ("(14)", "(15)")

    def _finish(self, claims: Claims, instance: Instance, k: _Constants, a0: Interval) -> dict[str, Any]:
        exponent = (a0**2 / 2).lo
        return {
            "exponent": exponent,
            "promise": f"the loss falls at least as exp(−{exponent:.3g} t), and equilibria stay unique.",
        }


@dataclass(frozen=True)
class Descent(_Theorem):
    """L(k) ≤ (1 − ηα₀²/4)^k L(0) under (17)-(20)    [gao2022, Theorem 4.4]."""

    name = "gao2022.descent"
    ball, spectrum, labels = 8, 16, ("(17)", "(18)")

    def _sides(self, k: _Constants, X: float, r: float, a0: float) -> list[tuple[float, float]]:
        return [*super()._sides(k, X, r, a0), (a0**2, k.B * 16 * k.lambda3**2 / (1 - k.gamma0) ** 2 * X**2)]

    def _finish(self, claims: Claims, instance: Instance, k: _Constants, a0: Interval) -> dict[str, Any]:
        X, gap = instance.X_frobenius, (1 - k.gamma0) ** 2
        claims.need(
            "(19)",
            a0**2,
            ">=",
            k.B * 16 * k.lambda3**2 / gap * X**2,
            "a step of descent decreases the loss",
            remedy=_REMEDY,
        )
        Q2 = k.B * k.lambda3**2 * X**2 / gap
        Q1 = (k.B * k.lambda3**2 + k.lambda1**2) * X**2 / gap
        largest = minimum(4 / a0**2, 2 * Q2 / Q1**2)
        claims.need("(20)", largest, ">", 0.0, "a step size that the theorem allows exists")
        exponent = (a0**2 / 4).lo
        return {
            "exponent": exponent,
            "max_step_size": max(largest.lo, 0.0),
            "promise": f"with step size η < {largest.lo:.3g}, L(k) ≤ (1 − {exponent:.3g} η)^k L(0).",
        }
