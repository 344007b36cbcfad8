"""Forward and backward of LinearEquilibrium, m = n = 1000, one output: one LU beside autograd through solve.

The peer forms Z = Φ(I − γS)⁻ᵀ by torch.linalg.solve and lets autograd go back through it.
"""

from __future__ import annotations

import torch
from torch import Tensor

import equipoise as eq
from bench.measure import Contender, Row, side_by_side


def run(quick: bool = False) -> list[Row]:
    m = n = 300 if quick else 1000
    generator = torch.Generator().manual_seed(0)
    model = eq.LinearEquilibrium(m, dtype=torch.float64, generator=generator)
    X = torch.randn(n, m, dtype=torch.float64, generator=generator)
    y = torch.randn(n, 1, dtype=torch.float64, generator=generator)
    parameters = [model.A, model.B]

    def ours() -> Tensor:
        loss = (model(X) - y).square().sum()
        return _flat(torch.autograd.grad(loss, parameters))

    def peer() -> Tensor:
        S = torch.softmax(model.A, dim=0)
        umat = torch.eye(m, dtype=torch.float64) - model.gamma * S
        Z = torch.linalg.solve(umat, X.T).T
        loss = (Z @ model.B.T - y).square().sum()
        return _flat(torch.autograd.grad(loss, parameters))

    exact = peer()
    verify = lambda g: float((g - exact).norm() / exact.norm())
    contenders = [Contender("autograd through solve", peer)]
    return side_by_side(
        f"linear model, m=n={m}", Contender("one LU", ours), contenders, verify, 9, {"autograd": 5.0}
    )


def _flat(gradients: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([g.flatten() for g in gradients])
