"""What each gradient costs and how far it is from the exact one: the table of docs/how-to-choose.md.

    python -m bench.gradients

The error is that of all parameters together, ‖gradient − exact‖ / ‖exact‖, of mean z·w for random w. The
residual is the one that `layer.last.adjoint` states, the median over the samples. CPU time of one thread.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor, nn

import equipoise as eq
from bench.small import Cell
from bench.transformer import TransformerCell

GRADIENTS = {
    "Implicit()": eq.Implicit(),
    "Phantom(1)": eq.Phantom(1),
    "Phantom(3)": eq.Phantom(3),
    "Recycled()": eq.Recycled(),
    "Recycled(2)": eq.Recycled(2),
}


class FewSlow(nn.Module):
    """tanh(W z) + U x, W symmetric with the eigenvalues .93 · .7ᵏ: few directions are slow."""

    def __init__(self, width: int = 64, inputs: int = 16) -> None:
        super().__init__()
        basis = torch.linalg.qr(torch.randn(width, width)).Q
        self.w = nn.Parameter((basis * (0.93 * 0.7 ** torch.arange(width))) @ basis.T)
        self.inject = nn.Linear(inputs, width)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(z @ self.w.T) + 0.3 * self.inject(x)


def show(name: str, cell: nn.Module, inputs: tuple[Tensor, ...], state: tuple[int, ...] | None) -> None:
    """One row for each gradient."""
    found: dict[str, Tensor] = {}
    for word, gradient in GRADIENTS.items():
        layer, times = eq.Equilibrium(cell, state=state, gradient=gradient), []
        for _ in range(9):
            cell.zero_grad()
            z = layer(*inputs)
            w = torch.randn(z.shape, generator=torch.Generator().manual_seed(5))
            begin = time.process_time()
            (z * w).mean().backward()
            times.append(1e3 * (time.process_time() - begin))
        found[word] = torch.cat([p.grad.flatten() for p in cell.parameters() if p.grad is not None])
        exact, adjoint = found["Implicit()"], layer.last.adjoint
        error = float((found[word] - exact).norm() / exact.norm())
        told = "" if adjoint is None else f"{float(adjoint.relative_residual.median()):.2g}"
        print(f"| {name} | `{word}` | {error:.2f} | {told} | {statistics.median(times):.1f} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| cell | gradient | error | residual | ms |\n| --- | --- | ---: | ---: | ---: |")
    show("tanh, W orthogonal", Cell(32, 16), (torch.randn(32, 16),), (32,))
    show("tanh, few slow directions", FewSlow(), (torch.randn(32, 16),), (64,))
    real = torch.arange(24) < torch.randint(12, 25, (32, 1))
    show("transformer", TransformerCell(64, 4), (torch.randn(32, 24, 64), real), None)
