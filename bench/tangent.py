"""The exact tangent kernel of GaussianReLU: n = 60, m = 1000 beside torch.func; n = m = 1000 alone.

Ours: adjoints and Hadamard products. The peer forms the Jacobian of the unrolled network by reverse mode, a
few samples at a time, and contracts it (what torch.func and neural-tangents do for a network at hand).
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

import equipoise as eq
from bench.measure import Contender, Row, side_by_side


def run(quick: bool = False) -> list[Row]:
    n, m = (20, 300) if quick else (60, 1000)
    model, X = _problem(n, m)
    ours = Contender("Hadamard formulas", lambda: eq.tangent_kernel(model, X).total)
    peer = Contender("torch.func Jacobians", lambda: _by_jacobians(model, X))
    exact = _by_jacobians(model, X)
    verify = lambda H: float((H - exact).norm() / exact.norm())
    rows = side_by_side(f"kernel, n={n}, m={m}", ours, [peer], verify, 1, {"torch.func": 100.0})
    if not quick:
        model, X = _problem(1000, 1000)
        begin = time.process_time()
        eq.tangent_kernel(model, X)
        spent = 1e3 * (time.process_time() - begin)
        note = "not tried: 14 GB of Jacobians"
        rows.append(Row("kernel, n=1000, m=1000", spent, "torch.func Jacobians", None, math.nan, note=note))
    return rows


def _problem(n: int, m: int, d: int = 100) -> tuple[eq.GaussianReLU, Tensor]:
    generator = torch.Generator().manual_seed(n)
    X = torch.randn(n, d, dtype=torch.float64, generator=generator)
    X *= math.sqrt(d) / X.norm(dim=1, keepdim=True)
    return eq.GaussianReLU(d, m, dtype=torch.float64, generator=generator), X


def _by_jacobians(model: eq.GaussianReLU, X: Tensor, chunk: int = 10) -> Tensor:
    """J Jᵀ, J of the unrolled network (30 layers, to rounding) by torch.func, `chunk` samples at a time."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def output(p: dict[str, Tensor], x: Tensor) -> Tensor:
        u = x @ p["U"].T
        z = torch.relu(u)
        for _ in range(30):
            z = torch.relu(z @ p["W"].T + u)
        return z @ p["a"]

    per_sample = torch.func.vmap(torch.func.grad(output), in_dims=(None, 0))

    def rows(x: Tensor) -> Tensor:
        found = per_sample(parameters, x)
        return torch.cat([found[name].reshape(len(x), -1) for name in parameters], dim=1)

    J = torch.cat([rows(x) for x in X.split(chunk)])
    return J @ J.T
