"""L(k) ≤ (1 − (1−θ)ν)^{2k} L(0): the readout has a step of its own, the hidden layer a smaller one.

From any well-posed start with s = σ_min(Z(0)) > 0 there is a hidden step η_h > 0 for which this holds, at
every width m ≥ N; with slack λ > 0, for every N and m. Write S = ‖Z(0)‖, S̄ = S + τs, r₀ = ‖r(0)‖ and R, K, β
as in `geometry.py`. The readout contracts the residual by 1 − ν,

    gradient       a ← a − η_a Zᵀ r,  η_a ≤ 1/S̄²                     ν = η_a (1−τ)² s²
    gauss-newton   a ← a − η Zᵀ(ZZᵀ)⁻¹ r,  η ∈ (0, 1]                ν = η

and the hidden step gives back at most a share θ of that, and stays in the ball where all of it holds:

    (T1) η_a S̄² ≤ 1   (T2) η_h R²ā²K ≤ θν   (T3) η_h RāβR₀ ≤ (1−θ)νδ   (T4) η_h R²āK r₀ ≤ (1−θ)ντs

with ā ≥ ‖a‖ along the run. The proof, inequality by inequality, is in docs/theory.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..linalg import Interval, frobenius, gamma, maximum, minimum
from ..models.linear import LinearEquilibrium
from .certificate import EXACT_GRADIENTS, FLOAT64_TIER, Certificate
from .claim import Claims
from .common import HALF_SQUARE, relative_movement, well_posed
from .geometry import geometry, room
from .instance import Instance
from .search import best_constants

Readout = Literal["gradient", "gauss-newton"]
READOUTS = ("gradient", "gauss-newton")
_SAFETY = 0.999  # of the largest steps: so that their own rounding cannot matter


@dataclass(frozen=True)
class Spectrum:
    """S ≥ ‖Z(0)‖ and s ≤ σ_min(Z(0)) of the features the readout sees, the slack's columns included."""

    S: Interval
    s: Interval

    @classmethod
    def of(cls, instance: Instance, slack: float) -> Spectrum:
        Z, N, m = instance.equilibria.spectrum, instance.N, instance.model.width
        linear = isinstance(instance.model, LinearEquilibrium)
        # Of a linear family only the part of r in col(Φ) moves, so m singular values are enough.
        s = Z.sigma_min if m >= N or (linear and slack == 0) else Interval(0.0)
        if slack == 0:
            return cls(Z.norm, s)
        more = Interval(slack)
        return cls((Z.norm**2 + more).sqrt(), (s**2 + more).sqrt())


def check_options(
    readout: str, eta: float | None, slack: float, tau: float | None, theta: float | None
) -> None:
    if readout not in READOUTS:
        raise ValueError(f"readout must be one of {READOUTS}. Got {readout!r} instead.")
    if eta is not None and not 0 < eta <= 1:
        raise ValueError(f"eta must lie in (0, 1]: the share of the largest readout step. Got {eta} instead.")
    if not (slack >= 0 and math.isfinite(slack)):
        raise ValueError(f"slack must be a finite number ≥ 0. Got {slack} instead.")
    for name, value in (("tau", tau), ("theta", theta)):
        if value is not None and not 0 < value < 1:
            raise ValueError(f"{name} must lie in (0, 1). Got {value} instead.")


def readout_rate(
    readout: str, eta: float, tau: Interval, s: Interval, S_bar: Interval
) -> tuple[float, Interval]:
    """The readout's step size (for ½‖r‖²) and ν, what it takes off the residual."""
    if readout == "gauss-newton":
        return eta, Interval(eta)
    step = max((eta * _SAFETY / S_bar**2).lo, 0.0)
    return step, step * (1 - tau) ** 2 * s**2


def readout_bound(
    readout: str, a0: Any, r0: Any, s: Any, S_bar: Any, tau: Any, theta: Any, least: Any
) -> Any:
    """ā ≥ ‖a‖ along the run: ‖a(0)‖ + δ_a."""
    if readout == "gauss-newton":
        return a0 + r0 / ((1 - theta) * (1 - tau) * s)
    c = 1 / ((1 - theta) * (1 - tau) ** 2)
    plain = S_bar * r0 * c / s**2
    sharp = (2 * r0 + 2 * S_bar * tau * r0 * c / s + theta / (1 - theta) * r0 + tau * r0 * c) / s
    return a0 + least(plain, sharp)


