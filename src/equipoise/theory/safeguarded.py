"""L(k) ≤ (1 − (1−θ)ν)^{2k} L(0) while the hidden layer learns: an update counts only where it is proved safe.

The readout's step alone contracts the residual by 1 − ν, at every Z with (1−τ)s ≤ σ_min(Z) and ‖Z‖ ≤ S̄:

    gradient       a ← a − η_a Zᵀ r,  η_a ≤ 1/S̄²,  S̄ = S + τs        ν = η_a (1−τ)² s²
    gauss-newton   a ← a − η Z† r,  η ∈ (0, 1],  S̄ = S/(1−τ)         ν = η

So whatever hidden update is tried beside it, of any size and from any optimiser, the promise holds if it is
accepted only where sound bounds show all of

    (S1) ‖r⁺‖ ≤ (1 − (1−θ)ν)‖r‖   (S2) σ_min(Z⁺) ≥ (1−τ)s   (S3) ‖Z⁺‖ ≤ S̄   (S4) well-posed, R⁺ ≤ 4R(0)

and is otherwise shrunk, in the end to nothing, which passes. There is no ball and no condition on the width.
The gauss-newton rate does not need (S3), and no rate needs the bound of R: they keep computations accurate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..linalg import Interval
from .certificate import Certificate
from .claim import Claims
from .common import trained_features, well_posed
from .features import (
    Along,
    Start,
    check_options,
    falls,
    floor,
    independent,
    largest_readout_step,
    loss_factor,
    run_rtol,
    training_frame,
)
from .instance import Instance

ACCEPTED = (
    "hidden updates are accepted only under sound checks of (S1) ‖r⁺‖ ≤ (1−(1−θ)ν)‖r‖, (S2) σ_min(Z⁺) ≥ "
    "(1−τ)s, (S3) ‖Z⁺‖ ≤ S̄ and (S4) well-posedness with R⁺ ≤ 4R(0), as safeguarded_descent makes them"
)
_WORSE = 4.0  # how much larger than at the start R may become: solves slow down with it, and lose accuracy
_RTOL = 1e-12  # the tolerance of the solves of a run where it matters


@dataclass(frozen=True)
class Safeguarded:
    """L(k) ≤ (1 − (1−θ)ν)^{2k} L(0) for the run of `safeguarded_descent`, whose hidden layer learns.

    Args:
        readout: "gauss-newton", whose rate does not depend on the conditioning of Z, or "gradient".
        eta: the share of the largest readout step, in (0, 1]; by default all of it for "gradient", and a
            tenth for "gauss-newton": the hidden layer learns only until the residual is gone.
        slack: λ ≥ 0. The loss is then that of Za + √λ e over (a, e): ridge regression at its end.
        tau: the share of σ_min(Z(0)) that hidden updates may use up, ½ by default.
        theta: the share of the readout's progress that a hidden update may give back, ½ by default.
    """

    readout: str = "gauss-newton"
    eta: float | None = None
    slack: float = 0.0
    tau: float | None = None
    theta: float | None = None

    name: ClassVar[str] = "safeguarded"
    needs_targets: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self.readout, self.eta, self.slack, self.tau, self.theta)

    def prove(self, instance: Instance) -> Certificate:
        """The verdict on an instance, and what its run must check."""
        frame = training_frame(self, instance, ACCEPTED)
        if obstacle := trained_features(instance.original) or instance.obstacle:
            return Certificate(claims=(), obstacle=obstacle, **frame)
        claims = Claims()
        if not well_posed(claims, instance):
            return Certificate(claims=tuple(claims.items), **frame)
        start = Start.of(instance, self.slack)
        if not independent(claims, instance, start).holds:
            return Certificate(claims=tuple(claims.items), **frame)
        S, s, *_ = start.bounds
        tau, theta = Interval(self.tau or 0.5), Interval(self.theta or 0.5)
        newton = self.readout == "gauss-newton"
        eta = self.eta or (0.1 if newton else 1.0)
        S_bar = Interval((S / (1 - tau)).hi if newton else (S + tau * s).hi)
        least = Interval(((1 - tau) * s).lo)
        step = eta if newton else largest_readout_step(eta, S_bar)
        nu = Interval(step) if newton else step * least**2
        if not newton:
            claims.need("(T1)", step * S_bar**2, "<=", 1.0, "the readout step does not overshoot")
        claims.need("ν > 0", nu, ">", 0.0, "the readout's step alone makes progress")
        rate = 1 - (1 - theta) * nu
        factor = (rate**2).hi
        per_step = 1.0 if newton else loss_factor(instance)
        found = instance.equilibria.spectrum
        a_bar = start.a0 + 2 * start.r0 / ((1 - theta) * least)
        R_bar = _WORSE * instance.enclosure.resolvent.hi
        along = Along(a_bar, S_bar, least, Interval(R_bar), Interval(0.0), newton)
        return Certificate(
            claims=tuple(claims.items),
            factor=factor,
            floor=floor(instance, start, along, theta * nu, _RTOL),
            step_sizes={"readout": step / per_step},
            constants={
                "readout": self.readout,
                "slack": self.slack,
                "tau": tau.lo,
                "theta": theta.lo,
                "nu": nu.lo,
                "rate": rate.lo,  # (S1)
                "sigma_floor": least.hi,  # (S2)
                "S_bar": S_bar.lo,  # (S3)
                "R_bar": R_bar,  # (S4)
                "S": S.hi,
                "s": s.lo,
                "r0": start.r0.hi,
                "Z_norm": found.norm.hi,  # of the equilibria alone, without the slack's columns
                "Z_sigma_min": found.sigma_min.lo,
                "least": start.least,
                "rtol": run_rtol(instance, _RTOL),
            },
            promise=(
                f"{falls(factor, start)} by safeguarded_descent, however far its hidden layer moves; "
                f"equilibria stay unique, and σ_min of the features at least {least.lo:.3g}."
            ),
            **frame,
        )
