"""Twenty steps of a solver on a small tanh cell, width 32, 32 samples, float32: what a step costs besides f.

The same cell and weights for all, from zero, without gradients. A tolerance that none can reach makes each
take all of its steps: the time is that of Python and of small kernels. Ours is the layer as it is used, with
its checks of the cell and of every sample. torchdeq's DEQ likewise. Verified: the residual relative to ‖z‖.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor

import equipoise as eq
from bench.measure import Absent, Contender, Row, side_by_side

STEPS = 20
SOLVERS: dict[str, tuple[eq.solve.Solver, str]] = {
    "Picard": (eq.Picard(), "fixed_point_iter"),
    "Anderson": (eq.Anderson(), "anderson"),
}


class Cell(torch.nn.Module):
    """tanh(W z + U x), ‖W‖ = .7: twenty steps come to float32's rounding."""

    def __init__(self, width: int, inputs: int) -> None:
        super().__init__()
        self.inner, self.inject = torch.nn.Linear(width, width), torch.nn.Linear(inputs, width)
        torch.nn.init.orthogonal_(self.inner.weight, gain=0.7)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(z) + self.inject(x))


def run(quick: bool = False) -> list[Row]:
    torch.manual_seed(0)
    rows = []
    for width in (32,) if quick else (16, 32, 64):
        cell, x, z0 = Cell(width, 16), torch.randn(32, 16), torch.zeros(32, width)

        @torch.no_grad()
        def residual(z: Tensor, cell: Cell = cell, x: Tensor = x) -> float:
            return float((cell(z, x) - z).norm() / z.norm())

        for name, (solver, theirs) in SOLVERS.items():
            stop = eq.Stop(rtol=1e-30, atol=1e-30, max_steps=STEPS)
            layer = eq.Equilibrium(cell, state=(width,), solver=solver, stop=stop, on_failure="accept")
            ours = Contender(f"equipoise {name}", torch.no_grad()(lambda layer=layer, x=x: layer(x)))
            peer = _torchdeq(cell, x, z0, theirs)
            rows += side_by_side(f"{name}, width {width}", ours, [peer], residual, 50, {"torchdeq": 1.0})
    return rows


def _torchdeq(cell: Cell, x: Tensor, z0: Tensor, method: str) -> Contender | Absent:
    label = f"torchdeq {method}"
    if importlib.util.find_spec("torchdeq") is None:
        return Absent(label, "not installed")
    from torchdeq import get_deq

    deq = get_deq(f_solver=method, f_max_iter=STEPS, f_tol=1e-30)

    @torch.no_grad()
    def solve() -> Any:
        return deq(lambda z: cell(z, x), z0)[0][-1]

    return Contender(label, solve)
