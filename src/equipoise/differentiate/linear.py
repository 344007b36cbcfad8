"""u = b + J u: the linear equations behind every exact derivative."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from ..solve import Solution, Solver, Stop, fixed_point
from ..solve.driver import approach, confirm, finish
from ..solve.krylov import gmres
from ..solve.norms import row_norms
from ..solve.solution import SHARE, Counts, Status


@dataclass(frozen=True)
class GMRES:
    """‖b − (I − J) u‖ minimal over a Krylov space of at most `restart` dimensions, then again from there.

    Needs no contraction: it solves every system that is not too ill-conditioned. Keeps `restart` vectors.
    """

    restart: int = 30

    def __post_init__(self) -> None:
        if not isinstance(self.restart, int) or self.restart < 1:
            raise ValueError(f"restart must be an integer ≥ 1. Got {self.restart!r} instead.")


LinearSolver = GMRES | Solver | Sequence[Solver]
Extra = TypeVar("Extra")


def solve_linear(
    product: Callable[[Tensor], Tensor],
    b: Tensor,
    solver: LinearSolver,
    stop: Stop,
    dtype: torch.dtype | None = None,
) -> Solution:
    """u = b + J u for every row, with `product` the map u ↦ J u.

    The equation is linear, so its tolerance must not know the size of b, which for the mean loss of a large
    batch is tiny: each row is solved for b of size 1 and scaled back. `dtype` is that of the products' own
    arithmetic where it is lower than b's.
    """
    with torch.no_grad():
        rows = _Rows.of(b, product, dtype or b.dtype)
        stop = stop.resolve(rows.dtype)
        if isinstance(solver, GMRES):
            found = _solve_by_gmres(rows.product, rows.unit, solver, stop)
        else:
            found = fixed_point(rows.image, rows.unit, solver=solver, stop=stop)
        return rows.restored(found)


def solve_linear_once(
    product: Callable[[Tensor], Tensor],
    last: Callable[[Tensor], tuple[Tensor, Extra]],
    b: Tensor,
    solver: Solver | Sequence[Solver],
    stop: Stop,
    dtype: torch.dtype | None = None,
) -> tuple[Solution, Extra]:
    """`solve_linear`, and what `last` makes of u beside J u: the product that it needs verifies u as well."""
    with torch.no_grad():
        rows = _Rows.of(b, product, dtype or b.dtype)
        stop = stop.resolve(rows.dtype)
        size = rows.size[:, None]
        found = approach(rows.image, rows.unit, solver=solver, stop=stop)
        assert isinstance(found.value, Tensor)
        moved, extra = last(found.value * size)
        seen = confirm(found, rows.unit + moved / size)
        if bool((seen.status != found.status).any()):
            seen = finish(seen, found, fixed_point(rows.image, found.value, solver=solver, stop=stop))
            assert isinstance(seen.value, Tensor)
            _, extra = last(seen.value * size)
        return rows.restored(seen), extra


@dataclass(frozen=True)
class _Rows:
    """u = b + J u with the rows of b divided by their sizes s: D⁻¹ J D in place of J, D = diag(s/max s).

    That is J itself where rows are on their own, and where J mixes them it is still the same equation. Rows
    so small beside the largest that their products would underflow are solved as if on their own, and with
    them the equation as it was is looked at in the end.
    """

    b: Tensor  # (n, D)
    of_b: Callable[[Tensor], Tensor]  # u ↦ J u
    dtype: torch.dtype  # of its arithmetic
    unit: Tensor  # (n, D) b, every row of size 1
    size: Tensor  # (n,)
    share: Tensor  # (n, 1) of the largest size, 1 where that is too small
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

    def image(self, u: Tensor) -> Tensor:
        return self.unit + self.product(u)

    def restored(self, found: Solution) -> Solution:
        """What was found of rows of size 1, in their own sizes."""
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


def _solve_by_gmres(product: Callable[[Tensor], Tensor], b: Tensor, solver: GMRES, stop: Stop) -> Solution:
    counts = Counts()

    def operator(u: Tensor) -> Tensor:
        counts.evaluations += 1
        counts.row_evaluations += u.shape[0]
        return u - product(u)

    assert stop.rtol is not None
    floor = SHARE * row_norms(b)
    solve = functools.partial(gmres, operator, b, max_steps=stop.max_steps, restart=solver.restart)
    found = solve(rtol=stop.rtol, atol=stop.atol or 0.0)
    steps, scale = found.steps, row_norms(found.value)
    tolerance = stop.tolerance(scale, floor)
    if bool((found.residual > tolerance).any()):  # u is smaller than b: its tolerance is tighter
        found = solve(found.value, rtol=0.0, atol=tolerance)
        steps, scale = steps + found.steps, row_norms(found.value)
    status = torch.full_like(steps, int(Status.stalled), dtype=torch.int8)
    status[steps >= stop.max_steps] = int(Status.max_steps)
    status[found.coupled] = int(Status.coupled)
    status[found.residual <= stop.tolerance(scale, floor)] = int(Status.converged)
    status[~torch.isfinite(found.residual)] = int(Status.nonfinite)
    failed = status != Status.converged
    if bool(failed.any()) and not bool(failed.all()):  # may be left out, unless others depend on them
        off = row_norms(b - operator(torch.where(failed[:, None], 1.0, found.value)))  # elsewhere in them
        rounding = Stop.reach(b.dtype) * (row_norms(b) + scale)
        status[~failed & ~(off <= stop.tolerance(scale, floor) + rounding)] = int(Status.coupled)
    return Solution(found.value, status, found.residual, scale, steps, counts, stop, "GMRES", floor=floor)
