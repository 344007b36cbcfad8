"""[Z, √λ I] and r = Z a + √λ e − y at the start: what the theorems with a readout step of its own share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..checks import nonnegative, one_of, within
from ..linalg import Interval, frobenius, gamma, maximum, singular_bounds
from ..solve import Stop
from .certificate import EXACT_GRADIENTS, FLOAT64_TIER
from .claim import Claim, Claims
from .common import FEATURES, HALF_SQUARE
from .enclosure import product_rounding
from .geometry import Ball
from .instance import Instance

READOUTS = ("gradient", "gauss-newton")
SAFETY = 0.999  # of a largest step: so that its own rounding cannot matter


def check_options(
    readout: str, eta: float | None, slack: float, tau: float | None, theta: float | None
) -> None:
    """Raise a ValueError if an option of either argument is out of its range."""
    one_of("readout", readout, READOUTS)
    within("eta", 1.0 if eta is None else eta, "(0, 1]", ": the share of the largest readout step")
    nonnegative("slack", slack)
    for name, value in (("tau", tau), ("theta", theta)):
        within(name, 0.5 if value is None else value, "(0, 1)")


@dataclass(frozen=True)
class Start:
    """Norms at the start, of the features with the slack's columns, of the readout and of the residual."""

    Z: Interval  # ‖Z(0)‖
    S: Interval  # ‖[Z(0), √λ I]‖
    s: Interval  # σ_min of the same
    a0: Interval  # ‖a(0)‖
    r0: Interval  # ‖r(0)‖, of the part of r that can be fitted
    root: Interval  # √λ
    least: float  # L*, the loss of the part that cannot

    @classmethod
    def of(cls, instance: Instance, slack: float) -> Start:
        """The start of an instance, with the slack's columns."""
        found, N, m = instance.equilibria.spectrum, instance.N, instance.model.width
        # In a linear family only the part of r in col(Φ) moves, so that m singular values are enough.
        s = found.sigma_min if m >= N or _projects(instance, slack) else Interval(0.0)
        more = Interval(slack)
        reachable = reachable_targets(instance, slack)
        return cls(
            Z=found.norm,
            S=(found.norm**2 + more).sqrt() if slack else found.norm,
            s=(s**2 + more).sqrt() if slack else s,
            a0=instance.readout_norm,
            r0=_residual(instance, reachable),
            root=more.sqrt(),
            least=reachable.least,
        )

    @property
    def bounds(self) -> tuple[Interval, ...]:
        """S, s, ‖Z‖, ‖a(0)‖, r₀ by the ends that the proof uses: s from below, the others from above."""
        upper = (Interval(v.hi) for v in (self.Z, self.a0, self.r0))
        return Interval(self.S.hi), Interval(max(self.s.lo, 0.0)), *upper

    @property
    def floats(self) -> tuple[float, ...]:
        """The same ends as floats, to search with."""
        return tuple(v.hi for v in self.bounds)


def largest_readout_step(eta: float, S_bar: Any) -> Any:
    """η_a = η/S̄² for ½‖r‖², a little less; of an Interval, a float that is certainly below."""
    largest = SAFETY * eta / S_bar**2
    return max(largest.lo, 0.0) if isinstance(largest, Interval) else largest


# -- what the linear family can fit -------------------------------------------------------------------------


@dataclass(frozen=True)
class Reachable:
    """y, or its projection on col(Φ) where a linear family has N > m and no slack."""

    y: Tensor  # (N, k)
    error: float  # ≥ ‖y − the exact projection‖_F
    least: float  # L*


def _projects(instance: Instance, slack: float) -> bool:
    return instance.facts.spans_injection and slack == 0 and instance.N > instance.model.width


def reachable_targets(instance: Instance, slack: float) -> Reachable:
    """Py for the projection P on col(Φ): r − Pr = Py − y never changes, as col(Z) = col(Φ) for every A.

    ‖Py − ΦM‖ = ‖P(y − ΦM)‖ ≤ ‖Φᵀ(y − ΦM)‖/σ_min(Φ) for any M.
    """
    assert instance.y is not None
    y = instance.y.reshape(instance.N, -1)
    if not _projects(instance, slack):
        return Reachable(y, 0.0, 0.0)
    return instance.keep("reachable targets", lambda: _project(instance.enclosure.injection, y))


def _project(Phi: Tensor, y: Tensor) -> Reachable:
    M = torch.linalg.lstsq(Phi, y, driver="gelsd" if Phi.device.type == "cpu" else None).solution
    fitted = Phi @ M
    rest = y - fitted
    off = product_rounding(Phi, M) + gamma(2) * frobenius(rest)
    pull = frobenius(Phi.T @ rest) + product_rounding(Phi.T, rest) + frobenius(Phi) * off
    sigma = singular_bounds(Phi).sigma_min
    error = (pull / sigma + off).hi if sigma.lo > 0 else math.inf
    return Reachable(fitted, error, float(rest.square().sum()))


