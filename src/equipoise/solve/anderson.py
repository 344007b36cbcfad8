"""z ← f(z) − ΔF γ with γ = argmin ‖g − ΔG γ‖, g = f(z) − z: Anderson's acceleration of each sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .norms import combined, products, row_norms, unit_of
from .problem import Map
from .solver import Solver, SolverState, shared

# A row that takes more than _LATE times `memory` steps is a hard one: from there on it keeps _LONGEST
# differences, as far as they fit into the memory that the solve took at first, or into _ROOM numbers.
_LATE, _LONGEST, _ROOM = 6, 30, 2**23
_NOISE = 64.0  # a difference of g below so many roundings of f(z) tells nothing of the Jacobian


@dataclass
class AndersonState(SolverState):
    """The last differences of every row, and their products."""

    df: Tensor  # (n, memory, D) differences of f(z)
    dg: Tensor  # (n, memory, D) differences of g = f(z) − z, in units of `unit`
    gram: Tensor  # (n, memory, memory) = dg dgᵀ; each step updates one row and column
    f_last: Tensor  # (n, D)
    g_last: Tensor  # (n, D)
    pair: Tensor  # (n, 2, D) room for the last difference of g, and for g
    unit: Tensor | None = None  # (n, 1), where the squares of g are out of range
    rows: int = shared(default=0)  # at the start
    step: int = shared(default=0)
    used: int = shared(default=0)  # differences


@dataclass(frozen=True)
class Anderson(Solver):
    """z ← f(z) − ΔF γ, γ = argmin ‖g − ΔG γ‖² + λ‖γ‖², over the last `memory` differences.

    A row that is still at work after six times `memory` steps is a hard one: from there on it keeps up to 30
    differences, as far as memory allows, which is cheap since few rows are left by then. `regularisation` is
    λ relative to the mean squared difference; by default it is what the dtype can resolve. A row whose
    least-squares problem is singular takes the plain step f(z), which is counted. `damping` β makes shorter
    steps: z ← (1 − β)(z − ΔZ γ) + β(f(z) − ΔF γ).
    """

    memory: int = 6
    damping: float = 1.0
    regularisation: float | None = None
    uses_difference = True
    steepest = 100.0

    def __post_init__(self) -> None:
        if not isinstance(self.memory, int) or self.memory < 1:
            raise ValueError(f"memory must be an integer ≥ 1. Got {self.memory!r} instead.")
        if not 0 < self.damping <= 1:
            raise ValueError(f"damping must lie in (0, 1]. Got {self.damping} instead.")
        if self.regularisation is not None and not self.regularisation >= 0:
            raise ValueError(f"regularisation must be ≥ 0. Got {self.regularisation} instead.")

    def init(self, f: Map, z: Tensor) -> AndersonState:
        """An empty history."""
        n, d = z.shape
        return AndersonState(
            df=z.new_empty(n, self.memory, d),
            dg=z.new_empty(n, self.memory, d),
            gram=z.new_zeros(n, self.memory, self.memory),
            f_last=z,
            g_last=z,
            pair=z.new_empty(n, 2, d),
            rows=n,
        )

    def step(self, f: Map, z: Tensor, fz: Tensor, state: AndersonState) -> tuple[Tensor, AndersonState]:
        """The accelerated step of every row; the plain one at first."""
        g = f.difference(z, fz)
        if state.step == 0:
            state.unit = unit_of(g)
        if state.unit is not None:
            g = g / state.unit
        f_last, g_last, step = state.f_last, state.g_last, state.step
        state.f_last, state.g_last, state.step = fz, g, step + 1
        if step == 0:
            return (fz if self.damping == 1 else z.lerp(fz, self.damping)), state
        slot, used = self._window(step, state)
        state.used = used
        df, dg = state.df.narrow(1, 0, used), state.dg.narrow(1, 0, used)
        gram = state.gram.narrow(1, 0, used).narrow(2, 0, used)
        torch.sub(fz, f_last, out=df.select(1, slot))
        torch.stack((torch.sub(g, g_last, out=dg.select(1, slot)), g), dim=1, out=state.pair)
        new, rhs = torch.bmm(state.pair, dg.mT).unbind(1)  # (n, used) each, in one pass over dg
        gram.select(1, slot).copy_(new)
        gram.select(2, slot).copy_(new)
        weights = self._weights(f, gram, rhs)
        accelerated = torch.sub(fz, combined(weights, df))
        if self.damping < 1:
            rest = g - combined(weights, dg)
            accelerated -= (1 - self.damping) * (rest if state.unit is None else rest * state.unit)
        return accelerated, state

    def adjoint_estimate(self, state: AndersonState, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """g ↦ g − ΔG (ΔGᵀΔG)⁻¹ ΔFᵀ g, the transpose of what a step does to g.

        Differences that rounding may have made are left out: late ones of a row that is solved.
        """
        df, dg = state.df[rows, : state.used], state.dg[rows, : state.used]
        gram = state.gram[rows, : state.used, : state.used].clone()
        unit = torch.ones_like(state.f_last[rows, :1]) if state.unit is None else state.unit[rows]
        noise = _NOISE * torch.finfo(gram.dtype).eps * row_norms(state.f_last[rows] / unit)
        told = gram.diagonal(dim1=1, dim2=2) > noise[:, None].square()
        gram *= told[:, :, None] & told[:, None]
        diagonal = gram.diagonal(dim1=1, dim2=2)
        diagonal.add_(diagonal.mean(dim=1, keepdim=True), alpha=torch.finfo(gram.dtype).eps)
        diagonal += ~told
        factor, info = torch.linalg.cholesky_ex(gram)
        told &= (info == 0)[:, None]

        def estimate(g: Tensor) -> Tensor:
            weights = torch.cholesky_solve((products(df, g) * told)[:, :, None], factor)[:, :, 0]
            seen = g - combined(weights.masked_fill(~told, 0.0), dg) / unit
            return torch.where(torch.isfinite(seen).all(dim=1, keepdim=True), seen, g)

        return estimate

    def _window(self, step: int, state: AndersonState) -> tuple[int, int]:
        """The slot for the difference of this step, and how many are in use; late rows get more slots."""
        late = step - 1 - _LATE * self.memory  # at 0 the oldest difference is in slot 0
        if late < 0:
            return (step - 1) % self.memory, min(step, self.memory)
        if late == 0:
            n, _, d = state.df.shape
            room = max(state.rows * self.memory, _ROOM // d) // n
            more = max(0, min(_LONGEST, room) - self.memory)
            state.df, state.dg = (torch.nn.functional.pad(t, (0, 0, 0, more)) for t in (state.df, state.dg))
            state.gram = torch.nn.functional.pad(state.gram, (0, more, 0, more))
        longest = state.df.shape[1]
        return (self.memory + late) % longest, min(self.memory + late + 1, longest)

    def _weights(self, f: Map, gram: Tensor, rhs: Tensor) -> Tensor:
        """γ of each row; zero, which is the plain step, where the normal equations are singular."""
        relative = torch.finfo(gram.dtype).eps if self.regularisation is None else self.regularisation
        matrix = gram.clone()
        diagonal = matrix.diagonal(dim1=1, dim2=2)
        diagonal.add_(diagonal.sum(dim=1, keepdim=True), alpha=relative / gram.shape[1])
        factor, info = torch.linalg.cholesky_ex(matrix)
        weights = torch.cholesky_solve(rhs[:, :, None], factor)[:, :, 0]
        if not int(info.max()) and math.isfinite(float(weights.sum())):  # almost always, and cheap to see
            return weights
        singular = (info > 0) | ~torch.isfinite(weights).all(dim=1)
        f.counts.fallbacks += int((singular if f.working is None else singular & f.working).sum())
        return weights.masked_fill_(singular[:, None], 0.0)
