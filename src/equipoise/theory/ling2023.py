"""L(τ) ≤ (1 − ηλ₀/2)^τ L(0): gradient descent of z = relu(W z + U x) [ling2023, Theorem 1], (9) corrected.

With ‖W(0)‖ + δ < 1, ρ_w = ‖W(0)‖ + δ, ρ_u = ‖U(0)‖ + δ, ρ_a = ‖a(0)‖ + δ, c_w = ρ_uρ_a/(1−ρ_w)²,
c_u = ρ_a/(1−ρ_w), c_a = ρ_u/(1−ρ_w), λ₀ = λ_min(ZZᵀ):

    (7)  λ₀ ≥ (4/δ) max(c_w, c_u, c_a) ‖X‖_F ‖r(0)‖
    (8)  λ₀^{3/2} ≥ 4(2+√2) ρ_a⁻¹ (c_w² + c_u²) ‖X‖_F² ‖r(0)‖
    (9)  λ₀ ≥ 8 (c_w² + c_u²) ‖X‖_F²                       printed with 4; the last line of the proof needs 8
    (10) η < min(2/λ₀, 2(c_w² + c_u²)/((c_w² + c_u² + c_a²)² ‖X‖_F²))

The proof gives more than λ_τ ≥ λ₀/2: ‖Z − Z(0)‖_F is at most the right side of (8) over (2+√2)λ₀.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..linalg import Interval, maximum, minimum
from .certificate import Kind
from .claim import Claims
from .common import PaperTheorem, relative_movement, step_exists
from .features import Reach, plain_descent
from .instance import Instance
from .search import best_constants, log_margin, middle

_REMEDY = "start='zero_readout' and a larger width, smaller targets, or theorem='safeguarded'"
_SMALL_READOUT = (
    "start='zero_readout': (9) forces ‖a(0)‖ + δ ≲ 1/√N, which a ~ N(0, 1/m) with norm 1 never meets"
)
_ROOT2 = Interval(2.0).sqrt()


@dataclass(frozen=True)
class Ling2023Ball:
    """The constants of the ball of radius δ; of floats for the search, of intervals for the proof."""

    delta: Any
    rho_w: Any
    rho_a: Any
    largest: Any  # max(c_w, c_u, c_a)
    both: Any  # c_w² + c_u²
    c_a: Any

    @classmethod
    def of(cls, W: Any, U: Any, a: Any, delta: Any, top: Any) -> Ling2023Ball:
        """The bounds in the ball of radius δ, from the norms at the start."""
        rho_w, rho_u, rho_a = W + delta, U + delta, a + delta
        gap = top(1 - rho_w, 0.0)  # where ρ_w ≥ 1 the formulas mean nothing, and 1/0 says so
        c_w, c_u, c_a = rho_u * rho_a / gap**2, rho_a / gap, rho_u / gap
        return cls(delta, rho_w, rho_a, top(c_w, c_u, c_a), c_w**2 + c_u**2, c_a)

    def sides(self, X: Any, r: Any, root2: Any) -> dict[str, Any]:
        """The right sides of Condition 1."""
        return {
            "(7)": 4 / self.delta * self.largest * X * r,
            "(8)": 4 * (2 + root2) / self.rho_a * self.both * X**2 * r,
            "(9)": 8 * self.both * X**2,
        }

    def step(self, X: Any) -> Any:
        """The second of the two bounds of (10)."""
        return 2 * self.both / ((self.both + self.c_a**2) ** 2 * X**2)


@dataclass(frozen=True)
class Ling2023Descent(PaperTheorem):
    """L(τ) ≤ (1 − ηλ₀/2)^τ L(0) under (7)-(10)    [ling2023, Theorem 1].

    `delta` is the radius δ of the ball the weights stay in; chosen for the best margin when None. `printed`
    shows the paper's own (9), with 4 for 8, beside the corrected one. `rtol` is the tolerance of the solves
    of the run, which goes into the floor of the bound.
    """

    delta: float | None = None
    printed: bool = False
    rtol: float = 1e-15

    name: ClassVar[str] = "ling2023"
    kind: ClassVar[Kind] = "descent"

    def __post_init__(self) -> None:
        if self.delta is not None and not self.delta > 0:
            raise ValueError(f"delta must be > 0. Got {self.delta} instead.")

    def options(self) -> dict[str, Any]:
        """δ and printed."""
        return {"delta": self.delta, "printed": self.printed}

    def argued(self, claims: Claims, instance: Instance, least: Interval) -> dict[str, Any]:
        """(7) to (10), with λ₀ = σ_min(Z(0))²."""
        lambda0, delta = least**2, self.delta or self._choose(instance)
        at = Ling2023Ball.of(*_norms(instance), Interval(delta), maximum)
        X, r = instance.X_frobenius, instance.residual_norm
        needed = at.sides(X, r, _ROOT2)
        self._claim(claims, at, least, needed)
        largest = step_exists(claims, "(10)", minimum(2 / lambda0, at.step(X)))
        along = Reach(Interval(delta), at.rho_a, at.c_a * X)
        promised = plain_descent(
            claims, instance, along, exponent=(lambda0 / 2).lo, largest=largest, rtol=self.rtol, count="τ"
        )
        moved = relative_movement(instance, needed["(8)"] / ((2 + _ROOT2) * lambda0))
        known = {"delta": delta, "lambda0": lambda0.lo, **promised.pop("constants", {})}
        return {"movement": moved, "constants": known, **promised}

    def _claim(self, claims: Claims, at: Ling2023Ball, s: Interval, needed: Mapping[str, Interval]) -> None:
        """State that the ball is one of contractions, and Condition 1."""
        lambda0 = s**2
        claims.need(
            "‖W‖+δ < 1", at.rho_w, "<", 1.0, "the map contracts in the whole ball", remedy="a smaller δ"
        )
        claims.need(
            "(7)", lambda0, ">=", needed["(7)"], "the weights stay in the ball of radius δ", remedy=_REMEDY
        )
        claims.need("(8)", lambda0 * s, ">=", needed["(8)"], "λ_min(ZZᵀ) stays above λ₀/2", remedy=_REMEDY)
        claims.need(
            "(9)",
            lambda0,
            ">=",
            needed["(9)"],
            "a step of descent decreases the loss",
            remedy=_SMALL_READOUT,
        )
        if self.printed:
            half = needed["(9)"] / 2
            claims.need("(9)", lambda0, ">=", half, "with 4, where the proof needs 8", printed=True)

    def _choose(self, instance: Instance) -> float:
        """δ with the best worst margin in (0, 1 − ‖W‖)."""
        W, U, a = (middle(x) for x in _norms(instance))
        X, r = middle(instance.X_frobenius), middle(instance.residual_norm)
        s = max(middle(instance.sigma_N), 1e-100)  # even for 0 the least bad constant is shown
        room = 1 - W

        def score(constants: Sequence[float]) -> float:
            (delta,) = constants
            if not delta < room:
                return -1e9 - delta
            needed = Ling2023Ball.of(W, U, a, delta, max).sides(X, r, math.sqrt(2))
            return log_margin((s**2, needed["(7)"]), (s**3, needed["(8)"]), (s**2, needed["(9)"]))

        if not room > 0:
            return 0.1
        return best_constants(score, [(room / 2,), (room / 10,), (room / 100,)])[0]


Descent = Ling2023Descent


def _norms(instance: Instance) -> tuple[Interval, Interval, Interval]:
    """‖W(0)‖, ‖U(0)‖, ‖a(0)‖."""
    W, U, a = (instance.norm(name) for name in ("W", "U", "a"))
    return W, U, a
