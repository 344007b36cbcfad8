"""Four and twenty full-batch steps of gradient descent from one start, n = 1000, width m, tolerance 1e-6, in
float64.

ling2023's start and data (σ_w² = .08, rows of norm √d). Ours is `gradient_descent(model, X, y, steps, rate,
stop=Stop(rtol=1e-6), measure=0)`: without the two SVDs of Z by which it reports σ_min(Z) at the first and the
last step by default, since the peer does not report it. torchdeq: its DEQ with exact implicit gradients, cold
at every step, as it is used; the same tolerance forward and backward. Verified: distance of the weights after
the steps from those of a float64 run at 1e-11, relative to the way they went. A unit whose pre-activation is
0 within the tolerance may be read on either side, and one such unit of one row moves a gradient by about 1e-3
of its size at m = 1000.
"""

from __future__ import annotations

import copy
import importlib.util
import math
from functools import partial

import torch
from torch import Tensor

import equipoise as eq
from bench.measure import Absent, Contender, Row, side_by_side

RTOL = 1e-6
TARGETS = {4: {500: 2.5, 1000: 2.5, 2000: 2.5}, 20: {500: 4.0, 1000: 4.0, 2000: 3.0}}  # by steps, by m


REASONS = {
    "steps": "Five products in float64 (X Uᵀ, two verifications, two gradients) are half of our time, and no "
    "start saves them. The adjoint cannot be forecast where a unit has changed its sign, in about 7 % of the "
    "rows at each step: these rows take as many steps as from a cold start."
}


def run(quick: bool = False) -> list[Row]:
    return _at(4, 500) if quick else [row for part in PARTS.values() for row in part()]


def _at(steps: int, m: int, n: int = 1000, d: int = 1000) -> list[Row]:
    generator = torch.Generator().manual_seed(m)
    X = torch.randn(n, d, dtype=torch.float64, generator=generator)
    X *= math.sqrt(d) / X.norm(dim=1, keepdim=True)
    y = torch.randn(n, dtype=torch.float64, generator=generator)
    start = eq.GaussianReLU(d, m, dtype=torch.float64, generator=generator)
    eta = 0.5 / float(torch.linalg.matrix_norm(start.equilibrium(X).detach(), ord=2)) ** 2
    first = _weights(start)

    def trained(rtol: float) -> Tensor:
        model = copy.deepcopy(start)
        eq.gradient_descent(model, X, y, steps, eta, stop=eq.Stop(rtol=rtol), measure=0)
        return _weights(model)

    exact = trained(1e-11)
    verify = lambda weights: float((weights - exact).norm() / (exact - first).norm())
    repeats = 3 if steps * m <= 4000 else 1
    ours = Contender("gradient_descent", lambda: trained(RTOL))
    peers = [_torchdeq(start, X, y, eta, steps)]
    return side_by_side(
        f"{steps} steps, m={m}, n={n}", ours, peers, verify, repeats, {"torchdeq": TARGETS[steps][m]}
    )


def _weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _torchdeq(start: eq.GaussianReLU, X: Tensor, y: Tensor, eta: float, steps: int) -> Contender | Absent:
    name = "torchdeq implicit"
    if importlib.util.find_spec("torchdeq") is None:
        return Absent(name, "not installed")
    from torchdeq import get_deq

    options = {
        "f_solver": "fixed_point_iter",
        "b_solver": "fixed_point_iter",
        "f_max_iter": 200,
        "b_max_iter": 200,
    }
    deq = get_deq(ift=True, f_tol=RTOL, b_tol=RTOL, f_stop_mode="rel", b_stop_mode="rel", **options)

    def solve() -> Tensor:
        model = copy.deepcopy(start)
        optimiser = torch.optim.SGD(model.parameters(), lr=eta)
        for _ in range(steps):
            u = X @ model.U.T
            (z,), _ = deq(lambda z, u=u: torch.relu(z @ model.W.T + u), torch.zeros_like(u))
            loss = 0.5 * (z @ model.a - y).square().sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return _weights(model)

    return Contender(name, solve)


PARTS = {f"{steps}-{m}": partial(_at, steps, m) for m in (500, 1000, 2000) for steps in (4, 20)}