@dataclass(frozen=True)
class TwoTimescale:
    """L(k) ≤ (1 − (1−θ)ν)^{2k} L(0) with one step size for the readout and one for the hidden layer.

    Args:
        readout: "gradient", or "gauss-newton", whose rate does not depend on the conditioning of Z.
        eta: the share of the largest readout step, in (0, 1]; by default all of it.
        slack: λ ≥ 0. The loss is then ½‖Za + √λ e − y‖² over (a, e): ridge regression at its end.
        tau, theta, delta_w: the constants; chosen for the largest hidden step when None.
        rtol: the tolerance of the solves of the run, which goes into the floor of the bound.
    """

    readout: Readout = "gradient"
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
        if self.delta_w is not None and not self.delta_w > 0:
            raise ValueError(f"delta_w must be > 0. Got {self.delta_w} instead.")

    def prove(self, instance: Instance) -> Certificate:
        frame = training_frame(self, instance)
        if instance.obstacle:
            return Certificate(claims=(), obstacle=instance.obstacle, **frame)
        claims = Claims()
        spectrum = Spectrum.of(instance, self.slack)
        if not (well_posed(claims, instance) and independent(claims, instance, spectrum, self.slack).holds):
            return Certificate(claims=tuple(claims.items), **frame)
        tau, theta, delta = self._choose(instance, spectrum)
        found = _Proof(self, instance, spectrum, Interval(tau), Interval(theta), Interval(delta))
        found.claim(claims)
        factor = (1 - (1 - found.theta) * found.nu) ** 2
        linear = isinstance(instance.model, LinearEquilibrium)
        half = 0.5 if linear and self.readout == "gradient" else 1.0  # no ½ in its loss: half the steps
        return Certificate(
            claims=tuple(claims.items),
            factor=factor.hi,
            floor=floor(instance, found.a_bar, found.r0, (1 - found.theta) * found.nu, self.rtol),
            step_sizes={"readout": half * found.step, "hidden": (0.5 if linear else 1.0) * found.hidden},
            movement=relative_movement(instance, found.tau * found.s),
            constants={
                "tau": tau,
                "theta": theta,
                "delta_w": delta,
                "slack": self.slack,
                "nu": found.nu.lo,
                "readout": self.readout,
                "rtol": self.rtol,
                "a_bar": found.a_bar.hi,
                "S": spectrum.S.hi,
                "s": spectrum.s.lo,
            },
            promise=(
                f"L(k) ≤ {factor.hi:.6g}^k L(0) with readout step {half * found.step:.3g} "
                f"and hidden step {found.hidden:.3g}; equilibria stay unique."
            ),
            **frame,
        )

    def _choose(self, instance: Instance, spectrum: Spectrum) -> tuple[float, float, float]:
        """τ, θ, δ for the largest hidden step that leaves at least half of the ideal rate."""
        limit = room(instance.model, instance)
        eta = self.eta or 1.0
        S, s = spectrum.S.hi, spectrum.s.lo
        ideal = eta if self.readout == "gauss-newton" else eta * s**2 / S**2

        def filled(constants: Sequence[float]) -> tuple[float, float, float]:
            tau, theta, delta = constants
            return self.tau or tau, self.theta or theta, self.delta_w or delta

        def score(constants: Sequence[float]) -> float:
            tau, theta, delta = filled(constants)
            if not (tau < 1 and theta < 1 and delta < limit):
                return -1e9 - tau - theta - delta
            proof = _Proof(self, instance, spectrum, Interval(tau), Interval(theta), Interval(delta))
            if not proof.hidden > 0:
                return -1e9
            lost = 2 * (1 - theta) * proof.nu.lo / ideal  # ≥ 1 while half of the rate is left
            return math.log(proof.hidden) + (0.0 if lost >= 1 else 1e3 * math.log(max(lost, 1e-300)))

        middle = min(1.0, limit / 2)
        return filled(best_constants(score, [(0.1, 0.3, middle), (0.01, 0.3, middle / 10)], tries=250))