def _residual(instance: Instance, reachable: Reachable) -> Interval:
    """‖r(0)‖ = ‖Z* a − y‖_F, with e(0) = 0."""
    if reachable.error == 0:
        return instance.residual_norm
    a = instance.model.readout_weight.reshape(instance.model.width, -1)
    found = instance.Z @ a - reachable.y
    off = product_rounding(instance.Z, a) + gamma(4) * (frobenius(reachable.y) + frobenius(found))
    off += frobenius(a) * instance.equilibria.error + reachable.error
    size = frobenius(found) + Interval.within(off.hi)
    return Interval(max(size.lo, 0.0), size.hi)


# -- the frame of a certificate -----------------------------------------------------------------------------


def independent(claims: Claims, instance: Instance, start: Start) -> Claim:
    """The claim that s > 0, with the slack's columns."""
    N, m = instance.N, instance.model.width
    width = f", or a width of at least {N}" if m < N else ", or removing duplicate and zero rows"
    slack = start.root.hi > 0
    return claims.need(
        "s > 0",
        start.s,
        ">",
        0.0,
        "the features the readout sees are independent" + (" (with slack)" if slack else ""),
        method="a-posteriori bounds on an SVD, less the error of the equilibria",
        remedy="a larger slack" if slack else f"slack > 0, which makes it hold for every N and m{width}",
    )


def loss_factor(instance: Instance) -> float:
    """2 for a family whose loss ‖r‖² has no ½, else 1."""
    return 2.0 if instance.model.natural_loss == "square" else 1.0


def falls(factor: float, start: Start) -> str:
    """The promise in symbols, about the gap where no weights fit y."""
    return f"L(k) ≤ {factor:.6g}^k L(0)" if not start.least else f"L(k) − L* ≤ {factor:.6g}^k (L(0) − L*)"


def training_frame(theorem: Any, instance: Instance, *hypotheses: str) -> dict[str, Any]:
    """What a certificate of either argument states, proved or not."""
    whole = instance.model.natural_loss == "square"
    half = "" if whole else "½"
    loss = "the loss is ‖ŷ − y‖² summed over the samples" if whole else HALF_SQUARE
    if theorem.slack:
        loss = (
            f"the loss is {half}‖Za + √λ e − y‖² over (a, e), λ = {theorem.slack:g}, from e = 0; "
            f"predictions use Za alone"
        )
    gap = ("the promise is on the gap to the least loss",) if _projects(instance, theorem.slack) else ()
    mapped = (FEATURES,) if getattr(instance.model, "feature_map", None) is not None else ()
    steps = "readout and hidden layer move by full-batch steps of their own, both taken at the old point"
    return {
        "theorem": theorem.name,
        "kind": "descent",
        "hypotheses": (
            *(loss, *gap, *mapped, *(hypotheses or (steps, EXACT_GRADIENTS))),
            *(FLOAT64_TIER, *instance.facts.rests_on),
        ),
        "loss": instance.model.natural_loss,
        "options": {k: v for k, v in vars(theorem).items() if v is not None},
        "fingerprint": instance.fingerprint,
    }


# -- where rounding takes over ------------------------------------------------------------------------------


def run_rtol(instance: Instance, rtol: float) -> float:
    """The tolerance of a run's solves: `rtol`, or what the dtype of the weights can reach."""
    return max(rtol, 2 * Stop.reach(instance.original.readout_weight.dtype))


def run_atol(instance: Instance, rtol: float) -> float:
    """The absolute tolerance of a run's solves: `rtol` times the root mean square of the rows of Z(0)."""
    return run_rtol(instance, rtol) * instance.equilibria.frobenius.hi / math.sqrt(instance.N)


@dataclass(frozen=True)
class Along:
    """What is known all along a run: the numbers of section 7 of docs/theory.md."""

    a: Interval  # ≥ ‖a‖
    S: Interval  # ≥ ‖[Z, √λ I]‖
    s: Interval  # ≤ σ_min of the same
    R: Interval  # ≥ the resolvent constant
    given_back: Interval  # ≥ the share of ‖r‖ that the hidden step gives back
    newton: bool  # whether the readout's step is Gauss-Newton's


@dataclass(frozen=True)
class _Rounding:
    """The error e + ρ‖r‖ of a step, with first ≤ ‖r(0)‖; `gap` adds to it if the promise is about a gap."""

    e: Interval
    rho: Interval
    first: Interval
    gap: Interval


def floor(instance: Instance, start: Start, along: Along, spare: Interval, rtol: float) -> float:
    """L(k)/L(0) below which rounding decides: (e/(room·r₀))², as derived in docs/theory.md.

    A step whose error is e + ρ‖r‖ keeps the promise while e ≤ (spare − ρ)‖r‖, spare the part of the
    contraction that exact steps leave unused; and once ‖r‖ is below e/(spare − ρ) it stays there. That may be
    above L(0); it is ∞ where the rounding of a step may undo all of it.
    """
    if not (start.r0.lo > 0 and spare.lo > 0):
        return math.inf
    off = _rounding(instance, start, along, rtol)
    room, first = spare - off.rho, off.first
    if not (room.lo > 0 and first.lo > 0):
        return math.inf
    return ((off.e / (room * first)) ** 2 + off.gap / first**2).hi


