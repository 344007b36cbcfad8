"""L(τ) ≤ (1 − ηλ₀/2)^τ L(0): gradient descent of GaussianReLU [ling2023, Theorem 1], with (9) corrected.

With ‖W(0)‖ + δ < 1, ρ_w = ‖W(0)‖ + δ, ρ_u = ‖U(0)‖ + δ, ρ_a = ‖a(0)‖ + δ, c_w = ρ_uρ_a/(1−ρ_w)²,
c_u = ρ_a/(1−ρ_w), c_a = ρ_u/(1−ρ_w), λ₀ = λ_min(ZZᵀ):

    (7)  λ₀ ≥ (4/δ) max(c_w, c_u, c_a) ‖X‖_F ‖r(0)‖
    (8)  λ₀^{3/2} ≥ 4(2+√2) ρ_a⁻¹ (c_w² + c_u²) ‖X‖_F² ‖r(0)‖
    (9)  λ₀ ≥ 8 (c_w² + c_u²) ‖X‖_F²                       printed with 4; the last line of the proof needs 8
    (10) η < min(2/λ₀, 2(c_w² + c_u²)/((c_w² + c_u² + c_a²)² ‖X‖_F²))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..linalg import Interval, maximum, minimum
from ..models.gaussian_relu import GaussianReLU
from .certificate import Certificate
from .claim import Claims
from .common import certificate, independent_rows, obstacle_of, relative_movement, well_posed
from .instance import Instance
from .search import best_constants, log_margin

_REMEDY = "start='zero_readout' and a larger width, smaller targets, or theorem='safeguarded'"
_SMALL_READOUT = (
    "start='zero_readout': (9) forces ‖a(0)‖ + δ ≲ 1/√N, which a ~ N(0, 1/m) with norm 1 never meets"
)


def _sides(
    W: Any, U: Any, a: Any, delta: Any, X: Any, r: Any, top: Any, root2: Any, nine: int
) -> dict[str, Any]:
    """The right-hand sides of Condition 1, in floats for the search or in intervals for the proof."""
    rho_w, rho_u, rho_a = W + delta, U + delta, a + delta
    gap = 1 - rho_w
    c_w, c_u, c_a = rho_u * rho_a / gap**2, rho_a / gap, rho_u / gap
    both = c_w**2 + c_u**2
    return {
        "rho_w": rho_w,
        "(7)": 4 / delta * top(c_w, c_u, c_a) * X * r,
        "(8)": 4 * (2 + root2) / rho_a * both * X**2 * r,
        "(9)": nine * both * X**2,
        "step": 2 * both / ((both + c_a**2) ** 2 * X**2),
    }


@dataclass(frozen=True)
class Descent:
    """L(τ) ≤ (1 − ηλ₀/2)^τ L(0) under (7)-(10)    [ling2023, Theorem 1].

    `delta` is the radius δ of the ball the weights stay in; chosen for the best margin when None. `printed`
    shows the paper's own (9), with 4 for 8, beside the corrected one.
    """

    delta: float | None = None
    printed: bool = False

    name: ClassVar[str] = "ling2023"
    needs_targets: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.delta is not None and not self.delta > 0:
            raise ValueError(f"delta must be > 0. Got {self.delta} instead.")

    def prove(self, instance: Instance) -> Certificate:
        options = {"delta": self.delta, "printed": self.printed}
        obstacle = obstacle_of(instance, GaussianReLU)
        if obstacle:
            return certificate(self.name, instance, kind="descent", options=options, obstacle=obstacle)
        claims = Claims()
        well_posed(claims, instance)
        s = independent_rows(claims, instance).left
        lambda0 = s**2
        delta = self.delta or self._choose(instance)
        W, U, a = (instance.norm(name) for name in ("W", "U", "a"))
        X, r = instance.X_frobenius, instance.residual_norm
        at = _sides(W, U, a, Interval(delta), X, r, maximum, Interval(2.0).sqrt(), 8)
        claims.need(
            "‖W‖+δ < 1", at["rho_w"], "<", 1.0, "the map contracts in the whole ball", remedy="a smaller δ"
        )
        claims.need(
            "(7)", lambda0, ">=", at["(7)"], "the weights stay in the ball of radius δ", remedy=_REMEDY
        )
        claims.need("(8)", s**3, ">=", at["(8)"], "λ_min(ZZᵀ) stays above λ₀/2", remedy=_REMEDY)
        claims.need(
            "(9)", lambda0, ">=", at["(9)"], "a step of descent decreases the loss", remedy=_SMALL_READOUT
        )
        if self.printed:
            four = _sides(W, U, a, Interval(delta), X, r, maximum, Interval(2.0).sqrt(), 4)["(9)"]
            claims.need("(9)", lambda0, ">=", four, "with 4, where the proof needs 8", printed=True)
        largest = minimum(2 / lambda0, at["step"])
        claims.need("(10)", largest, ">", 0.0, "a step size that the theorem allows exists")
        exponent = (lambda0 / 2).lo
        return certificate(
            self.name,
            instance,
            claims,
            kind="descent",
            options=options,
            exponent=exponent,
            max_step_size=max(largest.lo, 0.0),
            movement=relative_movement(instance, (1 - 1 / Interval(2.0).sqrt()) * s),
            promise=f"with step size η < {largest.lo:.3g}, L(τ) ≤ (1 − {exponent:.3g} η)^τ L(0).",
            constants={"delta": delta, "lambda0": lambda0.lo},
        )

    def _choose(self, instance: Instance) -> float:
        """δ with the best worst margin in (0, 1 − ‖W‖)."""
        mid = lambda x: (x.lo + x.hi) / 2
        W, U, a = (mid(instance.norm(name)) for name in ("W", "U", "a"))
        X, r, lambda0 = mid(instance.X_frobenius), mid(instance.residual_norm), mid(instance.sigma_N) ** 2
        room = 1 - W

        def score(constants: Sequence[float]) -> float:
            (delta,) = constants
            if not delta < room:
                return -1e9 - delta
            at = _sides(W, U, a, delta, X, r, max, math.sqrt(2), 8)
            base = max(lambda0, 1e-300)
            return log_margin((base, at["(7)"]), (base**1.5, at["(8)"]), (base, at["(9)"]))

        if not room > 0:
            return 0.1
        return best_constants(score, [(room / 2,), (room / 10,), (room / 100,)])[0]