class _Proof:
    """Every quantity of the argument at given τ, θ, δ, in intervals, and the largest steps it allows."""

    def __init__(
        self,
        theorem: TwoTimescale,
        instance: Instance,
        spectrum: Spectrum,
        tau: Interval,
        theta: Interval,
        delta: Interval,
    ) -> None:
        self.instance, self.tau, self.theta, self.delta = instance, tau, theta, delta
        # Certain ends: the proof uses S from above and s from below.
        self.S, self.s = Interval(spectrum.S.hi), Interval(max(spectrum.s.lo, 0.0))
        self.S_bar = self.S + tau * self.s
        self.r0 = Interval(instance.residual_norm.hi)
        at = geometry(instance.model, instance, delta, self.S_bar)
        self.R, self.K, self.beta = (Interval(v.hi) for v in (at.R, at.K, at.beta))
        self.step, self.nu = readout_rate(theorem.readout, theorem.eta or 1.0, tau, self.s, self.S_bar)
        self.gradient_readout = theorem.readout == "gradient"
        self.a_bar = Interval(
            readout_bound(
                theorem.readout, instance.readout_norm, self.r0, self.s, self.S_bar, tau, theta, minimum
            ).hi
        )
        self.hidden = max(_SAFETY * self._largest().lo, 0.0)

    def _largest(self) -> Interval:
        R, a, K, nu, r0 = self.R, self.a_bar, self.K, self.nu, self.r0
        left = (1 - self.theta) * nu
        parts = [
            (self.theta * nu, R**2 * a**2 * K),
            (left * self.delta, R * a * self.beta * r0),
            (left * self.tau * self.s, R**2 * a * K * r0),
        ]
        return (
            minimum(*(num / den for num, den in parts if den.hi > 0))
            if r0.hi > 0 or a.hi > 0
            else Interval(1.0)
        )

    def claim(self, claims: Claims) -> None:
        R, a, K, r0, h = self.R, self.a_bar, self.K, self.r0, Interval(self.hidden)
        left = (1 - self.theta) * self.nu
        limit = room(self.instance.model, self.instance)
        if math.isfinite(limit):
            claims.need(
                "δ", self.delta, "<", limit, "the map contracts in the whole ball", remedy="a smaller delta_w"
            )
        if self.gradient_readout:
            claims.need("(T1)", self.step * self.S_bar**2, "<=", 1.0, "the readout step does not overshoot")
        claims.need(
            "(T2)", h * R**2 * a**2 * K, "<=", self.theta * self.nu, "the hidden step gives back at most θν"
        )
        claims.need(
            "(T3)", h * R * a * self.beta * r0, "<=", left * self.delta, "the weights stay in the ball"
        )
        claims.need(
            "(T4)", h * R**2 * a * K * r0, "<=", left * self.tau * self.s, "the equilibria stay within τs"
        )
        claims.need("η_h > 0", h, ">", 0.0, "the hidden layer moves at all")


def independent(claims: Claims, instance: Instance, spectrum: Spectrum, slack: float) -> Any:
    """s > 0, with the slack's columns."""
    N, m = instance.N, instance.model.width
    remedy = "slack > 0, which makes it hold for every N and m" + (
        f", or a width of at least {N}" if m < N else ""
    )
    return claims.need(
        "s > 0",
        spectrum.s,
        ">",
        0.0,
        "the features the readout sees are independent" + (f" (slack λ = {slack:g})" if slack else ""),
        method="a-posteriori bounds on an SVD, less the error of the equilibria",
        remedy=remedy,
    )


def training_frame(theorem: Any, instance: Instance) -> dict[str, Any]:
    """What a certificate of either argument states, proved or not."""
    linear = isinstance(instance.model, LinearEquilibrium)
    loss = "the loss is ‖ŷ − y‖² summed over the samples" if linear else HALF_SQUARE
    if theorem.slack:
        loss = (
            f"the loss is ½‖Za + √λ e − y‖² over (a, e) with λ = {theorem.slack:g}; predictions use Za alone"
        )
    on_gap = ("the promise is on the gap to the least loss",) if linear else ()
    steps = "readout and hidden layer move by full-batch steps of their own, both taken at the old point"
    return {
        "theorem": theorem.name,
        "kind": "descent",
        "hypotheses": (loss, *on_gap, steps, EXACT_GRADIENTS, FLOAT64_TIER),
        "loss": "square" if linear else "half_square",
        "options": {k: v for k, v in vars(theorem).items() if v is not None},
        "fingerprint": instance.fingerprint,
    }


def floor(instance: Instance, a_bar: Interval, r0: Interval, rate: Interval, rtol: float) -> float:
    """L(k)/L(0) where rounding and the solver's tolerance take over: (e/(rate·r₀))², e the error of a step."""
    Z, m = instance.equilibria.frobenius, instance.model.width
    assert instance.y is not None
    solve = (1 + instance.enclosure.weight_norm * instance.enclosure.resolvent) * rtol * Z
    e = a_bar * (solve + gamma(m + 4) * Z) + gamma(m + 4) * (frobenius(instance.y) + r0)
    if not (r0.lo > 0 and rate.lo > 0):
        return 1.0
    return min(1.0, (maximum(e / (rate * r0), 0.0) ** 2).hi)
