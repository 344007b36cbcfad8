"""z ← z − H g, H ← H + (s − H y) sᵀH / sᵀH y, g = f(z) − z: Broyden's good method for each sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .norms import combined, products, row_norms, unit_of
from .problem import Map
from .solver import Solver, SolverState, shared

# A step longer than this multiple of the lowest ‖g‖ says that H is nearly singular, not that the solution is
# so far away. A shorter one raises ‖g‖ of a contraction at most 2e5-fold, less than a Stop's default growth.
_LONGEST = 1e5


@dataclass
class BroydenState(SolverState):
    """The terms of every row's H, and the best point it has seen."""

    u: Tensor  # (n, memory, D)
    v: Tensor  # (n, memory, D) of H = −I + Σ u vᵀ
    used: Tensor  # (n,) terms of that sum
    z_last: Tensor  # (n, D)
    best: Tensor  # (n,) lowest ‖g‖
    z_best: Tensor  # (n, D) where it was found
    f_best: Tensor  # (n, D) f of that point
    unit: Tensor | None = None  # (n, 1) of steps and of g, where their squares are out of range
    started: bool = shared(default=False)


@dataclass(frozen=True)
class Broyden(Solver):
    """z ← z − H g, where H ≈ (J − I)⁻¹ begins as −I, the plain step, and learns from every step s.

    H ← H + (s − H y) sᵀH / sᵀH y with y = Δg, so that H y = s. H is stored as −I and at most `memory` terms.
    When these are used up, the row makes a fresh start with H = −I from the best point it has seen. It also
    makes one, which is counted, if sᵀH y vanishes, if the step is out of all proportion to g, or if ‖g‖ has
    grown beyond `growth` times its lowest value. If f contracts, each fresh start lowers the lowest ‖g‖, so
    the method converges from any start.
    """

    memory: int = 20
    growth: float = 1e3
    uses_difference = True

    def __post_init__(self) -> None:
        if not isinstance(self.memory, int) or isinstance(self.memory, bool) or self.memory < 1:
            raise ValueError(f"memory must be an integer ≥ 1. Got {self.memory!r} instead.")
        if not 1 <= self.growth < math.inf:
            raise ValueError(f"growth must be a finite number ≥ 1. Got {self.growth} instead.")

    def init(self, f: Map, z: Tensor) -> BroydenState:
        """H = −I, which is the plain step."""
        n, d = z.shape
        return BroydenState(
            u=z.new_zeros(n, self.memory, d),
            v=z.new_zeros(n, self.memory, d),
            used=torch.zeros(n, dtype=torch.int64, device=z.device),
            z_last=z,
            best=z.new_full((n,), torch.inf),
            z_best=z,
            f_best=z,
        )

    def adjoint_estimate(self, state: BroydenState, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """g ↦ −Hᵀ g = g − Σ v uᵀ g."""
        terms = int(state.used[rows].max()) if len(rows) else 0
        u, v = state.u[rows, :terms], state.v[rows, :terms]
        return lambda g: g - combined(products(u, g), v)

    def step(self, f: Map, z: Tensor, fz: Tensor, state: BroydenState) -> tuple[Tensor, BroydenState]:
        """The quasi-Newton step of every row, or a fresh start from its best point."""
        g = f.difference(z, fz)
        if not state.started:
            state.unit = unit_of(g)
        if state.unit is not None:
            g = g / state.unit
        size = row_norms(g)
        lower = size <= state.best  # among equals the latest point
        state.best = torch.where(lower, size, state.best)
        state.z_best = torch.where(lower[:, None], z, state.z_best)
        state.f_best = torch.where(lower[:, None], fz, state.f_best)
        if not state.started:
            state.started, state.z_last = True, z
            return fz, state

        # The last step was s = −H g_last, so that H y = H g + s, and the new −H g is −(old H g)/ρ with
        # ρ = sᵀH y / ‖s‖² [Kelley 1995, §7.3].
        s = z - state.z_last
        if state.unit is not None:
            s = s / state.unit
        terms = int(state.used.max())
        u, v = state.u[:, :terms], state.v[:, :terms]
        hg = combined(products(v, g), u) - g
        sh = combined(products(u, s), v) - s
        ss = (s * s).sum(dim=1)
        rho = 1 + (s * hg).sum(dim=1) / ss
        step = -hg / rho[:, None]

        long = ~(row_norms(step) <= _LONGEST * state.best)  # infinite or NaN where ρ = 0
        unfit = long | (size > self.growth * state.best)
        f.counts.fallbacks += int((unfit if f.working is None else unfit & f.working).sum())
        fresh = unfit | (state.used == self.memory)

        learns = torch.nonzero(~fresh).flatten()
        state.u[learns, state.used[learns]] = step[learns] / ss[learns, None]
        state.v[learns, state.used[learns]] = sh[learns]
        state.used = torch.where(fresh, 0, state.used + 1)
        if len(learns) < len(z):
            state.u[fresh], state.v[fresh] = 0.0, 0.0
        state.z_last = torch.where(fresh[:, None], state.z_best, z)
        step = step if state.unit is None else step * state.unit
        return torch.where(fresh[:, None], state.f_best, z + step), state
