"""Find z = f(z): the one loop that every solver runs in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from .anderson import Anderson
from .autocast import compute_dtype, full_precision
from .error import Solved
from .norms import norm_dtype, row_distances, row_norms
from .problem import AffineMap, Map, make_map
from .progress import Progress
from .solution import Point, Solution, State, Status, Stop, Trace
from .solver import Solver

Precision = Literal["native", "mixed"]

# Rows that have ended are dropped once they are this share of the batch: below it, dropping costs more
# (a copy of the batch and of the solver's memory) than the evaluations it saves.
_COMPACT_SHARE = 0.15
# A row that failed at a relative residual below this came near: the next solver goes on from there.
_NEAR = 1e-2


def fixed_point(
    f: Callable[..., State],
    z0: State | Solution | None = None,
    args: Sequence[Any] = (),
    shared: Sequence[Any] = (),
    *,
    solver: Solver | Sequence[Solver] | None = None,
    stop: Stop | None = None,
    precision: Precision = "native",
    trace: bool = False,
) -> Solution:
    """Solve z = f(z, *args, *shared) for every sample of a batch.

    The state is a tensor (N, …) or a tuple of such tensors. Each sample has its own stopping test, status
    and step count; one that ends is frozen, and dropped from the batch when that saves work.

    Args:
        f: the map; its output is checked against z at every call. An `AffineMap` also offers its parts.
        z0: where to start, or an earlier Solution. An AffineMap may leave it out: σ(b) is used.
        args: batch-first arguments of f: compacted with the batch, and cast with the precision.
        shared: arguments of f that are not batched: cast with the precision. A bare closure needs neither,
            but its samples are then never dropped, since a batch it holds would no longer fit.
        solver: `Anderson()` by default; a sequence is tried in turn on the rows that failed.
        stop: the tolerance and the limit on steps, by default that of the dtype.
        precision: "mixed" iterates in float32, then polishes and verifies in float64.
        trace: keep the iterates and residuals of every step.

    Returns a Solution; nothing is raised for samples that failed: ask its `status`, or call
    `.raise_if_failed()`.
    """
    return _solve(f, z0, args, shared, solver, stop, precision, trace)


def approach(
    f: Callable[..., State],
    z0: State,
    args: Sequence[Any] = (),
    shared: Sequence[Any] = (),
    *,
    solver: Solver | Sequence[Solver] | None = None,
    stop: Stop | None = None,
) -> Solution:
    """`fixed_point` for callers that evaluate f at the answer anyway: a row may end with a step that should
    bring it to tolerance, unseen. Its status is a forecast until `confirm`."""
    return _solve(f, z0, args, shared, solver, stop, ahead=True)


def confirm(found: Solution, image: Tensor) -> Solution:
    """What `approach` found, judged by f at it: true residuals; a row that falls short is `max_steps`."""
    assert isinstance(found.value, Tensor)
    residual, scale = row_distances(image, found.value), row_norms(image)
    short = found.converged & ~(residual <= found.stop.tolerance(scale, found.floor))
    status = found.status.masked_fill(short, int(Status.max_steps))
    found.counts.evaluations += 1
    found.counts.row_evaluations += len(image)
    return replace(found, residual=residual, scale=scale, status=status, image=image)


def finish(seen: Solution, forecast: Solution, again: Solution) -> Solution:
    """What was seen of a forecast; the rows that fell short of it as a second, verified solve has them."""
    assert isinstance(again.value, Tensor)
    assert isinstance(seen.value, Tensor)
    short, counts = (seen.status != forecast.status) | (again.status == Status.coupled), seen.counts
    counts += again.counts
    pick = lambda new, old: torch.where(short, new, old)
    return replace(
        seen,
        value=torch.where(short[:, None], again.value, seen.value),
        status=pick(again.status, seen.status),
        residual=pick(again.residual, seen.residual),
        scale=pick(again.scale, seen.scale),
        steps=seen.steps + pick(again.steps, 0),
        counts=counts,
        image=None,
    )


def _solve(
    f: Callable[..., State],
    z0: State | Solution | None,
    args: Sequence[Any],
    shared: Sequence[Any],
    solver: Solver | Sequence[Solver] | None,
    stop: Stop | None,
    precision: Precision = "native",
    trace: bool = False,
    ahead: bool = False,
) -> Solution:
    chain = checked_chain(solver)
    if isinstance(z0, Solution):
        z0 = z0.value
    if z0 is None:
        if not isinstance(f, AffineMap):
            raise ValueError("z0 is required: only an AffineMap has a start of its own, σ(b).")
        z0 = f.start()
    problem = make_map(f, z0, args, shared)
    for one in chain:
        if one.affine_only and problem.affine is None:
            raise TypeError(
                f"{type(one).__name__} splits an AffineMap(weight, bias, activation). "
                f"Got {type(f).__name__} instead; use Anderson or Newton for a general f."
            )
        one.require(problem)
    with torch.no_grad():
        z = problem.layout.flat(z0)
        if precision not in ("native", "mixed"):
            raise ValueError(f"precision must be 'native' or 'mixed'. Got {precision!r} instead.")
        dtype, record = z.dtype, Trace() if trace else None
        with full_precision(z) if problem.affine is not None else nullcontext():
            limit = (stop or Stop()).resolve(compute_dtype(z))
            if norm_dtype(z) != dtype:
                problem, z = problem.widened(dtype), z.to(norm_dtype(z))
            before = _single_precision(problem, z, chain[0], limit) if precision == "mixed" else None
            outcome = _run_chain(problem, z, chain, limit, record, before, ahead)
            if outcome.dropped and not ahead and problem.affine is None:
                _confirm_batch(problem, outcome, limit)
    return Solution(
        value=problem.layout.unflat(outcome.value.to(dtype)),
        status=outcome.status,
        residual=outcome.residual,
        scale=outcome.scale,
        steps=outcome.steps,
        counts=problem.counts,
        stop=limit,
        solver=" → ".join(type(one).__name__ for one in chain),
        trace=record,
        floor=outcome.floor,
        image=None if outcome.image is None else outcome.image.to(dtype),
        solved=Solved.of(f) if isinstance(f, AffineMap) else None,
    )


def verify(
    f: Callable[..., State],
    z: State,
    args: Sequence[Any] = (),
    shared: Sequence[Any] = (),
    *,
    stop: Stop | None = None,
) -> Solution:
    """Judge a state by one evaluation: true residuals, relative to ‖f(z)‖ alone, and a status a sample."""
    problem = make_map(f, z, args, shared)
    with torch.no_grad():
        flat = problem.layout.flat(z)
        with full_precision(flat) if problem.affine is not None else nullcontext():
            limit = (stop or Stop()).resolve(compute_dtype(flat))
            fz = problem(flat)
        residual, scale = row_norms(fz - flat), row_norms(fz)
        status = torch.full((len(flat),), int(Status.max_steps), dtype=torch.int8, device=flat.device)
        status[residual <= limit.tolerance(scale)] = int(Status.converged)
        status[~torch.isfinite(residual + scale)] = int(Status.nonfinite)
    steps = torch.zeros(len(flat), dtype=torch.int64, device=flat.device)
    value = problem.layout.unflat(flat.detach())
    return Solution(value, status, residual, scale, steps, problem.counts, limit, "verification")


def extrapolate(z: Tensor, previous: Tensor | None) -> Tensor:
    """2z_t − z_{t−1}: the start that follows a path of equilibria, second order in the step."""
    return z if previous is None else torch.lerp(previous, z, 2.0)


@dataclass
class _Outcome:
    value: Tensor  # (N, D)
    status: Tensor  # (N,)
    residual: Tensor  # (N,)
    scale: Tensor  # (N,)
    steps: Tensor  # (N,)
    floor: Tensor  # (N,)
    dropped: bool = False  # whether f was last evaluated without rows that had ended, or elsewhere in them
    rate: float = 1.0  # at which residuals fell, a step
    image: Tensor | None = None  # f(value), where all rows ended at one check

    @classmethod
    def unsolved(cls, z: Tensor) -> _Outcome:
        n = z.shape[0]
        nan = torch.full((n,), math.nan, dtype=norm_dtype(z), device=z.device)
        steps = torch.zeros(n, dtype=torch.int64, device=z.device)
        status = torch.full((n,), int(Status.max_steps), dtype=torch.int8, device=z.device)
        return cls(torch.empty_like(z), status, nan, nan.clone(), steps, torch.zeros_like(nan))

    def take(self, rows: Tensor) -> _Outcome:
        value, status, residual, scale, steps, floor = (
            t[rows] for t in (self.value, self.status, self.residual, self.scale, self.steps, self.floor)
        )
        return _Outcome(value, status, residual, scale, steps, floor)

    def put(self, rows: Tensor, other: _Outcome) -> None:
        self.value[rows], self.status[rows] = other.value, other.status
        self.residual[rows], self.scale[rows] = other.residual, other.scale
        self.floor[rows] = other.floor
        self.steps[rows] += other.steps
        self.image = None

    def settle(self, ended: Tensor, z: Tensor, residual: Tensor, scale: Tensor, tolerance: Tensor) -> None:
        """Take rows that converged before others as they are now, where they still are at tolerance.

        f has seen all rows to the end, and may mix them: what holds is one state of the whole batch.
        """
        still = (self.status == Status.converged) & (residual <= tolerance)
        self.value = torch.where(still[:, None], z, self.value)
        self.residual = torch.where(still, residual, self.residual)
        self.scale = torch.where(still, scale, self.scale)
        self.dropped = not bool((still | ended).all())


def _run_chain(
    f: Map,
    z: Tensor,
    chain: list[Solver],
    stop: Stop,
    record: Trace | None,
    before: _Outcome | None,
    ahead: bool,
) -> _Outcome:
    """Each solver in turn on the rows the one before it failed on; the first goes on from `before`."""
    if before is None:
        outcome = _iterate(f, z, chain[0], stop, record, ahead=ahead)
    else:
        z = before.value
        outcome = _iterate(f, z, chain[0], stop, record, ours=len(chain) == 1, rate=before.rate)
        outcome.steps += before.steps
    for previous, solver in pairwise(chain):
        failed = torch.nonzero(outcome.status != Status.converged).flatten()
        if not len(failed):
            break
        f.counts.retried += len(failed)
        # Where the failed solver came near, go on from there; else start afresh.
        near = outcome.residual <= _NEAR * outcome.scale  # and so not a NaN
        if previous.selects:
            near |= (outcome.status == Status.max_steps) | (outcome.status == Status.stalled)
        start = torch.where((near | (outcome.status == Status.converged))[:, None], outcome.value, z)
        if f.compactable:
            some = _iterate(f.take(failed), start[failed], solver, stop, record, failed, ahead=ahead)
            outcome.put(failed, some)
        else:
            some = _iterate(f, start, solver, stop, record, ahead=ahead)
            outcome.put(failed, some.take(failed))
        outcome.dropped |= some.dropped or len(failed) < len(z)
    return outcome


def _iterate(
    f: Map,
    z: Tensor,
    solver: Solver,
    stop: Stop,
    record: Trace | None = None,
    names: Tensor | None = None,
    ours: bool = False,
    ahead: bool = False,
    rate: float = 1.0,
) -> _Outcome:
    """The loop. `names` are the rows' numbers in the user's batch, for the record; a start that is `ours` may
    become the answer itself.

    `ahead` spares an evaluation where the answer will be verified elsewhere: with a solver whose rate is
    steady a row ends with the step that should bring it to tolerance at that rate, and that step is its
    value, unseen.
    """
    ahead = ahead and solver.smooth and solver.uses_value
    out = _Outcome.unsolved(z)
    rows = torch.arange(z.shape[0], device=z.device)  # where each row at work stands in `out`
    if not len(rows):
        return out
    names = rows if names is None else names
    state: Any = None  # of the solver, from its first step on: a start that is already good enough needs none
    progress = Progress.begin(f, z, rate)
    due = 0
    for k in range(stop.max_steps + 1):
        ahead = ahead and k < stop.max_steps
        check = k >= due or k == stop.max_steps or record is not None
        fz = f(z) if check or solver.uses_value else z
        if check:
            residual, scale = row_distances(fz, z), row_norms(fz)
            tolerance = progress.tolerance(k, f, z, residual, scale, stop)
        if ahead:
            z, state = solver.step(f, z, fz, solver.init(f, z) if state is None else state)
            z = f.rounded(z)
        if check:
            if record is not None:
                keep = slice(None) if f.working is None else f.working
                record.points.append(Point(k, names[rows][keep], residual[keep], z[keep].clone()))
            status = progress.judge(k, z, fz, residual, tolerance, stop, ahead)
            ended = None if status is None else (status >= 0) & ~progress.done
            if status is not None and ended is not None and bool(ended.any()):
                at = rows[ended]
                if len(at) < len(out.value):
                    out.value[at] = z[ended]
                else:  # all at once: no copy where z is surely nobody else's
                    out.value = z if ours and f.affine is not None else z.clone()
                    out.image = None if ahead else fz
                out.status[at], out.steps[at] = status[ended], k + ahead
                out.residual[at], out.scale[at] = residual[ended], scale[ended]
                out.floor[at] = progress.floor[ended]
                progress.done |= ended
                at_work = torch.nonzero(~progress.done).flatten()
                if not len(at_work):
                    if len(at) < len(rows) and not ahead:
                        if f.compactable:
                            out.dropped = True
                        else:
                            out.settle(ended, z, residual, scale, tolerance)
                    break
                if f.compactable and len(at_work) <= (1 - _COMPACT_SHARE) * len(rows):
                    f, progress, out.dropped = f.take(at_work), progress.take(at_work), True
                    state = state and state.take(at_work)
                    z, fz, rows = z[at_work], fz if ahead else fz[at_work], rows[at_work]
                else:
                    f.working = ~progress.done
            due = k + (progress.wait(not solver.uses_value) if solver.smooth else 1)
        if not ahead:
            z, state = solver.step(f, z, fz, solver.init(f, z) if state is None else state)
            z = f.rounded(z)
    f.working, out.rate = None, progress.rate
    return out


def _confirm_batch(f: Map, outcome: _Outcome, stop: Stop) -> None:
    """Samples were dropped while others went on: f of the whole batch tells whether it mixes samples.

    What another size of the batch rounds differently is let pass.
    """
    outcome.image = fz = f(outcome.value)
    residual, scale = row_distances(fz, outcome.value), row_norms(fz)
    tolerance = stop.tolerance(scale, outcome.floor)
    rounding = Stop.reach(compute_dtype(outcome.value)) * scale
    found = outcome.status == Status.converged
    close = found & (residual > tolerance) & (residual <= tolerance + rounding)
    outcome.status[found & ~(residual <= tolerance) & ~close] = int(Status.coupled)
    outcome.residual = torch.where(close, outcome.residual, residual)
    outcome.scale = torch.where(close, outcome.scale, scale)


def _single_precision(f: Map, z: Tensor, solver: Solver, stop: Stop) -> _Outcome:
    """Where float32 iteration gets to, its value in float64 again: the start of the verified solve."""
    if z.dtype != torch.float64:
        raise ValueError(f"precision='mixed' polishes in float64: z0 must be float64. Got {z.dtype} instead.")
    if not f.compactable and not f.shared:
        raise ValueError(
            "precision='mixed' cannot cast what a bare closure holds: pass its tensors as args= or shared=."
        )
    single = torch.float32
    assert stop.rtol is not None
    reach = Stop.reach(single) * (1 if solver.uses_value else 4)  # a step of its own rounds more than f
    rtol = max((0.8 if solver.smooth and solver.uses_value else 0.5) * stop.rtol, reach)
    near = replace(stop, rtol=rtol, patience=min(stop.patience, 4))
    outcome = _iterate(f.to(single), z.to(single), solver, near, ours=True, ahead=True)
    lost = ~torch.isfinite(outcome.value.sum(dim=1))
    outcome.value = outcome.value.double()
    if bool(lost.any()):
        outcome.value[lost] = z[lost]
    return outcome


def checked_chain(solver: Solver | Sequence[Solver] | None) -> list[Solver]:
    chain: list[Solver] = []
    if solver is None:
        chain = [Anderson()]
    else:
        chain = list(solver) if isinstance(solver, list | tuple) else [solver]  # type: ignore[list-item]
    for one in chain:
        if not isinstance(one, Solver):
            hint = f"{one.__name__}()" if isinstance(one, type) and issubclass(one, Solver) else "Anderson()"
            raise TypeError(f"solver must be a Solver such as {hint}. Got {one!r} instead.")
    if not chain:
        raise ValueError("a chain of solvers must hold at least one.")
    return chain
