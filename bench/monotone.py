"""z = relu(W z + U x), ‖W‖ > 1, I − W monotone with margin μ = ½, to 1e-6 in every sample, in float64.

W = (1 − μ)I − AᵀA + B − Bᵀ as in hieu2022, A and B with entries N(0, 1/m): ‖W‖ ≈ 4.5, plain iteration
diverges. Ours is `model.solve(X, stop=Stop(rtol=1e-6))` of a Monotone, which checks whether A and B are still
those of its last call and multiplies X by Uᵀ within its time. The peers get U x, and accelerate the splitting
maps a user would hand them: forward-backward, z ↦ relu(z − α((I − W) z − b)), at the better of the steps μ/ℓ²
and 1/ℓ; and Peaceman-Rachford's q ↦ C h + c with C computed beforehand. What is computed once for W (μ, ℓ,
the inverse) is timed on neither side; our time for it is in the notes of the table that the command prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import equipoise as eq
from bench.forward import relative_residual
from bench.measure import Absent, Contender, Row, fastest, side_by_side
from bench.peers import Problem, contenders

LIMIT = 1e-6
MARGIN = 0.5
ANDERSON = ("torchdeq Anderson", "jaxopt Anderson")
TARGETS = {"torchdeq Anderson, forward-backward": 3.0, "jaxopt Anderson, forward-backward": 3.0}


REASONS = {
    "n=1:": "One sample takes 27 products with a matrix of 8 MB, .34 ms each, the time of reading it: "
    "two thirds of our time. A fifth is what the peers are spared: X Uᵀ, and the check whether A and B are "
    "those of the last call.",
    "monotone": "Thirty products with matrices of m × m, most of them in float32, are three fifths of our "
    "time; X Uᵀ and the check whether A and B are those of the last call, which the peers are spared, are a "
    "tenth.",
}


def run(quick: bool = False) -> list[Row]:
    return [row for n in (1, 8, 64) for row in _at(n, 500 if quick else 1000)]


def _at(n: int, m: int = 1000) -> list[Row]:
    model = eq.Monotone(m, m, margin=MARGIN, dtype=torch.float64, generator=torch.Generator().manual_seed(m))
    stop = eq.Stop(rtol=LIMIT)
    begin = time.process_time()
    model.solve(torch.ones(16, m, dtype=torch.float64), stop=stop).raise_if_failed()
    setup = f"once for W: {1e3 * (time.process_time() - begin):.0f} ms"
    X = torch.randn(n, m, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    affine = model.affine_map(X)
    ours = lambda: model.solve(X, stop=stop).value
    size = float(ours().norm())
    verify = lambda z: relative_residual(affine.weight, affine.bias, z)
    peers = _forward_backward(affine, size, verify) + _peaceman_rachford(affine, size, verify)
    work = f"monotone, m={m}, n={n}"
    found = side_by_side(work, Contender("model.solve", ours), peers, verify, repeats=5, targets=TARGETS)
    return [replace(row, note=row.note or setup) for row in found]


def _forward_backward(
    affine: eq.AffineMap, size: float, verify: Callable[[Tensor], float]
) -> list[Contender | Absent]:
    """Anderson on z ↦ relu(z − α((I − W) z − b)), at the step that serves it better."""
    best = []
    for name in ANDERSON:
        tried: list[Contender | Absent] = []
        for alpha in (MARGIN / affine.lipschitz**2, 1 / affine.lipschitz):
            problem = Problem(
                lambda z, w, b, alpha=alpha: torch.relu(
                    torch.addmm(torch.lerp(z, b, alpha), z, w.T, alpha=alpha)
                ),
                lambda z, w, b, alpha=alpha: _jax_relu((1 - alpha) * z + alpha * (z @ w.T + b)),
                (affine.weight, affine.bias),
                torch.zeros_like(affine.bias),
                size,
            )
            tried += contenders(problem, verify, LIMIT, (name,), ", forward-backward")
        best.append(fastest(tried))
    return best


def _peaceman_rachford(
    affine: eq.AffineMap, size: float, verify: Callable[[Tensor], float]
) -> list[Contender | Absent]:
    """Anderson on q ↦ C|q| + c, since 2 relu(q) − q = |q|."""
    alpha = 1 / affine.lipschitz
    eye = torch.eye(len(affine.weight), dtype=affine.weight.dtype)
    inverse = torch.linalg.inv(eye + alpha * (eye - affine.weight))
    problem = Problem(
        lambda q, cayley, c: torch.addmm(c, q.abs(), cayley.T),
        lambda q, cayley, c: abs(q) @ cayley.T + c,
        (2 * inverse - eye, 2 * alpha * affine.bias @ inverse.T),
        torch.zeros_like(affine.bias),
        size,
        torch.relu,
    )
    return contenders(problem, verify, LIMIT, ANDERSON, ", Peaceman-Rachford map")


def _jax_relu(p: Any) -> Any:
    import jax

    return jax.nn.relu(p)


PARTS = {f"n={n}": partial(_at, n) for n in (1, 8, 64)}
