"""u = b + J u: the linear equations behind every exact derivative."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..solve import Solution, Solver, Stop, fixed_point
from ..solve.driver import approach, confirm, finish
from ..solve.krylov import Krylov, gmres
from ..solve.norms import row_norms
from ..solve.problem import RowMap
from ..solve.solution import SHARE, Counts, Status


@dataclass(frozen=True)
class GMRES:
    """‖b − (I − J) u‖ minimal over a Krylov space of at most `restart` dimensions, restarted from there.

    It needs no contraction and solves every system that is not too ill-conditioned. It stores `restart`
    vectors.
    """

    restart: int = 30

    def __post_init__(self) -> None:
        if not isinstance(self.restart, int) or self.restart < 1:
            raise ValueError(f"restart must be an integer ≥ 1. Got {self.restart!r} instead.")


LinearSolver = GMRES | Solver | Sequence[GMRES | Solver]
Extra = TypeVar("Extra")

# A solver before GMRES gets this many steps: if they do not suffice, u ↦ b + J u hardly contracts.
_STEPS_BEFORE = 60
_PATIENCE_BEFORE = 15


def adjoint_chain(solver: LinearSolver) -> tuple[list[Solver], GMRES | None]:
    """The solvers of a general equation, and GMRES if it comes last; an error if they are anything else.

    Apart from the product with J a step of Anderson costs less than one of GMRES, and if J contracts it takes
    about as many steps. So it comes first by default, and GMRES solves what it has left.
    """
    listed = isinstance(solver, Sequence) and not isinstance(solver, str)
    chain: list[Any] = list(solver) if listed else [solver]  # type: ignore[arg-type]
    if not chain:
        raise ValueError("a chain of solvers must hold at least one.")
    for i, one in enumerate(chain):
        general = isinstance(one, Solver) and not one.affine_only
        if not general and not (isinstance(one, GMRES) and i == len(chain) - 1):
            raise TypeError(
                f"solver must be GMRES(), a solver for a general f such as Anderson(), or a sequence of "
                f"such solvers with GMRES() in the last place. Got {one!r} instead."
            )
    return (chain[:-1], chain[-1]) if isinstance(chain[-1], GMRES) else (chain, None)


def solve_linear(
    product: Callable[[Tensor], Tensor],
    b: Tensor,
    solver: LinearSolver,
    stop: Stop,
    dtype: torch.dtype | None = None,
) -> Solution:
    """u = b + J u for every row, with `product` the map u ↦ J u.

    The equation is linear, so its tolerance must not depend on the size of b, which is tiny for the mean loss
    of a large batch: each row is solved for b of size 1 and scaled back. `dtype` is that in which the
    products are computed, if it is lower than that of b.
    """
    with torch.no_grad():
        rows = _Rows.of(b, product, dtype or b.dtype)
        return rows.restored(_found(rows, rows.unit, solver, stop.resolve(rows.dtype)))


def solve_linear_once(
    product: Callable[[Tensor], Tensor],
    last: Callable[[Tensor], tuple[Tensor, Extra]],
    b: Tensor,
    solver: LinearSolver,
    stop: Stop,
    dtype: torch.dtype | None = None,
    start: Tensor | None = None,
) -> tuple[Solution, Extra]:
    """`solve_linear` with a final product by `last`, which verifies u and returns J u and something more."""
    with torch.no_grad():
        rows = _Rows.of(b, product, dtype or b.dtype)
        stop = stop.resolve(rows.dtype)
        size = rows.size[:, None]
        found = _found(rows, rows.unit if start is None else start / size, solver, stop, ahead=True)
        assert isinstance(found.value, Tensor)
        moved, extra = last(found.value * size)
        seen = confirm(found, rows.unit + moved / size)
        if bool((seen.status != found.status).any()):
            seen = finish(seen, _found(rows, found.value, solver, stop))
            assert isinstance(seen.value, Tensor)
            _, extra = last(seen.value * size)
        return rows.restored(seen), extra


def _found(rows: _Rows, start: Tensor, solver: LinearSolver, stop: Stop, ahead: bool = False) -> Solution:
    """The solution for rows of size 1; with `ahead` it needs confirmation."""
    chain, last = adjoint_chain(solver)
    if not chain:
        assert last is not None
        return _solve_by_gmres(rows, last, stop)
    first = stop
    if last is not None:
        steps, patience = min(stop.max_steps, _STEPS_BEFORE), min(stop.patience, _PATIENCE_BEFORE)
        first = replace(stop, max_steps=steps, patience=patience)
    f = rows if rows.compactable else rows.__call__
    found = (approach if ahead else fixed_point)(f, start, solver=chain, stop=first)
    if last is None:
        return replace(found, stop=stop)
    assert isinstance(found.value, Tensor)
    assert stop.rtol is not None
    # Where I − J is singular u grows without bound, and beside a u so large any residual looks small.
    large = ~(row_norms(found.value) * stop.rtol**0.5 <= row_norms(rows.unit))
    found = replace(found, status=found.status.masked_fill(large & found.converged, int(Status.stalled)))
    failed = torch.nonzero(~found.converged).flatten()
    if not len(failed):
        return replace(found, stop=stop)
    # Rows that depend on each other have no solution of their own: they are solved together.
    coupled = bool((found.status == Status.coupled).any())
    whole = not rows.compactable or len(failed) == len(start) or coupled
    part = rows if whole else rows.take(failed)
    assert isinstance(found.value, Tensor)
    near = found.value.masked_fill(large[:, None], 0.0)[slice(None) if whole else failed]
    found = _joined(found, _solve_by_gmres(part, last, stop, near), None if whole else failed)
    if whole or ahead:
        return found
    assert isinstance(found.value, Tensor)
    seen = confirm(found, rows(found.value))
    if not bool((found.converged & ~seen.converged).any()):
        return found
    return _joined(seen, _solve_by_gmres(rows, last, stop, found.value), None)


def _joined(first: Solution, then: Solution, at: Tensor | None) -> Solution:
    """What two solvers found, one after the other; the second worked on the rows `at` only."""
    steps, counts, solver = first.steps.clone(), first.counts, f"{first.solver} → {then.solver}"
    counts += then.counts
    counts.retried += int((~first.converged).sum())
    if at is None:
        return replace(then, steps=steps + then.steps, counts=counts, solver=solver)
    names = ("value", "status", "residual", "scale", "floor")
    found = {name: getattr(first, name).index_copy(0, at, getattr(then, name)) for name in names}
    return replace(then, **found, steps=steps.index_add(0, at, then.steps), counts=counts, solver=solver)


@dataclass(frozen=True)
class _Rows(RowMap):
    """u = b + J u with the rows of b divided by their sizes s: D⁻¹ J D in place of J, D = diag(s/max s).

    This is J itself if rows do not depend on each other, and if J mixes them it is still the same equation.
    Rows that are so small beside the largest that their products would underflow are solved as if they were
    alone, and the original equation is checked in the end.
    """

    worth = 0.3  # dropping rows takes an evaluation of f, to record it without them
    b: Tensor  # (n, D)
    of_b: Callable[[Tensor], Tensor]  # u ↦ J u
    dtype: torch.dtype  # of the arithmetic in `of_b`
    unit: Tensor  # (n, D) b with every row divided by its size
    size: Tensor  # (n,) largest |entry| of each row of b
    share: Tensor  # (n, 1) size over the largest size, or 1 where that would be too small
    largest: Tensor

    @classmethod
    def of(cls, b: Tensor, product: Callable[[Tensor], Tensor], dtype: torch.dtype) -> _Rows:
        size = b.abs().amax(dim=1)
        good = (size > 0) & torch.isfinite(size)
        largest = torch.cat([torch.where(good, size, 0.0), size.new_zeros(1)]).amax()
        largest = torch.where(largest > 0, largest, 1.0)
        size = torch.where(good, size, largest)
        share = size / largest
        share = torch.where(share < torch.finfo(dtype).tiny ** 0.25, 1.0, share)
        return cls(b, product, dtype, b / size[:, None], size, share[:, None], largest)

    def product(self, u: Tensor) -> Tensor:
        return self.of_b(u * self.share) / self.share

    def __call__(self, u: Tensor) -> Tensor:
        return self.unit + self.product(u)

    @property
    def compactable(self) -> bool:
        """Whether products can be computed for some of the rows alone."""
        return isinstance(self.of_b, RowMap)

    def take(self, rows: Tensor) -> _Rows:
        assert isinstance(self.of_b, RowMap)
        b, unit, size, share = (t[rows] for t in (self.b, self.unit, self.size, self.share))
        return replace(self, b=b, of_b=self.of_b.take(rows), unit=unit, size=size, share=share)

    def restored(self, found: Solution) -> Solution:
        """The solution for rows of size 1, scaled back to their own sizes."""
        assert isinstance(found.value, Tensor)
        value, status = found.value * self.size[:, None], found.status
        if bool((self.size < self.share[:, 0] * self.largest * 0.5).any()):
            u, info = value / self.largest, torch.finfo(self.dtype)
            off = row_norms(self.b / self.largest + self.of_b(u) - u)
            known = 2 * found.tolerance * (self.size / self.largest) + 16 * info.eps * row_norms(u)
            mixed = found.converged & ~(off <= known + 64 * u.shape[1] * info.tiny)
            status = status.masked_fill(mixed, int(Status.coupled))
        return replace(
            found,
            value=value,
            status=status,
            residual=found.residual * self.size,
            scale=found.scale * self.size,
            floor=None if found.floor is None else found.floor * self.size,
            image=None,
        )


def _solve_by_gmres(rows: _Rows, solver: GMRES, stop: Stop, start: Tensor | None = None) -> Solution:
    counts, b = Counts(), rows.unit

    def operator(u: Tensor) -> Tensor:
        counts.evaluations += 1
        counts.row_evaluations += u.shape[0]
        return u - rows.product(u)

    assert stop.rtol is not None
    floor = SHARE * row_norms(b)
    solve = functools.partial(gmres, operator, b, max_steps=stop.max_steps, restart=solver.restart)
    found = solve(start, rtol=stop.rtol, atol=stop.atol or 0.0)
    steps, scale = found.steps, row_norms(found.value)
    tolerance = stop.tolerance(scale, floor)
    if bool((found.residual > tolerance).any()):  # u is smaller than b: its tolerance is tighter
        found = solve(found.value, rtol=0.0, atol=tolerance)
        steps, scale = steps + found.steps, row_norms(found.value)
    status = _gmres_status(found, steps, scale, stop, floor)
    failed = status != Status.converged
    if bool(failed.any()) and not bool(failed.all()):  # failed rows may be left out if no other needs them
        off = row_norms(b - operator(torch.where(failed[:, None], 1.0, found.value)))  # so replace them by 1
        rounding = Stop.reach(b.dtype) * (row_norms(b) + scale)
        status[~failed & ~(off <= stop.tolerance(scale, floor) + rounding)] = int(Status.coupled)
    return Solution(found.value, status, found.residual, scale, steps, counts, stop, "GMRES", floor=floor)


def _gmres_status(found: Krylov, steps: Tensor, scale: Tensor, stop: Stop, floor: Tensor) -> Tensor:
    status = torch.full_like(steps, int(Status.stalled), dtype=torch.int8)
    status[steps >= stop.max_steps] = int(Status.max_steps)
    status[found.coupled] = int(Status.coupled)
    status[found.residual <= stop.tolerance(scale, floor)] = int(Status.converged)
    status[~torch.isfinite(found.residual)] = int(Status.nonfinite)
    return status
