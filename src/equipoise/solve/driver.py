"""Find z = f(z): the one loop that every solver runs in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .anderson import Anderson
from .autocast import compute_dtype, full_precision
from .error import Solved
from .loop import Estimates, LoopOptions, RowsFound, iterate, run_chain
from .norms import norm_dtype, row_distances, row_norms
from .picard import Picard
from .problem import AffineMap, Map, make_map
from .refinement import refined
from .solution import Solution, State, Status, Stop, Trace
from .solver import Solver

Precision = Literal["auto", "native", "mixed"]

# From this many entries of W times samples on, products in float32 save more than a second loop costs.
_LARGE = 2**22

# Rows on which Anderson stalls, cycling about a solution, often settle by plain steps, damped a little.
DEFAULT_CHAIN: tuple[Solver, ...] = (Anderson(), Picard(0.9))


def fixed_point(
    f: Callable[..., State],
    z0: State | Solution | None = None,
    args: Sequence[Any] = (),
    shared: Sequence[Any] = (),
    *,
    solver: Solver | Sequence[Solver] | None = None,
    stop: Stop | None = None,
    precision: Precision = "auto",
    trace: bool = False,
) -> Solution:
    """Solve z = f(z, *args, *shared) for every sample of a batch.

    The state is a tensor (N, …) or a tuple of such tensors. Each sample has its own stopping test, status
    and step count. A sample that has ended is frozen, and dropped from the batch if that saves work.

    Args:
        f: the map; its output is checked against z at every call. An `AffineMap` also offers its parts.
        z0: where to start, or an earlier Solution. An AffineMap may leave it out: σ(b) is used.
        args: batch-first arguments of f. Their rows are dropped with the batch, and they are cast with the
            precision.
        shared: arguments of f that all samples share; they are cast with the precision. A closure over its
            tensors needs neither, but its samples are never dropped, since the batch it holds would no longer
            fit.
        solver: a solver, or a sequence of solvers, each of which is tried on the rows that failed before. By
            default it is `Anderson()`, and `Picard(0.9)` on the rows on which Anderson stalls or diverges,
            with `max_steps` for both together.
        stop: the tolerance and the limit on steps, by default that of the dtype.
        precision: "mixed" iterates in float32, then finishes and verifies in float64 with the same stopping
            test; "native" stays in the dtype of z0; "auto" is "mixed" if that is sure to be faster, which is
            so for a large AffineMap in float64 whose solver is Picard or a splitting, without a trace. Picard
            then takes most of its steps in bfloat16, if the processor multiplies in it.
        trace: keep the iterates and residuals of every step.

    Returns a Solution. Samples that failed raise no error: look at its `status`, or call
    `.raise_if_failed()`. Of such a sample it holds the state with the lowest residual that was seen, or the
    last one where f is a closure over a batch, whose samples may belong together, and where a solver
    chooses among equilibria.
    """
    return _solve(f, z0, args, shared, solver, stop, LoopOptions(Trace() if trace else None), precision)


def approach(
    f: Callable[..., State],
    z0: State,
    args: Sequence[Any] = (),
    shared: Sequence[Any] = (),
    *,
    solver: Solver | Sequence[Solver] | None = None,
    stop: Stop | None = None,
    history: bool = False,
) -> Solution:
    """`fixed_point` for callers that evaluate f at the answer anyway: a row may end with a step that should
    bring it to the tolerance, before f is evaluated there. Its status is a forecast until `confirm`. With
    `history` the Solution holds the `inverse` that the steps of the solvers tell of."""
    return _solve(f, z0, args, shared, solver, stop, LoopOptions(ahead=True, history=history))


def confirm(found: Solution, image: Tensor) -> Solution:
    """Judge what `approach` found by its true residuals; rows that fall short get the status `max_steps`."""
    assert isinstance(found.value, Tensor)
    residual, scale = row_distances(image, found.value), row_norms(image)
    short = found.converged & ~(residual <= found.stop.tolerance(scale, found.floor))
    status = found.status.masked_fill(short, int(Status.max_steps))
    found.counts.evaluations += 1
    found.counts.row_evaluations += len(image)
    return replace(found, residual=residual, scale=scale, status=status, image=image)


def finish(seen: Solution, again: Solution) -> Solution:
    """What a second, verified solve found, which went on from a forecast that fell short.

    All of its rows are taken: if f mixes them, what was seen of one holds no longer once others have moved.
    """
    counts = seen.counts
    counts += again.counts
    return replace(again, steps=seen.steps + again.steps, counts=counts, image=None, inverse=seen.inverse)


def _solve(
    f: Callable[..., State],
    z0: State | Solution | None,
    args: Sequence[Any],
    shared: Sequence[Any],
    solver: Solver | Sequence[Solver] | None,
    stop: Stop | None,
    run: LoopOptions,
    precision: Precision = "auto",
) -> Solution:
    chain, run = checked_chain(solver), replace(run, rescue=solver is None)
    if isinstance(z0, Solution):
        z0 = z0.value
    cold = z0 is None
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
        check_precision(precision)
        dtype = z.dtype
        with full_precision(z) if problem.affine is not None else nullcontext():
            limit = (stop or Stop()).resolve(compute_dtype(z))
            if norm_dtype(z) != dtype:
                problem, z = problem.widened(dtype), z.to(norm_dtype(z))
            auto = precision == "auto" and run.record is None and not run.ahead
            mixed = precision == "mixed" or (auto and _pays(problem, z, chain[0]))
            before = _single_precision(problem, z, chain[0], limit, cold) if mixed else None
            outcome = run_chain(problem, z, chain, limit, run, before)
            if outcome.dropped and not run.ahead and problem.affine is None:
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
        trace=run.record,
        floor=outcome.floor,
        image=None if outcome.image is None else outcome.image.to(dtype),
        solved=Solved.of(f) if isinstance(f, AffineMap) else None,
        inverse=_inverse(outcome.estimates) if run.history else None,
    )


def _inverse(estimates: Estimates) -> Callable[[Tensor], Tensor]:
    """g ↦ an estimate of (I − ∂f/∂z)⁻ᵀ g; g itself for rows of which no step tells anything."""

    def inverse(g: Tensor) -> Tensor:
        u = g.clone()
        for rows, estimate in estimates:
            u[rows] = estimate(g[rows])
        return u

    return inverse


def verify(
    f: Callable[..., State],
    z: State,
    args: Sequence[Any] = (),
    shared: Sequence[Any] = (),
    *,
    stop: Stop | None = None,
) -> Solution:
    """Judge a state by one evaluation of f: true residuals, relative to ‖f(z)‖, and the statuses."""
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
    """2z_t − z_{t−1}: a start that follows a path of equilibria; its error is of second order in the step."""
    return z if previous is None else torch.lerp(previous, z, 2.0)


def _confirm_batch(f: Map, outcome: RowsFound, stop: Stop) -> None:
    """Evaluate f on the whole batch after samples were dropped, which tells whether f mixes samples.

    Differences that can come from the rounding of another batch size are tolerated.
    """
    outcome.image = fz = f(outcome.value)
    residual, scale = row_distances(fz, outcome.value), row_norms(fz)
    tolerance = stop.tolerance(scale, outcome.floor)
    rounding = Stop.reach(compute_dtype(outcome.value)) * scale
    found = outcome.status == Status.converged
    close = found & (residual > tolerance) & (residual <= tolerance + rounding)
    outcome.status[found & ~(residual <= tolerance) & ~close] = int(Status.coupled)
    # Where others have left before a row failed, that they did may be why.
    failed = torch.nonzero(~found & (outcome.status != Status.nonfinite)).flatten()
    if f.compactable and 0 < len(failed) < len(fz):
        alone = f.take(failed)(outcome.value[failed])
        apart = ~(row_distances(alone, fz[failed]) <= rounding[failed] + tolerance[failed] / 100)
        outcome.status[failed[apart]] = int(Status.coupled)
    outcome.residual = torch.where(close, outcome.residual, residual)
    outcome.scale = torch.where(close, outcome.scale, scale)


def check_precision(precision: str) -> None:
    """Raise a ValueError unless this is a precision that a solve can have."""
    if precision not in get_args(Precision):
        raise ValueError(f"precision must be 'auto', 'native' or 'mixed'. Got {precision!r} instead.")


def _pays(f: Map, z: Tensor, solver: Solver) -> bool:
    """Whether float32 before float64 is sure to save time, since products with W are nearly all the work."""
    large = f.affine is not None and f.affine.weight.numel() * z.shape[0] >= _LARGE
    return large and z.dtype == torch.float64 and solver.smooth


def _single_precision(f: Map, z: Tensor, solver: Solver, stop: Stop, cold: bool) -> RowsFound:
    """Iterate in less than float64 and return what was reached, in float64, to start the verified solve."""
    if z.dtype != torch.float64:
        raise ValueError(
            f"precision='mixed' finishes in float64, so z0 must be float64. Got {z.dtype} instead."
        )
    if not f.compactable and not f.shared:
        raise ValueError(
            "precision='mixed' cannot cast the tensors inside of a closure: pass them as args= or shared=."
        )
    if solver == Picard() and _pays(f, z, solver):
        return refined(f, z, stop, cold)
    single = torch.float32
    assert stop.rtol is not None
    reach = Stop.reach(single) * (1 if solver.uses_value else 4)  # a splitting step rounds more than f
    rtol = max((0.8 if solver.smooth and solver.uses_value else 0.5) * stop.rtol, reach)
    near = replace(stop, rtol=rtol, patience=min(stop.patience, 4))
    outcome = iterate(f.to(single), z.to(single), solver, near, LoopOptions(ours=True, ahead=True))
    lost = ~torch.isfinite(outcome.value.sum(dim=1))
    outcome.value = outcome.value.double()
    if bool(lost.any()):
        outcome.value[lost] = z[lost]
    return outcome


def checked_chain(solver: Solver | Sequence[Solver] | None) -> list[Solver]:
    """The solvers to try in turn, as a list; a TypeError if one of them is not a Solver."""
    chain: list[Solver] = []
    if solver is None:
        chain = list(DEFAULT_CHAIN)
    else:
        chain = list(solver) if isinstance(solver, list | tuple) else [solver]  # type: ignore[list-item]
    for one in chain:
        if not isinstance(one, Solver):
            hint = f"{one.__name__}()" if isinstance(one, type) and issubclass(one, Solver) else "Anderson()"
            raise TypeError(f"solver must be a Solver such as {hint}. Got {one!r} instead.")
    if not chain:
        raise ValueError("a chain of solvers must hold at least one.")
    return chain
