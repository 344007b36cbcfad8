"""z = z_K, z_k = (1 − β) z_{k−1} + β f(z_{k−1}, θ) from the equilibrium: an inexact, cheap gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .equation import Equation, under_transform
from .gradient import Record, SolvedGradient
from .implicit import solve_below


@dataclass(frozen=True)
class Phantom(SolvedGradient):
    """θ̄ = β Σ_{k<K} (∂f/∂θ)ᵀ ((1 − β) I + β ∂f/∂z)ᵀᵏ g: K damped steps recorded at the equilibrium.

    This is not the exact gradient: its error falls like q^K for a contraction by q. `steps=1` is the
    one-step, Jacobian-free gradient. It needs no linear solve, but memory for K evaluations.
    """

    exact = False
    steps: int = 5
    damping: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or self.steps < 1:
            raise ValueError(f"steps must be an integer ≥ 1. Got {self.steps!r} instead.")
        if not 0 < self.damping <= 1:
            raise ValueError(f"damping must lie in (0, 1]. Got {self.damping} instead.")

    def equilibrium(
        self, equation: Equation, start: Tensor, tensors: Sequence[Tensor], record: Record
    ) -> Tensor:
        """The equilibrium with the gradient of the recorded steps."""
        if under_transform():
            return self.attach(equation, solve_below(equation, start, tensors, record), tensors, record)
        return super().equilibrium(equation, start, tensors, record)

    def attach(self, equation: Equation, z: Tensor, tensors: Sequence[Tensor], record: Record) -> Tensor:
        """z with the gradient of K damped steps recorded at it."""
        if not (torch.is_grad_enabled() or under_transform()):
            return z
        moved = z.detach()
        with equation.held():
            for _ in range(self.steps):
                moved = torch.lerp(moved, equation(moved, *tensors), self.damping)
        # The value is the equilibrium's, the gradient that of the recorded steps.
        return z + (moved - moved.detach())
