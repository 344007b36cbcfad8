"""What a guarantee costs: a certificate beside two SVDs, a safeguarded step beside a plain gradient step.

GaussianReLU as in ling2023 on n points of the sphere of radius √784, float64. A certificate of either theorem
includes its equilibria, solved to 1e-13, and is compared with one SVD of Z and one of W. Steps are averages
over a run: `gradient_descent` at its default tolerance 1e-8, native and mixed, beside `safeguarded_descent`
with the Gauss-Newton readout, all of whose bounds are sound. The target is ⅓: at most three times the cost.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor

import equipoise as eq
from bench.measure import Contender, Row, side_by_side

TARGET = 1 / 3


REASONS = {
    "certificate": "The SVDs are LAPACK's and prove nothing. Ours solves the equilibria to 1e-13 in float64, "
    "and its bounds are products with matrices of absolute values, rounded outward.",
    "a training step": "A safeguarded step solves to a tighter tolerance, bounds what it found outward, and "
    "solves again for every step size that it has to take back.",
}


def run(quick: bool = False) -> list[Row]:
    if quick:
        return certificates(500, 500, repeats=3) + steps(500, 500, count=10, repeats=3)
    return [row for part in PARTS.values() for row in part()]


def certificates(m: int, n: int, repeats: int) -> list[Row]:
    model, X, y = instance(m, n)
    Z, W = model.equilibrium(X).detach(), model.W.detach()
    both = Contender(
        "SVD of Z + SVD of W",
        lambda: [torch.linalg.svd(M, full_matrices=False) for M in (Z, W)],
        lambda _: torch.zeros(()),
    )
    rows = []
    for theorem, options in (("two_timescale", {"readout": "gauss-newton"}), ("safeguarded", {})):
        ours = Contender(
            theorem,
            lambda theorem=theorem, options=options: eq.certify(model, X, y, theorem=theorem, **options),
            lambda certificate: torch.tensor(0.0 if certificate.proved else math.inf),
        )
        rows += side_by_side(f"certificate, m={m}, n={n}", ours, [both], float, repeats, {"SVD": TARGET})
    return rows


def steps(m: int, n: int, count: int, repeats: int) -> list[Row]:
    """The same number of steps each; what is verified is that no step rose above what was promised."""
    model, X, y = instance(m, n)
    certificate = eq.certify(model, X, y, theorem="safeguarded")

    def broken(history: eq.History) -> Tensor:
        return torch.tensor(float(len(history.violations())))

    def plain(precision: str) -> Contender:
        run = lambda: eq.gradient_descent(copy.deepcopy(model), X, y, count, 1e-6, precision=precision)
        return Contender(f"gradient descent, {precision}", run, broken)

    ours = Contender(
        "safeguarded descent",
        lambda: eq.safeguarded_descent(copy.deepcopy(model), X, y, count, certificate),
        broken,
    )
    peers = [plain("native"), plain("mixed")]
    rows = side_by_side(
        f"a training step, m={m}, n={n}", ours, peers, float, repeats, {"gradient descent": TARGET}
    )
    return [
        replace(
            row, ours_ms=row.ours_ms / count, peer_ms=None if row.peer_ms is None else row.peer_ms / count
        )
        for row in rows
    ]


def instance(m: int, n: int, d: int = 784) -> tuple[eq.GaussianReLU, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(m)
    X = torch.randn(n, d, dtype=torch.float64, generator=generator)
    X *= math.sqrt(d) / X.norm(dim=1, keepdim=True)
    y = torch.randn(n, dtype=torch.float64, generator=generator)
    return eq.GaussianReLU(d, m, sigma_w2=0.08, dtype=torch.float64, generator=generator), X, y


PARTS = {
    "1000": lambda: certificates(1000, 1000, repeats=3),
    "1000-steps": lambda: steps(1000, 1000, count=5, repeats=1),
    "2000": lambda: certificates(2000, 1000, repeats=1),
    "2000-steps": lambda: steps(2000, 1000, count=3, repeats=1),
    "4000": lambda: certificates(4000, 1000, repeats=1),
    "4000-steps": lambda: steps(4000, 1000, count=2, repeats=1),
}
