"""Thirty runs (5 seeds × 6 step sizes) of 100 full-batch steps of small networks, trained as one program.

There are two ratios: thirty runs in a loop over thirty at once (how much is gained), and one run over thirty
at once, for which a sixth or more is the aim. The gain is large while a step is mostly overhead; at m = 150
it is mostly arithmetic.
"""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor

import equipoise as eq
from bench.measure import Contender, Row, side_by_side

REASONS = {
    "GaussianReLU": "Thirty runs take thirty times the arithmetic of one. In a profile at m = 50 a step has "
    "27 products of batches, three tenths of the time; most of the rest is spent on each of the 3,000 rows: "
    "activations, norms, and the judgement of the solver.",
}
RATES = [1e-5, 5e-6, 1e-6, 5e-7, 1e-7, 5e-8]


def run(quick: bool = False) -> list[Row]:
    if quick:
        return _at(10, steps=20)
    return [row for part in PARTS.values() for row in part()]


def _at(m: int, N: int = 100, steps: int = 100) -> list[Row]:
    generator = torch.Generator().manual_seed(m)
    normal = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)
    X = normal(N, m)
    linear = [eq.LinearEquilibrium(m, dtype=torch.float64, generator=generator) for _ in range(30)]
    rows = _compare(f"LinearEquilibrium, m={m}, N={N}", linear, X, normal(N, 1), steps)
    relu = [eq.GaussianReLU(m, m, dtype=torch.float64, generator=generator) for _ in range(30)]
    return rows + _compare(f"GaussianReLU, m={m}, N={N}", relu, X, normal(N), steps)


def _compare(name: str, models: list, X: Tensor, y: Tensor, steps: int) -> list[Row]:  # type: ignore[type-arg]
    rates = RATES * 5

    def together() -> Tensor:
        return _losses(eq.train_many(copy.deepcopy(models), X, y, steps, rates))

    def loop() -> Tensor:
        pairs = zip(copy.deepcopy(models), rates, strict=True)
        return _losses([eq.gradient_descent(m, X, y, steps, r, measure=0) for m, r in pairs])

    def one() -> Tensor:
        return _losses([eq.gradient_descent(copy.deepcopy(models[0]), X, y, steps, rates[0], measure=0)])

    exact = loop()
    verify = lambda loss: float(((loss - exact[: len(loss)]) / exact[: len(loss)]).abs().max())
    peers = [Contender("a loop over thirty", loop), Contender("one run alone", one)]
    ours = Contender("thirty at once", together)
    return side_by_side(f"30 runs of {name}", ours, peers, verify, 3, {"one run": 1 / 6})


def _losses(histories: list[eq.History]) -> Tensor:
    return torch.tensor([h.loss[-1] for h in histories])


PARTS = {f"m={m}": partial(_at, m) for m in (10, 50, 150)}
