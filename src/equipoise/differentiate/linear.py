"""u = b + J u: the linear equations behind every exact derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..solve import Solution, Solver, Stop, fixed_point
from ..solve.krylov import gmres
from ..solve.solution import Counts, Status


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


def solve_linear(
    product: Callable[[Tensor], Tensor], b: Tensor, start: Tensor | None, solver: LinearSolver, stop: Stop
) -> Solution:
    """u = b + J u for every row, with `product` the map u ↦ J u. The tolerance is that of any equilibrium."""
    if not isinstance(solver, GMRES):
        return fixed_point(lambda u: b + product(u), b if start is None else start, solver=solver, stop=stop)
    counts = Counts()

    def operator(u: Tensor) -> Tensor:
        counts.evaluations += 1
        counts.row_evaluations += u.shape[0]
        return u - product(u)

    with torch.no_grad():
        stop = stop.resolve(b.dtype)
        assert stop.rtol is not None
        assert stop.atol is not None
        found = gmres(
            operator,
            b,
            start,
            rtol=stop.rtol,
            atol=stop.atol,
            max_steps=stop.max_steps,
            restart=solver.restart,
        )
        steps, scale = found.steps, found.value.norm(dim=1)
        if bool(
            (found.residual > stop.tolerance(scale)).any()
        ):  # u is smaller than b: its tolerance is tighter
            found = gmres(
                operator,
                b,
                found.value,
                rtol=0.0,
                atol=stop.tolerance(scale),
                max_steps=stop.max_steps,
                restart=solver.restart,
            )
            steps, scale = steps + found.steps, found.value.norm(dim=1)
        status = torch.full_like(steps, int(Status.stalled), dtype=torch.int8)
        status[steps >= stop.max_steps] = int(Status.max_steps)
        status[found.residual <= stop.tolerance(scale)] = int(Status.converged)
        status[~torch.isfinite(found.residual)] = int(Status.nonfinite)
    return Solution(found.value, status, found.residual, scale, steps, counts, stop, "GMRES")
