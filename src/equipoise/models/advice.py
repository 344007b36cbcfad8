"""What to do about a Diagnosis, in plain words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..solve import Status
from .choice import Trial, best_of

if TYPE_CHECKING:
    from .diagnose import Diagnosis

_EXACT = 1e-5  # a gradient that is nearer than this to finite differences is right
_CLOSE = 0.95  # a spectral radius above this makes everything slow
_SHRINK = (
    "start with smaller weights, put torch.nn.utils.parametrizations.spectral_norm on them, or add "
    "eq.jacobian_penalty to the loss"
)


def advise(d: Diagnosis, not_finite: Sequence[str]) -> list[str]:
    """Sentences about the solver, the map and the gradient; what is `not_finite` comes first."""
    if not d.rows:
        return ["The batch is empty, so there is nothing to diagnose."]
    lines = [f"Mend this first. Not finite: {'; '.join(not_finite)}."] if not_finite else []
    return [*lines, *_on_solver(d), *_on_map(d), *_on_gradient(d)]


def _on_solver(d: Diagnosis) -> list[str]:
    own, best = d.trials[0], best_of(d.trials)
    price = f"{1e3 * best.seconds:.1f} ms and {best.cost} evaluations and products"
    if own.solves_all:
        if best is not own and best.seconds <= 0.7 * own.seconds:
            return [
                f"Every sample converges. {best.name} is faster here: {price} instead of "
                f"{1e3 * own.seconds:.1f} ms and {own.cost}."
            ]
        return [f"Every sample converges, and {own.name} is a good choice here."]
    if best.solves_all:
        return [
            f"{own.name} fails on {d.rows - own.converged} of {d.rows} samples, but the tolerance is within "
            f"reach: take {best.name}, which solves all in {price}."
        ]
    lines = [f"No solver does better than {own.name}: {own.converged} of {d.rows} samples."]
    if best.converged > own.converged:
        lines = [
            f"No solver solves every sample. {best.name} solves most, {best.converged} of {d.rows}. In a "
            f"chain, solver=(…, {best.name}), each is tried on the rows on which the one before failed."
        ]
    return lines + _on_tolerance(d, best)


def _on_tolerance(d: Diagnosis, best: Trial) -> list[str]:
    failed = ~best.solution.converged
    statuses = {Status(int(s)) for s in best.solution.status[failed]}
    reached, q = float(best.solution.relative_residual[failed].max()), d.contraction_estimate
    if statuses <= {Status.stalled, Status.max_steps} and reached < 1e3 * torch.finfo(d.dtype).eps:
        rtol = 10.0 ** math.ceil(math.log10(reached))
        return [
            f"The residuals are at the level of rounding: the tolerance is out of reach in {d.dtype}. "
            f"Ask for rtol={rtol:.0e}, or solve in float64."
        ]
    if Status.max_steps in statuses and q is not None and q < 1:
        return [
            f"The residuals were still falling, by a factor of about {q:.3f} a Picard step, when max_steps="
            f"{d.solution.stop.max_steps} was reached: a larger one may do."
        ]
    return ["To train such a cell as it is, on_failure='count' uses and counts the samples that fail."]


def _on_map(d: Diagnosis) -> list[str]:
    radius, norm = d.spectral_radius_estimate, d.jacobian_norm_estimate
    if radius is None or norm is None:
        return []
    if radius >= 1 and not d.at_equilibrium:
        return [f"The map drives its iterates apart, ρ(J) ≈ {radius:.2f}. To make it contract, {_SHRINK}."]
    if radius >= 1:
        return [
            f"Plain iteration leaves these equilibria, ρ(J) ≈ {radius:.2f}, and a sample may have several of "
            f"them. To make the map contract, {_SHRINK}."
        ]
    if radius > _CLOSE:
        return [
            f"The map hardly contracts, ρ(J) ≈ {radius:.3f}: solves are slow, and gradients may be about "
            f"{1 / (1 - radius):.0f} times those of one evaluation. To keep away from 1, {_SHRINK}."
        ]
    if max(norm, d.stretch_estimate or 0.0) >= 1:
        return [
            f"The equilibria attract nearby states, ρ(J) ≈ {radius:.2f}, but some states move apart, ‖J‖ ≈ "
            f"{norm:.2f}: no contraction ensures that each sample has only one equilibrium."
        ]
    return ["Nothing measured here speaks against a contraction. That is no proof; eq.certify gives proofs."]


def _on_gradient(d: Diagnosis) -> list[str]:
    if d.audit is None:
        return [f"The gradient was not audited: {d.no_audit}."]
    own = [row for row in d.audit.rows if row.mode == d.audit.own]
    worst = max(own, key=lambda row: math.inf if math.isnan(row.error) else row.error)
    if all(row.ok(_EXACT) for row in own):
        return [f"The layer's gradient is right: within {worst.error:.0e} of finite differences."]
    if not worst.compared:
        return [f"The gradient of {worst.tensor} is not known: each coordinate tried is at a kink."]
    exact = [row for row in d.audit.rows if row.mode == "Implicit"]
    remedy = " Implicit() is exact here." if exact and all(row.ok(_EXACT) for row in exact) else ""
    return [
        f"The layer's gradient, {d.audit.own}, is off by {worst.error:.1%} in {worst.tensor}, with a cosine "
        f"of {worst.cosine:.3f}.{remedy}"
    ]
