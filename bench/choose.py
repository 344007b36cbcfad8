"""Which solver for which map: products and milliseconds to a relative residual of 1e-9, 64 samples.

Behind docs/how-to-choose.md. No peers: every solver of equipoise on the kinds of maps people meet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import equipoise as eq

STOP = eq.Stop(rtol=1e-9, max_steps=3000)
SOLVERS = [eq.Picard(), eq.Anderson(), eq.Broyden(), eq.Newton(), eq.ForwardBackward(), eq.PeacemanRachford()]


def problems(m: int = 200, n: int = 64) -> dict[str, tuple[Callable[..., Tensor], dict[str, Any]]]:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)  # for the convolution
    normal = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)
    bias, W = normal(n, m), normal(m, m)
    scaled = lambda q: W * (q / torch.linalg.matrix_norm(W, ord=2))
    symmetric = (W + W.T) / 2
    symmetric *= 0.99 / torch.linalg.matrix_norm(symmetric, ord=2)
    A, B = (s * normal(m, m) / m**0.5 for s in (1.5, 1.5))
    monotone = 0.5 * torch.eye(m, dtype=torch.float64) - A.T @ A + B - B.T
    conv = torch.nn.Conv2d(8, 8, 3, padding=1, dtype=torch.float64)
    norm = torch.nn.GroupNorm(4, 8, dtype=torch.float64)
    images = normal(16, 8, 10, 10)
    affine = lambda W: (eq.AffineMap(W, bias), {"z0": None})
    return {
        "relu, ‖W‖ = 0.5": affine(scaled(0.5)),
        "relu, ‖W‖ = 0.95": affine(scaled(0.95)),
        "tanh, symmetric, ‖W‖ = 0.99": (
            lambda z, b: torch.tanh(z @ symmetric + b),
            {"z0": torch.zeros_like(bias), "args": (bias,)},
        ),
        "monotone, ‖W‖ ≫ 1": affine(monotone),
        "convolution with GroupNorm": (
            lambda z, x: norm(torch.relu(0.5 * z + conv(z) + x)),
            {"z0": torch.zeros_like(images), "args": (images,)},
        ),
    }


def run(quick: bool = False) -> list[dict[str, Any]]:
    table = Table(title="evaluations and products (milliseconds) to 1e-9; — where some sample failed")
    table.add_column("map")
    for solver in SOLVERS:
        table.add_column(type(solver).__name__)
    for name, (f, options) in problems(60 if quick else 200).items():
        cells = []
        for solver in SOLVERS:
            if solver.affine_only and not isinstance(f, eq.AffineMap):
                cells.append("n/a")
                continue
            try:
                begin = time.process_time()
                solution = eq.fixed_point(f, solver=solver, stop=STOP, **options)
                spent = 1e3 * (time.process_time() - begin)
            except ValueError:
                cells.append("refused")
                continue
            count = solution.counts.evaluations + solution.counts.jvps
            count += (
                0 if solver.uses_value else int(solution.steps.max())
            )  # a splitting step is a product too
            cells.append(f"{count} ({spent:.0f})" if bool(solution.converged.all()) else "—")
        table.add_row(name, *cells)
    Console(width=150).print(table)
    return []


if __name__ == "__main__":
    torch.set_num_threads(1)
    run()
