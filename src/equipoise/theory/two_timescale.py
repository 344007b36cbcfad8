"""L(k) ≤ (1 − (1−θ)ν)^{2k} L(0): the readout has a step of its own, the hidden layer a smaller one.

From any well-posed start with s = σ_min(Z(0)) > 0 there is a hidden step η_h > 0 for which this holds, at
every width m ≥ N; with slack λ > 0, for every N and m. Write S = ‖Z(0)‖, S̄ = S + τs, r₀ = ‖r(0)‖ and R, K, β
as in `geometry.py`. The readout contracts the residual by 1 − ν,

    gradient       a ← a − η_a Zᵀ r,  η_a ≤ 1/S̄²                     ν = η_a (1−τ)² s²
    gauss-newton   a ← a − η Z† r,  η ∈ (0, 1]                       ν = η

and the hidden step gives back at most a share θ of that, and stays in the ball where all of it holds:

    (T1) η_a S̄² ≤ 1   (T2) η_h R²ā²K ≤ θν   (T3) η_h Rāβr₀ ≤ (1−θ)νδ   (T4) η_h R²āK r₀ ≤ (1−θ)ντs

with ā ≥ ‖a‖ along the run. The proof, inequality by inequality, is in docs/theory.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..checks import positive
from ..linalg import Interval
from .certificate import Certificate
from .claim import Claims
from .common import relative_movement, trained_features, well_posed
from .features import (
    Along,
    Start,
    check_options,
    falls,
    floor,
    independent,
    largest_readout_step,
    loss_factor,
    run_atol,
    run_rtol,
    training_frame,
)
from .geometry import Ball, Geometry, Number, smaller
from .instance import Instance

_SHARE = 0.9  # of the largest hidden step: what is left of θν pays for the errors of a real step
_ENOUGH = 1e6  # the hidden step if nothing limits it, as on data that are all zero
_GRID, _ROUNDS = 13, 5  # constants tried in each direction, and how often around the best


@dataclass(frozen=True)
class TwoTimescale:
    """L(k) ≤ (1 − (1−θ)ν)^{2k} L(0) with one step size for the readout and one for the hidden layer.

    Args:
        readout: "gradient", or "gauss-newton", whose rate does not depend on the conditioning of Z.
        eta: the share of the largest readout step, in (0, 1]; by default all of it.
        slack: λ ≥ 0. The loss is then that of Za + √λ e over (a, e): ridge regression at its end.
        tau, theta, delta_w: the constants; chosen for the largest hidden step when None.
        rtol: the tolerance of the solves of the run, which goes into the floor of the bound.
    """

    readout: str = "gradient"
    eta: float | None = None
    slack: float = 0.0
    tau: float | None = None
    theta: float | None = None
    delta_w: float | None = None
    rtol: float = 1e-12

    name: ClassVar[str] = "two_timescale"
    needs_targets: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self.readout, self.eta, self.slack, self.tau, self.theta)
        for name in ("delta_w", "rtol"):
            positive(name, 1.0 if getattr(self, name) is None else getattr(self, name))

    def prove(self, instance: Instance) -> Certificate:
        """The verdict on an instance, with the constants that allow the largest hidden step."""
        frame = training_frame(self, instance)
        if obstacle := trained_features(instance.original) or instance.obstacle:
            return Certificate(claims=(), obstacle=obstacle, **frame)
        claims = Claims()
        if not well_posed(claims, instance):
            return Certificate(claims=tuple(claims.items), **frame)
        start = Start.of(instance, self.slack)
        if not independent(claims, instance, start).holds:
            return Certificate(claims=tuple(claims.items), **frame)
        at = instance.facts.geometry(instance)
        tau, theta, delta = self._choose(start, at)
        found = self._argue(start, at, Interval(tau), Interval(theta), Interval(delta))
        hidden = min(max((_SHARE * found.largest).lo, 0.0), _ENOUGH)
        self._claim(claims, start, at, found, hidden)
        left, newton = (1 - found.theta) * found.nu, self.readout == "gauss-newton"
        factor = (1 - left) ** 2
        unused = found.theta * found.nu - hidden * found.R**2 * found.a_bar**2 * found.K
        along = Along(
            found.a_bar, found.S_bar, (1 - found.tau) * start.s.lo, found.R, theta * found.nu, newton
        )
        per_step = loss_factor(instance)  # the gradients of ‖r‖² are twice those of ½‖r‖²
        steps = {
            "readout": found.step if newton else found.step / per_step,
            "hidden": hidden / per_step,
        }
        moved = hidden * found.R**2 * found.a_bar * found.K * start.r0.hi / left
        return Certificate(
            claims=tuple(claims.items),
            factor=factor.hi,
            floor=floor(instance, start, along, unused, self.rtol),
            step_sizes=steps,
            movement=relative_movement(instance, moved),
            constants={
                "readout": self.readout,
                "slack": self.slack,
                "tau": tau,
                "theta": theta,
                "delta_w": delta,
                "nu": found.nu.lo,
                "S": start.S.hi,
                "S_bar": found.S_bar.hi,
                "s": start.s.lo,
                "sigma_floor": ((1 - found.tau) * start.s.lo).lo,
                "a_bar": found.a_bar.hi,
                "r0": start.r0.hi,
                "R": found.R.hi,
                "least": start.least,
                "rtol": run_rtol(instance, self.rtol),
                "atol": run_atol(instance, self.rtol),
            },
            promise=(
                f"{falls(factor.hi, start)} with readout step {steps['readout']:.3g} "
                f"and hidden step {steps['hidden']:.3g}; equilibria stay unique."
            ),
            **frame,
        )

    def _argue(self, start: Start, at: Geometry, tau: Number, theta: Number, delta: Number) -> _Argument:
        """Every quantity of the proof at given constants, for Intervals or for arrays of floats."""
        searching = not isinstance(tau, Interval)
        S, s, Z, a0, r0 = start.floats if searching else start.bounds
        S_bar, Z_bar = S + tau * s, Z + tau * s
        ball: Ball = at.ball(delta, Z_bar)
        if self.readout == "gauss-newton":
            step, nu = self.eta or 1.0, (self.eta or 1.0) + 0 * tau
        else:
            step = largest_readout_step(self.eta or 1.0, S_bar)
            nu = step * (1 - tau) ** 2 * s**2
        R, K, beta = ball if searching else (Interval(v.hi) for v in ball)
        a_bar = a0 + self._travel(start, s, Z_bar, r0, tau, theta)
        a_bar = a_bar if searching else Interval(a_bar.hi)
        left = (1 - theta) * nu
        quotients = [
            (theta * nu, R**2 * a_bar**2 * K),
            (left * delta, R * a_bar * beta * r0),
            (left * tau * s, R**2 * a_bar * K * r0),
        ]
        largest = math.inf if searching else Interval(math.inf)
        for top, bottom in quotients:
            if searching:
                largest = smaller(largest, top / bottom)
            elif bottom.hi > 0:
                largest = smaller(largest, top / Interval(bottom.hi))
        return _Argument(tau, theta, delta, S_bar, step, nu, a_bar, R, K, beta, largest)

    def _travel(
        self, start: Start, s: Number, Z_bar: Number, r0: Number, tau: Number, theta: Number
    ) -> Number:
        """δ_a ≥ ‖a − a(0)‖ along the run; with slack, ‖Zᵀ(ZZᵀ + λI)⁻¹‖ ≤ 1/(2√λ) whatever Z is."""
        if self.readout == "gauss-newton":
            return r0 / (1 - theta) * self._inverse(start, (1 - tau) * s)
        c = 1 / ((1 - theta) * (1 - tau) ** 2)
        plain = Z_bar * r0 * c / s**2
        at_start = 2 * r0 + 2 * Z_bar * tau * r0 * c / s + theta / (1 - theta) * r0
        return smaller(plain, self._inverse(start, s) * at_start + tau * r0 * c / s)

    def _inverse(self, start: Start, s: Number) -> Number:
        """≥ ‖Zᵀ(ZZᵀ + λI)⁻¹‖ where σ_min([Z, √λ I]) ≥ s."""
        if not self.slack:
            return 1 / s
        half = 1 / (2 * start.root)
        return smaller(1 / s, half if isinstance(s, Interval) else half.hi)

    def _choose(self, start: Start, at: Geometry) -> tuple[float, float, float]:
        """τ, θ, δ for the largest hidden step that leaves at least half of the ideal rate.

        It searches a grid, refined around its best point, and is not trusted: the proof uses what it finds.
        """
        floats = at.as_floats()
        S, s = start.floats[:2]
        ideal = (self.eta or 1.0) * (1.0 if self.readout == "gauss-newton" else (s / S) ** 2)
        reach = min(floats.scale * 10, 0.95 * at.room)
        ranges = [(1e-4, 0.95), (1e-3, 0.6), (1e-8 * reach, reach)]
        given = (self.tau, self.theta, self.delta_w)
        best: tuple[float, ...] = ()
        for _ in range(_ROUNDS):
            axes = [
                np.geomspace(lo, hi, _GRID) if fixed is None else np.array([fixed])
                for (lo, hi), fixed in zip(ranges, given, strict=True)
            ]
            tau, theta, delta = (g.ravel() for g in np.meshgrid(*axes, indexing="ij"))
            with np.errstate(all="ignore"):
                found = self._argue(start, floats, tau, theta, delta)
                kept = np.minimum(2 * (1 - theta) * found.nu / ideal, 1.0)  # 1 while half the rate is left
                score = np.log(found.largest) + 1e3 * np.log(kept)
            score[np.isnan(score)] = -math.inf
            pick = int(np.argmax(score))
            best = float(tau[pick]), float(theta[pick]), float(delta[pick])
            ranges = [
                (max(b * (lo / hi) ** (1 / (_GRID - 1)), lo), min(b * (hi / lo) ** (1 / (_GRID - 1)), hi))
                for b, (lo, hi) in zip(best, ranges, strict=True)
            ]
        return best  # type: ignore[return-value]

    def _claim(self, claims: Claims, start: Start, at: Geometry, found: _Argument, hidden: float) -> None:
        R, a, K, h = found.R, found.a_bar, found.K, Interval(hidden)
        s, r0 = Interval(start.s.lo), Interval(start.r0.hi)
        left = (1 - found.theta) * found.nu
        if math.isfinite(at.room):
            claims.need(
                "δ",
                found.delta,
                "<",
                at.room,
                "equilibria stay unique in the whole ball",
                remedy="a smaller delta_w",
            )
        if self.readout == "gradient":
            claims.need("(T1)", found.step * found.S_bar**2, "<=", 1.0, "the readout step does not overshoot")
        claims.need(
            "(T2)", h * R**2 * a**2 * K, "<=", found.theta * found.nu, "the hidden step gives back at most θν"
        )
        claims.need(
            "(T3)", h * R * a * found.beta * r0, "<=", left * found.delta, "the weights stay in the ball"
        )
        claims.need(
            "(T4)", h * R**2 * a * K * r0, "<=", left * found.tau * s, "the equilibria stay within τs"
        )
        claims.need("η_h > 0", h, ">", 0.0, "the hidden layer moves at all")


@dataclass(frozen=True)
class _Argument:
    """The constants, and what follows from them."""

    tau: Number
    theta: Number
    delta: Number
    S_bar: Number
    step: Any  # of the readout, for ½‖r‖²
    nu: Number
    a_bar: Number
    R: Number
    K: Number
    beta: Number
    largest: Number  # hidden step that (T2)-(T4) allow
