"""z ← (1 − β) z + β f(z)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .problem import Map
from .solver import Solver, SolverState


@dataclass(frozen=True)
class Picard(Solver):
    """z ← (1 − β) z + β f(z), with damping β ∈ (0, 1].

    It converges whenever f contracts, at the rate of f, and has the cheapest step of all solvers.
    """

    damping: float = 1.0
    smooth = True

    def __post_init__(self) -> None:
        if not 0 < self.damping <= 1:
            raise ValueError(f"damping must lie in (0, 1]. Got {self.damping} instead.")

    def step(self, f: Map, z: Tensor, fz: Tensor, state: SolverState) -> tuple[Tensor, SolverState]:
        """f(z), or the part of the way to it that the damping allows."""
        return (fz if self.damping == 1 else z.lerp(fz, self.damping)), state
