"""The loop that every solver runs in, and chains of solvers: each row of a batch ends on its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .norms import norm_dtype, row_distances, row_norms
from .problem import Map
from .progress import Progress, size_at
from .solution import Point, Status, Stop, Trace
from .solver import Solver

# A row that failed at a relative residual below this came near: the next solver goes on from there.
_NEAR = 1e-2

Estimates = list[tuple[Tensor, Callable[[Tensor], Tensor]]]


@dataclass
class RowsFound:
    """What the loop found for every row."""

    value: Tensor  # (N, D)
    status: Tensor  # (N,)
    residual: Tensor  # (N,)
    scale: Tensor  # (N,)
    steps: Tensor  # (N,)
    floor: Tensor  # (N,)
    dropped: bool = False  # whether f was last evaluated without ended rows, or at other states of them
    rate: float = 1.0  # factor by which residuals fell in each step
    image: Tensor | None = None  # f(value), if all rows ended at the same check
    estimates: Estimates = field(default_factory=list)  # rows, and an estimate of (I − ∂f/∂z)⁻ᵀ for each

    @classmethod
    def unsolved(cls, z: Tensor) -> RowsFound:
        """The result before any row was solved."""
        n = z.shape[0]
        nan = torch.full((n,), math.nan, dtype=norm_dtype(z), device=z.device)
        steps = torch.zeros(n, dtype=torch.int64, device=z.device)
        status = torch.full((n,), int(Status.max_steps), dtype=torch.int8, device=z.device)
        return cls(torch.empty_like(z), status, nan, nan.clone(), steps, torch.zeros_like(nan))

    def take(self, rows: Tensor) -> RowsFound:
        """The result for some of the rows."""
        value, status, residual, scale, steps, floor = (
            t[rows] for t in (self.value, self.status, self.residual, self.scale, self.steps, self.floor)
        )
        return RowsFound(value, status, residual, scale, steps, floor)

    def put(self, rows: Tensor, other: RowsFound) -> None:
        """Take over the result for some of the rows where it is better; their steps add up."""
        self.steps[rows] += other.steps
        old = self.residual[rows]
        better = (other.status == Status.converged) | (other.residual < old) | ~torch.isfinite(old)
        put, estimates = rows, other.estimates
        rows, other = rows[better], other.take(better)
        self.value[rows], self.status[rows] = other.value, other.status
        self.residual[rows], self.scale[rows] = other.residual, other.scale
        self.floor[rows] = other.floor
        self.image = None
        self.estimates += [(put[own], estimate) for own, estimate in estimates]

    def settle(self, ended: Tensor, z: Tensor, residual: Tensor, scale: Tensor, tolerance: Tensor) -> None:
        """Take the present state of rows that converged before others, if it still meets the tolerance.

        f has seen all rows to the end and may mix them, so only one state of the whole batch can be a
        solution.
        """
        still = (self.status == Status.converged) & (residual <= tolerance)
        self.value = torch.where(still[:, None], z, self.value)
        self.residual = torch.where(still, residual, self.residual)
        self.scale = torch.where(still, scale, self.scale)
        self.dropped |= not bool((still | ended).all())


@dataclass
class _Best:
    """The state of each row that had the lowest residual so far: what a row that fails hands back."""

    value: Tensor  # (n, D)
    residual: Tensor  # (n,)
    scale: Tensor  # (n,)

    def take(self, rows: Tensor) -> _Best:
        return _Best(self.value[rows], self.residual[rows], self.scale[rows])

    def see(self, z: Tensor, residual: Tensor, scale: Tensor) -> None:
        """Keep what is better; where all rows are, as in most steps of most solves, nothing is copied."""
        better = residual < self.residual
        count = int(torch.count_nonzero(better))
        if count == len(better):
            self.value, self.residual, self.scale = z, residual, scale
        elif count:
            self.value = torch.where(better[:, None], z, self.value)
            self.residual = torch.where(better, residual, self.residual)
            self.scale = torch.where(better, scale, self.scale)


@dataclass(frozen=True)
class LoopOptions:
    """How the loop is run, besides the solver and the stopping test."""

    record: Trace | None = None
    ahead: bool = False  # the answer will be verified elsewhere: a row may end with an unchecked step
    ours: bool = False  # nobody else holds the start: it may become the answer itself
    rate: float = 1.0  # factor by which residuals are known to fall in each step
    begun: Tensor | None = None  # (N,) the size of the image of the user's start, if this solve has another
    history: bool = False  # whether what the steps tell of (I − ∂f/∂z)⁻ᵀ is kept
    rescue: bool = False  # later solvers take over rows that stalled or grew, within max_steps in all


def run_chain(
    f: Map, z: Tensor, chain: list[Solver], stop: Stop, run: LoopOptions, before: RowsFound | None = None
) -> RowsFound:
    """Run each solver on the rows on which the one before it failed; the first one starts from `before`."""
    if before is None:
        outcome = iterate(f, z, chain[0], stop, run)
    else:
        begun, z = _begun(f, z), before.value
        known = replace(run, ahead=False, ours=True, rate=before.rate, begun=begun)
        outcome = iterate(f, z, chain[0], stop, known)
        outcome.steps += before.steps
    previous, limit = chain[0], stop.max_steps
    for solver in chain[1:]:
        lost = outcome.status != Status.converged
        if run.rescue:
            lost &= (outcome.status != Status.max_steps) & (outcome.steps < limit)
        failed = torch.nonzero(lost).flatten()
        if not len(failed):
            break
        if run.rescue:
            stop = replace(stop, max_steps=limit - int(outcome.steps[failed].min()))
        if not solver.applies(f):
            chain.remove(solver)  # it took no part in the answer and is not named in it
            continue
        f.counts.retried += len(failed)
        # Where the failed solver came near, go on from there; else start afresh.
        near = outcome.residual <= _NEAR * outcome.scale  # and so not a NaN
        if previous.selects:
            near |= (outcome.status == Status.max_steps) | (outcome.status == Status.stalled)
        start = torch.where((near | (outcome.status == Status.converged))[:, None], outcome.value, z)
        if f.compactable:
            some = iterate(f.take(failed), start[failed], solver, stop, run, failed)
            outcome.put(failed, some)
        else:
            some = iterate(f, start, solver, stop, run)
            outcome.put(failed, some.take(failed))
        outcome.dropped |= some.dropped or len(failed) < len(z)
        previous = solver
    return outcome


def _begun(f: Map, z: Tensor) -> Tensor | None:
    """The size of f(z) at the user's start; None if it is not asked for, since the size of f(0) is known."""
    if f.affine is not None and bool((row_norms(f.affine.start()) > 0).all()):
        return None
    return size_at(z, row_norms(f(z)))


