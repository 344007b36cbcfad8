"""Problems with known solutions, for every suite."""

from __future__ import annotations

import torch
from torch import nn

DTYPE = torch.float64


def contraction(n: int, m: int, q: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """W (m, m) with ‖W‖ = q and a bias (n, m), in float64."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(m, m, dtype=torch.float64, generator=generator)
    weight *= q / torch.linalg.matrix_norm(weight, ord=2)
    return weight, torch.randn(n, m, dtype=torch.float64, generator=generator)


def monotone_weight(m: int, margin: float, scale: float, seed: int) -> torch.Tensor:
    """W = (1 − μ)I − AᵀA + B − Bᵀ: sym(I − W) ⪰ μ I whatever its norm."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (scale * torch.randn(2, m, m, dtype=torch.float64, generator=generator) / m**0.5).unbind()
    return (1 - margin) * torch.eye(m, dtype=torch.float64) - a.T @ a + b - b.T


def tanh_contraction(n: int, m: int, q: float, seed: int):
    """f(z, x, W) = tanh(W z + x) with ‖W‖ = q."""
    weight, bias = contraction(n, m, q, seed)
    return lambda z, x, w: torch.tanh(z @ w.T + x), weight, bias


def exact_affine(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """z = relu(W z + b) by Lemke-like search over active sets: Newton's method on each row, verified.

    Valid where the solution is unique (contraction or strongly monotone); an independent reference.
    """
    m = len(weight)
    rows = []
    for b in bias:
        rows.append(_active_set(weight, b, m))
    return torch.stack(rows) if rows else bias.clone()


def _active_set(weight: torch.Tensor, b: torch.Tensor, m: int) -> torch.Tensor:
    # Murty's least-index principal pivoting: finite for P-matrices, and I − W is one here.
    active = torch.zeros(m, dtype=torch.bool)
    eye = torch.eye(m, dtype=weight.dtype)
    for _ in range(200_000):
        z = torch.zeros(m, dtype=weight.dtype)
        if active.any():
            at = torch.nonzero(active).flatten()
            z[at] = torch.linalg.solve((eye - weight)[at][:, at], b[at])
        pre = weight @ z + b
        wrong = torch.where(active, z < 0, pre > 1e-14 * (1 + b.abs().max()))
        if not wrong.any():
            return z
        index = int(torch.nonzero(wrong)[0])
        active[index] = ~active[index]
    raise AssertionError("principal pivoting did not end")


class Affine(nn.Module):
    """z = tanh(W z + U x) with ‖W‖ = q."""

    def __init__(self, d: int = 3, m: int = 3, q: float = 0.5, dtype: torch.dtype = DTYPE) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        w = torch.randn(m, m, dtype=DTYPE, generator=generator)
        self.W = nn.Parameter((q * w / torch.linalg.matrix_norm(w, ord=2)).to(dtype))
        self.U = nn.Parameter(torch.randn(m, d, dtype=DTYPE, generator=generator).to(dtype))

    def forward(self, z, x):
        return torch.tanh(z @ self.W.T + x @ self.U.T)


def inputs(n=4, d=3, dtype=DTYPE):
    return torch.randn(n, d, dtype=DTYPE, generator=torch.Generator().manual_seed(1)).to(dtype)


def iterate(cell, z, *args, steps=200):
    for _ in range(steps):
        z = cell(z, *args)
    return z
