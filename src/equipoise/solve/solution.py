"""What a solve returns: a value, and for every sample whether it can be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

State = Tensor | tuple[Tensor, ...]


class Status(IntEnum):
    """How the solve of one sample ended. Every member but `converged` is a failure."""

    converged = 0
    max_steps = 1
    diverged = 2
    stalled = 3
    nonfinite = 4
    coupled = 5

    @property
    def meaning(self) -> str:
        """What happened, in words."""
        return _MEANING[self][0]

    @property
    def remedy(self) -> str:
        """What to try, in words."""
        return self.remedy_after("")

    def remedy_after(self, tried: str) -> str:
        """What to try, in words, besides the solvers whose names are in `tried`."""
        names = tuple(tried.split(" → ")) if tried else ()
        options = [option for option in _MEANING[self][1] if not option.startswith(names)]
        return f"{', '.join(options[:-1])} or {options[-1]}" if len(options) > 1 else options[0]


_SPLITTING = "a splitting solver if f is monotone"
_MEANING: dict[Status, tuple[str, tuple[str, ...]]] = {
    Status.converged: ("the residual met the tolerance", ("nothing",)),
    Status.max_steps: (
        "the residual had not met the tolerance when max_steps was reached",
        ("Anderson()", "Newton()", "a larger max_steps", "a looser rtol", "a nearer start"),
    ),
    Status.diverged: (
        "the residual grew far beyond its first value",
        ("Newton()", _SPLITTING, "a map that contracts (smaller weights)"),
    ),
    Status.stalled: (
        "the residual stopped improving: the iteration cycles, or sits at rounding level",
        ("Picard(damping=0.8)", "Anderson()", "Newton()", _SPLITTING, "a looser rtol"),
    ),
    Status.nonfinite: (
        "NaN or infinity appeared in the start, the input, the map or a norm",
        ("finite inputs and weights", "smaller ones, or float64, if they overflow"),
    ),
    Status.coupled: (
        "f mixes the samples of a batch: the equation held while samples that had ended were left out, and "
        "does not hold with all of them",
        (
            "an f that treats every sample on its own (LayerNorm, say, or attention within one)",
            "where mixing is meant, fixed_point with a closure over the batch, lambda z: f(z, x), which "
            "always gets all of it",
        ),
    ),
}

# A tolerance follows ‖f(z)‖ down to this share of the problem's own size, and no further.
SHARE = 1e-4
# rtol by dtype where none is given.
_DEFAULT_RTOL = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2**-4}


@dataclass(frozen=True, kw_only=True)
class Stop:
    """‖f(z) − z‖ ≤ atol + rtol·‖f(z)‖, for each sample on its own.

    If `rtol` is None, it is the default of the dtype in use (1e-8 in float64, 1e-4 in float32). If `atol` is
    None, the test is purely relative, so that problems of every size are solved equally well: ‖f(z) − z‖ ≤
    rtol·max(‖f(z)‖, 1e-4·s) with s = ‖f(0)‖, the size of the problem itself, whatever the start. If f(0) = 0,
    as for z ↦ z/2, nothing tells how small is small: s is then the size of the image of the start (or of the
    start, if that is 0 too), and the limit is an absolute one. No limit is below rtol times the smallest
    normal number.

    A sample that does not meet the tolerance within `max_steps` steps of a solver has failed. Each solver of
    a chain that you name may take as many steps on the samples on which the one before it failed; the
    solvers of the default chain have `max_steps` steps together. `Solution.steps` counts all of them. A
    sample has `stalled` if its best residual fell by less than 1 % over `patience` steps of a solver, and
    `diverged` if its residual is `growth` times the first one.
    """

    rtol: float | None = None
    atol: float | None = None
    max_steps: int = 500
    patience: int = 50
    growth: float = 1e6

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number ≥ 0. Got {value} instead.")
        if self.rtol == 0 and self.atol == 0:
            raise ValueError("rtol and atol cannot both be 0: no iteration ends at a residual of exactly 0.")
        for name in ("max_steps", "patience"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be an integer ≥ 1. Got {value!r} instead.")
        if not self.growth > 1:
            raise ValueError(f"growth must be > 1. Got {self.growth} instead.")

    @staticmethod
    def reach(dtype: torch.dtype) -> float:
        """The smallest relative residual that arithmetic in `dtype` can be expected to show."""
        return 8 * torch.finfo(dtype).eps

    def resolve(self, dtype: torch.dtype) -> Stop:
        """The same test with the default tolerances of `dtype`; an error if `dtype` cannot reach them."""
        rtol = _DEFAULT_RTOL[dtype] if self.rtol is None else self.rtol
        reach = self.reach(dtype)
        if rtol < reach and not (self.atol is not None and self.atol > 0):
            raise ValueError(
                f"rtol must be at least {reach:.1e}, what {dtype} arithmetic can reach. Got {rtol:.1e} "
                f"instead. Solve in float64 (or with precision='mixed'), or give an atol > 0."
            )
        return replace(self, rtol=rtol)

    def tolerance(self, scale: Tensor, floor: Tensor | None = None) -> Tensor:
        """The residual each sample must reach, from its ‖f(z)‖. Only of a resolved Stop.

        `floor` (N,) is the size below which ‖f(z)‖ does not count, where no atol was given.
        """
        assert self.rtol is not None
        if self.atol is not None:
            return self.atol + self.rtol * scale
        return self.rtol * (scale if floor is None else torch.maximum(scale, floor))


@dataclass
class Counts:
    """What a solve cost."""

    evaluations: int = 0  # calls of f
    row_evaluations: int = 0  # the same, times the rows of each call
    jvps: int = 0  # Jacobian-vector products, each of them one call
    fallbacks: int = 0  # rows that took a plain step because their own step could not be formed
    retried: int = 0  # rows handed on to the next solver of a chain

    def __iadd__(self, other: Counts) -> Counts:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


@dataclass(frozen=True)
class Point:
    """One checked step of a solve, for the rows that had not ended."""

    step: int
    rows: Tensor  # (n,)
    residual: Tensor  # (n,)
    value: Tensor  # (n, D), flattened states


@dataclass
class Trace:
    """The course of a solve, step by step, without padding: rows leave when they end."""

    points: list[Point] = field(default_factory=list)

    def residuals(self, row: int) -> Tensor:
        """‖f(z) − z‖ of one sample at every step it took."""
        return torch.stack([r for _, r, _ in self._of(row)])

    def iterates(self, row: int) -> Tensor:
        """The (flattened) iterates of one sample, one row for each step."""
        return torch.stack([z for _, _, z in self._of(row)])

    def _of(self, row: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        for point in self.points:
            (at,) = torch.nonzero(point.rows == row, as_tuple=True)
            if len(at):
                yield point.step, point.residual[at[0]], point.value[at[0]]


class EquilibriumError(RuntimeError):
    """Some samples have no equilibrium. `solution` holds what was found."""

    def __init__(self, message: str, solution: Solution) -> None:
        super().__init__(message)
        self.solution = solution

    def __reduce__(self) -> tuple:  # pickles with its solution, for workers
        return type(self), (self.args[0], self.solution)


class Unsolvable(ValueError):
    """Weights that are not finite, or so large that the dtype cannot resolve the tolerance."""


@dataclass(frozen=True)
class Solution:
    """The equilibrium of every sample, or the reason why it has none.

    `residual` is the true ‖f(value) − value‖ of each sample at the end. `converged` says only that it met the
    tolerance: z + 1/(1 + |z|) has no fixed point, and its residual falls below any tolerance as z grows.
    `error` says how near the value is to the equilibrium, if that is known.
    """

    value: State  # (N, …), or a tuple of such
    status: Tensor  # (N,) of Status
    residual: Tensor  # (N,) ‖f(z) − z‖
    scale: Tensor  # (N,) ‖f(z)‖
    steps: Tensor  # (N,)
    counts: Counts
    stop: Stop  # as resolved for the dtype
    solver: str
    trace: Trace | None = None
    floor: Tensor | None = None  # (N,) the size below which ‖f(z)‖ does not count in the tolerance
    image: Tensor | None = None  # f(value), (N, D), where the last check left it at hand
    solved: Any = field(default=None, repr=False, compare=False)  # what `error` is computed from
    inverse: Any = field(default=None, repr=False, compare=False)  # g ↦ ≈ (I − ∂f/∂z)⁻ᵀ g, if it was kept

    @cached_property
    def error(self) -> Tensor | None:
        """≥ ‖value − z*‖ for the one equilibrium z* of each sample, (N,) in float64, in sound arithmetic.

        It is known for an AffineMap, and so for what `solve` of an affine family returns, if the weights are
        proved to contract or to be strongly monotone; otherwise it is None. It is computed when it is first
        asked for, with a factorisation of the weights. It refers to the weights and injections as they were
        computed in their dtype; `eq.equilibrium_error` also accounts for their rounding.
        """
        return None if self.solved is None else self.solved.error(self.value)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "solved": None, "inverse": None}  # functions, which no file holds

    @property
    def converged(self) -> Tensor:
        """Whether each sample met its tolerance, (N,)."""
        return self.status == Status.converged  # (N,)

    @property
    def tolerance(self) -> Tensor:
        """The residual each sample had to reach, (N,)."""
        return self.stop.tolerance(self.scale, self.floor)

    @property
    def relative_residual(self) -> Tensor:
        """‖f(z) − z‖ / ‖f(z)‖ of each sample, (N,)."""
        return self.residual / self.scale.clamp_min(torch.finfo(self.scale.dtype).tiny)  # (N,)

    @property
    def failed_rows(self) -> list[int]:
        """The numbers of the samples that did not converge."""
        return torch.nonzero(~self.converged).flatten().tolist()

    def raise_if_failed(self) -> Solution:
        """The solution itself if all converged; otherwise an EquilibriumError that names the rows."""
        if self.failed_rows:
            raise EquilibriumError(self.explain_failure(), self)
        return self

    def explain_failure(self, shown: int = 5) -> str:
        """The rows that failed, their residuals and what to try; empty if none failed."""
        rows = self.failed_rows
        if not rows:
            return ""
        relative = self.relative_residual
        absolute = "" if self.stop.atol is None else f"atol={self.stop.atol:.1e}, "
        lines = [
            f"{len(rows)} of {len(self.status)} samples have no equilibrium after {self.solver} "
            f"(rtol={self.stop.rtol:.1e}, {absolute}max_steps={self.stop.max_steps}):"
        ]
        for row in rows[:shown]:
            status = Status(int(self.status[row]))
            lines.append(
                f"  row {row}: {status.name} after {int(self.steps[row])} steps, "
                f"relative residual {float(relative[row]):.1e}"
            )
        if len(rows) > shown:
            lines.append(f"  … and {len(rows) - shown} more rows")
        for status in sorted({Status(int(self.status[row])) for row in rows}):
            lines.append(f"{status.name}: {status.meaning}; try {status.remedy_after(self.solver)}.")
        return "\n".join(lines)

    def __repr__(self) -> str:
        n = len(self.status)
        worst = float(self.relative_residual.max()) if n else 0.0
        steps = int(self.steps.max()) if n else 0
        return (
            f"Solution({int(self.converged.sum())} of {n} converged, steps ≤ {steps}, "
            f"relative residual ≤ {worst:.1e}, {self.counts.evaluations} evaluations, {self.solver})"
        )