def iterate(
    f: Map, z: Tensor, solver: Solver, stop: Stop, run: LoopOptions, names: Tensor | None = None
) -> RowsFound:
    """The loop. `names` are the rows' numbers in the user's batch, for the record."""
    out = RowsFound.unsolved(z)
    if z.shape[0]:
        _Iteration(f, z, solver, stop, run, out, names).run()
    return out


class _Iteration:
    """One solver at work on a batch; `rows` are the places in `out` of the rows that have not ended.

    `ahead` saves an evaluation if the answer is verified elsewhere: with a solver whose rate is steady, a row
    ends with the step that should bring it to the tolerance at that rate, although f has not been evaluated
    after that step.
    """

    def __init__(
        self,
        f: Map,
        z: Tensor,
        solver: Solver,
        stop: Stop,
        run: LoopOptions,
        out: RowsFound,
        names: Tensor | None,
    ) -> None:
        self.f, self.z, self.solver, self.stop, self.how, self.out = f, z, solver, stop, run, out
        self.ahead = run.ahead and solver.smooth and solver.uses_value
        self.rows = torch.arange(z.shape[0], device=z.device)
        self.names = self.rows if names is None else names
        self.state: Any = None  # from the first step on: a start that is already good enough needs none
        self.progress = Progress.begin(f, z, run.rate, run.begun)
        self.kept: Tensor | None = None  # the rows that the last check left at work, if it dropped some
        # A closure sees the whole batch, whose rows it may mix: their last states belong together.
        self.alone = f.compactable or len(z) == 1
        self.best: _Best | None = None  # from the first check on

    def run(self) -> None:
        solver, stop, due = self.solver, self.stop, 0
        for k in range(stop.max_steps + 1):
            last = k == stop.max_steps
            self.ahead = self.ahead and not last
            check = k >= due or last or self.how.record is not None
            fz = self.f(self.z) if check or solver.uses_value else self.z
            if check and self._check(k, fz):
                break
            if check:
                due = k + self.progress.wait(solver)
            if not (check and self.ahead):
                self._step(fz if self.kept is None or not check else fz[self.kept])
        self.f.working, self.f.gap, self.out.rate = None, None, self.progress.rate

    def _step(self, fz: Tensor) -> None:
        f, z, solver = self.f, self.z, self.solver
        z, self.state = solver.step(f, z, fz, solver.init(f, z) if self.state is None else self.state)
        self.z = f.rounded(z)

    def _check(self, k: int, fz: Tensor) -> bool:
        """Measure and judge every row at step k; True when all have ended."""
        self.kept = None
        f, progress = self.f, self.progress
        if self.solver.uses_difference:
            f.gap = fz - self.z
            residual, scale = row_norms(f.gap), row_norms(fz)
        else:
            residual, scale = row_distances(fz, self.z), row_norms(fz)
        tolerance = progress.tolerance(k, f, self.z, residual, scale, self.stop)
        if self.best is not None:
            self.best.see(self.z, residual, scale)
        elif self.alone and not self.solver.selects:
            self.best = _Best(self.z, residual, scale)
        if self.ahead:
            self._step(fz)
        if self.how.record is not None:
            keep = slice(None) if f.working is None else f.working
            rows = self.names[self.rows][keep]
            self.how.record.points.append(Point(k, rows, residual[keep], self.z[keep].clone()))
        status = progress.judge(k, self.z, fz, residual, tolerance, self.stop, self.ahead)
        if status is None:
            return False
        ended = (status >= 0) & ~progress.done
        count = int(torch.count_nonzero(ended))
        if not count:
            return False
        if count == len(self.out.value):
            self._keep_all(k, ended, status, fz, residual, scale)
            return True
        self._keep(k, ended, status, residual, scale)
        progress.done |= ended
        at_work = torch.nonzero(~progress.done).flatten()
        if not len(at_work):
            if count < len(self.rows) and not self.ahead:
                if f.affine is not None or self.out.dropped:
                    self.out.dropped = True
                else:
                    self.out.settle(ended, self.z, residual, scale, tolerance)
            return True
        self._drop(at_work)
        return False

    def _keep_all(
        self, k: int, ended: Tensor, status: Tensor, fz: Tensor, residual: Tensor, scale: Tensor
    ) -> None:
        """The result where all rows end at once: nothing is copied but z, if somebody else may hold it."""
        out = self.out
        out.value = self.z if self.how.ours and self.f.affine is not None else self.z.clone()
        out.image = None if self.ahead else fz
        out.status, out.residual, out.scale, out.floor = status, residual, scale, self.progress.floor
        out.steps.fill_(k + self.ahead)
        self._finish(self.rows, ended)

    def _keep(self, k: int, ended: Tensor, status: Tensor, residual: Tensor, scale: Tensor) -> None:
        """Write down the result of the rows that have ended."""
        out, at = self.out, self.rows[ended]
        out.value[at] = self.z[ended]
        out.status[at], out.steps[at] = status[ended], k + self.ahead
        out.residual[at], out.scale[at] = residual[ended], scale[ended]
        out.floor[at] = self.progress.floor[ended]
        self._finish(at, ended)

    def _finish(self, at: Tensor, ended: Tensor) -> None:
        """What is handed back of rows that have ended besides their last state."""
        self._hand_back_best(at, ended)
        if self.how.history and self.state is not None:
            estimate = self.solver.adjoint_estimate(self.state, torch.nonzero(ended).flatten())
            self.out.estimates += [] if estimate is None else [(at, estimate)]

    def _hand_back_best(self, at: Tensor, ended: Tensor) -> None:
        """The best state in place of the last one, for rows that have ended in a failure."""
        out, best = self.out, self.best
        if best is None or best.value is self.z:  # the last state is the best one of every row
            return
        failed = (out.status[at] != Status.converged) & (out.status[at] != Status.nonfinite)
        if not bool(failed.any()):
            return
        best = best.take(ended)
        # With `ahead` the last state has not been evaluated, and its residual is that of the best one.
        better = failed & torch.isfinite(best.residual) & ~(best.residual > out.residual[at])
        if not self.ahead:
            better &= best.residual != out.residual[at]
        if not bool(better.any()):
            return
        at, best = at[better], best.take(better)
        out.value = out.value.index_copy(0, at, best.value)
        out.residual[at], out.scale[at], out.image = best.residual, best.scale, None
        out.dropped |= len(out.value) > 1  # f has not seen these states together

    def _drop(self, at_work: Tensor) -> None:
        """Drop the rows that have ended from the batch, if that pays.

        What was solved without them is confirmed by an evaluation of the whole batch in the end, where none
        is made anyway: that is one more, which the steps that are left must make up for.
        """
        share = 1 - len(at_work) / len(self.rows)
        confirmed = self.out.dropped or self.how.ahead or self.f.affine is not None
        left = max(self.progress.left(), 1.0) + 0.5  # one step at least, and often more than forecast
        pays = share >= self.f.worth and (confirmed or share * left >= 1)
        if not (self.f.compactable and pays):
            self.f.working = ~self.progress.done
            return
        self.f, self.progress, self.out.dropped = self.f.take(at_work), self.progress.take(at_work), True
        self.state = self.state and self.state.take(at_work)
        self.z, self.rows, self.kept = self.z[at_work], self.rows[at_work], at_work
        self.best = self.best and self.best.take(at_work)
