"""What a step keeps for its backward pass does not grow with the steps of the solver, but for Unrolled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq


class Tanh(nn.Module):
    """tanh(W z + x), ‖W‖ = 0.9."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(0.9 * torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0])

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(z @ self.W.T + x)


def kept(cell: nn.Module, gradient: eq.differentiate.Gradient, steps: int) -> int:
    """Numbers that autograd keeps between the forward and the backward pass."""
    total = 0

    def pack(t: Tensor) -> Tensor:
        nonlocal total
        total += t.numel()
        return t

    stop = eq.Stop(rtol=1e-30, atol=1e-30, max_steps=steps, patience=steps)
    layer = eq.Equilibrium(cell, solver=eq.Picard(), gradient=gradient, stop=stop, on_failure="accept")
    x = torch.ones(4, 6, dtype=torch.float64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        layer(x)
    return total


@pytest.mark.parametrize(
    "gradient", [lambda k: eq.Implicit(), lambda k: eq.Phantom(3), lambda k: eq.Reversible(k)]
)
def test_memory_is_flat_in_the_steps(gradient):
    torch.manual_seed(0)
    cell = Tanh()
    few, many = (kept(cell, gradient(steps), steps) for steps in (4, 40))
    assert few > 0
    assert many == few


def test_unrolled_keeps_every_step():
    torch.manual_seed(0)
    cell = Tanh()
    few, many = (kept(cell, eq.Unrolled(steps), steps) for steps in (4, 40))
    assert many > 8 * few