class Reach(NamedTuple):
    """Where weights stay along a run: c within δ of its start (`geometry`), ‖a‖ ≤ a and ‖Z‖ ≤ S."""

    delta: Interval
    a: Interval
    S: Interval


def plain_descent(
    claims: Claims,
    instance: Instance,
    along: Reach,
    *,
    exponent: float,
    largest: float,
    rtol: float,
    count: str = "k",
) -> dict[str, Any]:
    """What descent with one step size for all weights promises; if proved, with its floor and tolerances.

    All along the run the weights are within `along`, and σ_min(Z)² ≥ exponent.
    """
    falls = f"L({count}) ≤ (1 − {exponent:.3g} η)^{count} L(0)"
    promise = f"with step size η < {largest:.3g}, {falls}, and equilibria stay unique."
    found = {"exponent": exponent, "max_step_size": largest, "promise": promise}
    if not all(c.holds for c in claims.items if not c.printed):
        return found
    known = {"rtol": run_rtol(instance, rtol), "atol": run_atol(instance, rtol)}
    ball = instance.facts.geometry(instance).ball(along.delta, along.S)
    lowest = _plain_floor(instance, ball, along.a, along.S, exponent, 0.999 * largest, rtol)
    return {**found, "floor": lowest, "constants": known}


def _plain_floor(
    instance: Instance, ball: Ball, a: Interval, S: Interval, exponent: float, step: float, rtol: float
) -> float:
    """‖r⁺‖ ≤ (1 − η·exponent + ηR²a²K)‖r‖ where √(1 − η·exponent)‖r‖ is promised: the rest is spare.

    ρ may take half of it, so that a step of η/c has a floor of at most c² times this one.
    """
    start, eta, least = Start.of(instance, 0.0), Interval(step), Interval(exponent)
    given_back = eta * ball.R**2 * a**2 * ball.K
    spare = (1 - eta * least).sqrt() - 1 + eta * least - given_back
    if not (start.r0.lo > 0 and spare.lo > 0 and (eta * S**2).hi <= 1):
        return math.inf
    off = _rounding(instance, start, Along(a, S, least.sqrt(), ball.R, given_back, newton=False), rtol)
    if not (off.first.lo > 0 and (spare - 2 * off.rho).lo > 0):
        return math.inf
    return ((2 * maximum(off.e / off.first, off.rho) / spare) ** 2).hi


def _rounding(instance: Instance, start: Start, along: Along, rtol: float) -> _Rounding:
    assert instance.y is not None
    at, model, N = instance.enclosure, instance.model, instance.N
    unit = torch.finfo(instance.original.readout_weight.dtype).eps / 2
    sums = lambda terms: Interval(unit * (terms + 4) * 1.01)  # the rounding of a sum of so many terms
    a, y, r0, Z = along.a, frobenius(instance.y), start.r0, instance.equilibria.frobenius + along.s
    hidden = [p for n, p in model.named_parameters() if n != model.readout_name]
    weights = sum((frobenius(p) for p in hidden), frobenius(at.weight))
    # What f(Z) is off by as computed, and by the last rounding of the weights as they are stored.
    rounded = sums(model.width) * frobenius(at.weight) * Z + at.injection_error * Interval(unit * 2.0**53)
    rounded += sums(2) * weights * (Z + instance.X_frobenius)
    amplified = 2 * (1 + at.weight_norm * along.R)
    solved = amplified * (2 * run_rtol(instance, rtol) * Z + rounded)  # ≥ ‖Z − Z*‖_F
    kept = r0 + Z * a + y if start.root.hi > 0 else Interval(0.0)  # ≥ ‖√λ e‖ = ‖r − Za + y‖
    measured = a * solved + sums(model.width) * Z * a + sums(4) * (y + r0 + kept)
    stored = sums(2) * (along.S * a + kept)
    reachable = reachable_targets(instance, float((start.root**2).hi))
    e = 4 * measured + stored + reachable.error
    conditioned = along.S / along.s if along.newton else Interval(1.0)
    relative = (solved / along.S + sums(N + model.width) * (Z / along.S)) * conditioned
    relative += 8 * sums(N + model.width) * conditioned + 4 * sums(y_terms := instance.y.numel())
    relative += along.given_back * (2 * solved / Z + sums(model.width) * along.R)
    # Near L* > 0 the loss itself is rounded, and errors of r off col(Z) count in the first order. In a linear
    # family, whose equilibria are solved directly, these errors are rounding alone.
    least = Interval(reachable.least).sqrt()
    off = a * amplified * rounded + sums(model.width) * Z * a + sums(4) * (y + r0)
    gap = 2 * least * off + 2 * sums(y_terms) * least**2
    return _Rounding(e, relative, r0.lo - measured, gap)
