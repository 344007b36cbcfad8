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
        size, unit = _unit(b)
        stop = stop.resolve(dtype or b.dtype)
        if isinstance(solver, GMRES):
            found = _solve_by_gmres(product, unit, solver, stop)
        else:
            found = fixed_point(lambda u: unit + product(u), unit, solver=solver, stop=stop)
        return _scaled(found, size)


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
        size, unit = _unit(b)
        stop = stop.resolve(dtype or b.dtype)
        f = lambda u: unit + product(u)
        found = approach(f, unit, solver=solver, stop=stop)
        assert isinstance(found.value, Tensor)
        moved, extra = last(found.value * size[:, None])
        seen = confirm(found, unit + moved / size[:, None])
        if bool((seen.status != found.status).any()):
            seen = finish(seen, found, fixed_point(f, found.value, solver=solver, stop=stop))
            assert isinstance(seen.value, Tensor)
            _, extra = last(seen.value * size[:, None])
        return _scaled(seen, size), extra


def _unit(b: Tensor) -> tuple[Tensor, Tensor]:
    """The size of each row, (n,), and the rows divided by it."""
    size = b.abs().amax(dim=1)
    size = torch.where((size > 0) & torch.isfinite(size), size, 1.0)
    return size, b / size[:, None]


def _scaled(found: Solution, size: Tensor) -> Solution:
    assert isinstance(found.value, Tensor)
    return replace(
        found,
        value=found.value * size[:, None],
        residual=found.residual * size,
        scale=found.scale * size,
        floor=None if found.floor is None else found.floor * size,
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
    status[found.residual <= stop.tolerance(scale, floor)] = int(Status.converged)
    status[~torch.isfinite(found.residual)] = int(Status.nonfinite)
    return Solution(found.value, status, found.residual, scale, steps, counts, stop, "GMRES", floor=floor)
