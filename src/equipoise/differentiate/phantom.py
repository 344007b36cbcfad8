"""z = z_K, z_k = (1 − β) z_{k−1} + β f(z_{k−1}, θ) from the equilibrium: an inexact, cheap gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .equation import Equation
from .gradient import Record, SolvedGradient


@dataclass(frozen=True)
class Phantom(SolvedGradient):
    """θ̄ = β Σ_{k<K} (∂f/∂θ)ᵀ ((1 − β) I + β ∂f/∂z)ᵀᵏ g: K damped steps recorded at the equilibrium.

    Not the exact gradient: its error falls like q^K for a contraction q. `steps=1` is the one-step,
    Jacobian-free gradient. No linear solve, memory for K evaluations.
    """

    steps: int = 5
    damping: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or self.steps < 1:
            raise ValueError(f"steps must be an integer ≥ 1. Got {self.steps!r} instead.")
        if not 0 < self.damping <= 1:
            raise ValueError(f"damping must lie in (0, 1]. Got {self.damping} instead.")

    def attach(self, equation: Equation, z: Tensor, tensors: Sequence[Tensor], record: Record) -> Tensor:
        if not torch.is_grad_enabled():
            return z
        moved = z.detach()
        for _ in range(self.steps):
            moved = torch.lerp(moved, equation(moved, *tensors), self.damping)
        return z + (
            moved - moved.detach()
        )  # the value is the equilibrium's, the gradient the recorded steps'
