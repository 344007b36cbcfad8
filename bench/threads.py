"""One thread beside two: wall-clock time of the same work, defaults only, the best of several runs in turns.

The ratio is the time with one thread over that with two. CPU time cannot tell it, so that these rows need two
cores that nothing else uses. A product of matrices nearly halves; a solve whose steps are small gains little.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any

import torch

import equipoise as eq
from bench.certificate import instance
from bench.measure import Row


def run(quick: bool = False) -> list[Row]:
    if (os.cpu_count() or 1) < 2:
        return []
    m = 500 if quick else 1000
    model, X, y = instance(m, m)
    single = torch.randn(1, 784, dtype=torch.float64)
    W = model.W.detach()
    works: dict[str, Callable[[], Any]] = {
        f"product of two {m} × {m} matrices": lambda: W @ W,
        f"forward, m={m}, n={m}": lambda: model.solve(X, stop=eq.Stop(rtol=1e-6)),
        f"forward, m={m}, n=1": lambda: model.solve(single, stop=eq.Stop(rtol=1e-6)),
        f"4 steps of gradient descent, m={m}, n={m}": lambda: eq.gradient_descent(
            model, X, y, 4, 1e-12, measure=0
        ),
        f"tangent kernel, m={m}, n={m}": lambda: eq.tangent_kernel(model, X),
        f"certificate, m={m}, n={m}": lambda: eq.certify(model, X, y, theorem="two_timescale"),
    }
    before = torch.get_num_threads()
    try:
        return [_row(name, work, repeats=3 if quick else 5) for name, work in works.items()]
    finally:
        torch.set_num_threads(before)


def _row(name: str, work: Callable[[], Any], repeats: int) -> Row:
    best = {1: math.inf, 2: math.inf}
    for _ in range(repeats + 1):  # the first warms up
        for threads in best:
            torch.set_num_threads(threads)
            begin = time.perf_counter()
            work()
            best[threads] = min(best[threads], 1e3 * (time.perf_counter() - begin))
    return Row(name, best[2], "one thread", best[1], 0.0, ratio=best[1] / best[2], ours="two threads")
