"""L(k) ≤ (1 − ηα₀²/4)^k L(0): gradient flow and descent of ScaledReLU [gao2022, Theorems 4.2 and 4.4].

With λ₁ = ‖W(0)‖ + C₁, λ₂ = ‖A(0)‖ + C₂, λ₃ = ‖b(0)‖ + C₃, γ₀ = γλ₂ < 1, α₀ = σ_min(Z(0)),
B = 1 + (γ₀/(1−γ₀))²(λ₁/λ₂)², λ₀ = max{λ₁/C₃, γ₀λ₁λ₃/((1−γ₀)C₂λ₂), λ₃/C₁}:

    flow      (14) α₀² ≥ 4/(1−γ₀) λ₀ ‖X‖_F ‖r(0)‖        (15) α₀³ ≥ 8λ₃B/(1−γ₀)² ‖X‖_F² ‖r(0)‖
    descent   (17) the same with 8                          (18) with 16
              (19) α₀² ≥ 16λ₃²B/(1−γ₀)² ‖X‖_F²             (20) η < min(4/α₀², 2Q₂/Q₁²)

    Q₂ = Bλ₃²‖X‖_F²/(1−γ₀)²,  Q₁ = (Bλ₃² + λ₁²)‖X‖_F²/(1−γ₀)²

The proof gives more than σ_min(Z) ≥ α₀/2: ‖Z − Z(0)‖_F is at most the right side of (15), or (18), over 2α₀².
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..linalg import Interval, maximum, minimum
from .claim import Claims
from .common import SAME, PaperTheorem, along_the_flow, relative_movement, step_exists
from .features import Reach, plain_descent
from .instance import Instance
from .search import best_constants, log_margin, middle

_REMEDY = "init='section5.1' with a larger beta (γ rescaled with it), or theorem='safeguarded'"


@dataclass(frozen=True)
class Gao2022Ball:
    """The constants of the ball of radii C₁, C₂, C₃; of floats for the search, of intervals for the proof."""

    l1: Any
    l2: Any
    l3: Any
    g0: Any
    gap: Any  # 1 − γ₀
    B: Any
    l0: Any

    @classmethod
    def of(cls, gamma: Any, W: Any, A: Any, b: Any, C: Sequence[float], top: Any) -> Gao2022Ball:
        """The bounds in the ball of radii C, from the norms at the start."""
        C1, C2, C3 = C
        l1, l2, l3 = W + C1, A + C2, b + C3
        g0 = gamma * l2
        gap = top(1 - g0, 0.0)  # where γ₀ ≥ 1 the formulas mean nothing, and 1/0 says so
        B = 1 + (g0 / gap) ** 2 * (l1 / l2) ** 2
        return cls(l1, l2, l3, g0, gap, B, top(l1 / C3, g0 * l1 * l3 / (gap * C2 * l2), l3 / C1))


@dataclass(frozen=True)
class _Gao2022(PaperTheorem):
    """C = (C₁, C₂, C₃), the radii of the ball the weights stay in; chosen for the best margin when None.

    `printed` says how the paper's own conditions differ: they do not.
    """

    C: tuple[float, float, float] | None = None
    printed: bool = False

    conditions: ClassVar[dict[str, tuple[int, str]]]  # label: the power of α₀ and what follows

    def __post_init__(self) -> None:
        if self.C is not None and (len(self.C) != 3 or not all(c > 0 for c in self.C)):
            raise ValueError(f"C must be three numbers > 0. Got {self.C} instead.")

    def options(self) -> dict[str, Any]:
        """C and printed."""
        return {"C": None if self.C is None else list(self.C), "printed": self.printed}

    def argued(self, claims: Claims, instance: Instance, least: Interval) -> dict[str, Any]:
        """(14) and (15), or (17) to (20), with α₀ = σ_min(Z(0))."""
        a0, C = least, self.C or self._choose(instance)
        at = Gao2022Ball.of(*_norms(instance), C, maximum)
        X, r = instance.X_frobenius, instance.residual_norm
        claims.need(
            "γ₀ < 1", at.g0, "<", 1.0, "the map contracts in the whole ball", remedy="a smaller γ or C₂"
        )
        needed = self.sides(at, X, r)
        for label, (power, statement) in self.conditions.items():
            claims.need(label, math.prod([a0] * power), ">=", needed[label], statement, remedy=_REMEDY)
        promised = self._promise(claims, instance, at, C, a0)
        moved = next(needed[label] for label, (power, _) in self.conditions.items() if power == 3)
        constants = {
            **promised.pop("constants", {}),
            "C": list(C),
            "alpha0": a0.lo,
            "gamma0": at.g0.hi,
            "lambda0": at.l0.hi,
            "B": at.B.hi,
            **(SAME if self.printed else {}),
        }
        share = relative_movement(instance, moved / (2 * a0**2))
        return {"movement": share, "constants": constants, **promised}

    def _choose(self, instance: Instance) -> tuple[float, ...]:
        """C with the best worst margin; kept inside γ(‖A‖ + C₂) < 1."""
        gamma, W, A, b = (middle(x) for x in _norms(instance))
        X, r = middle(instance.X_frobenius), middle(instance.residual_norm)
        a0 = max(middle(instance.sigma_N), 1e-100)  # even for 0 the least bad constants are shown
        room = 1 / gamma - A

        def score(C: Sequence[float]) -> float:
            if not C[1] < room:
                return -1e9 - abs(C[1])
            needed = self.sides(Gao2022Ball.of(gamma, W, A, b, C, max), X, r)
            return log_margin(*((a0**power, needed[label]) for label, (power, _) in self.conditions.items()))

        if not room > 0:
            return (1.0, 1.0, 1.0)
        half = min(1.0, room / 2)
        return best_constants(
            score, [(1.0, half, 1.0), (max(W, 1e-3), half, max(b, 0.1)), (10.0, half, 10.0)]
        )

    def sides(self, at: Gao2022Ball, X: Any, r: Any) -> dict[str, Any]:
        """The right side of every condition."""
        raise NotImplementedError

    def _promise(
        self, claims: Claims, instance: Instance, at: Gao2022Ball, C: Sequence[float], a0: Interval
    ) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True)
class Gao2022Flow(_Gao2022):
    """L(t) ≤ exp(−α₀² t/2) L(0) under (14), (15)    [gao2022, Theorem 4.2]."""

    name = "gao2022.flow"
    kind = "flow"
    conditions: ClassVar[dict[str, tuple[int, str]]] = {
        "(14)": (2, "the weights stay in the ball of radii C₁, C₂, C₃"),
        "(15)": (3, "σ_min(Z) stays above α₀/2"),
    }

    def sides(self, at: Gao2022Ball, X: Any, r: Any) -> dict[str, Any]:
        """The right sides of (14) and (15)."""
        return {
            "(14)": 4 / at.gap * at.l0 * X * r,
            "(15)": at.B * 8 * at.l3 / at.gap**2 * X**2 * r,
        }

    def _promise(
        self, claims: Claims, instance: Instance, at: Gao2022Ball, C: Sequence[float], a0: Interval
    ) -> dict[str, Any]:
        return along_the_flow((a0**2 / 2).lo)


@dataclass(frozen=True)
class Gao2022Descent(_Gao2022):
    """L(k) ≤ (1 − ηα₀²/4)^k L(0) under (17)-(20)    [gao2022, Theorem 4.4].

    `rtol` is the tolerance of the solves of the run, which goes into the floor of the bound.
    """

    rtol: float = 1e-15

    name = "gao2022.descent"
    kind = "descent"
    conditions: ClassVar[dict[str, tuple[int, str]]] = {
        "(17)": (2, "the weights stay in the ball of radii C₁, C₂, C₃"),
        "(18)": (3, "σ_min(Z) stays above α₀/2"),
        "(19)": (2, "a step of descent decreases the loss"),
    }

    def sides(self, at: Gao2022Ball, X: Any, r: Any) -> dict[str, Any]:
        """The right sides of (17) to (19)."""
        return {
            "(17)": 8 / at.gap * at.l0 * X * r,
            "(18)": at.B * 16 * at.l3 / at.gap**2 * X**2 * r,
            "(19)": at.B * 16 * at.l3**2 / at.gap**2 * X**2,
        }

    def _promise(
        self, claims: Claims, instance: Instance, at: Gao2022Ball, C: Sequence[float], a0: Interval
    ) -> dict[str, Any]:
        X = instance.X_frobenius
        Q2 = at.B * at.l3**2 * X**2 / at.gap**2
        Q1 = (at.B * at.l3**2 + at.l1**2) * X**2 / at.gap**2
        largest = step_exists(claims, "(20)", minimum(4 / a0**2, 2 * Q2 / Q1**2))
        along = Reach(at.g0 / at.l2 * C[1], at.l3, at.l1 * X / at.gap)  # c = γA
        exponent = (a0**2 / 4).lo
        return plain_descent(claims, instance, along, exponent=exponent, largest=largest, rtol=self.rtol)


Flow = Gao2022Flow
Descent = Gao2022Descent


def _norms(instance: Instance) -> tuple[Interval, Interval, Interval, Interval]:
    """γ, ‖W(0)‖, ‖A(0)‖, ‖b(0)‖."""
    model: Any = instance.model
    W, A, b = (instance.norm(name) for name in ("W", "A", "b"))
    return Interval(model.gamma), W, A, b
