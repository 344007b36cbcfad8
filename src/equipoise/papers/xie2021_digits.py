"""z^K = K steps of T_R∘T or of SAM,  α × R: the grid of [xie2021, Tables 1a and 3], dense, on 8 × 8 digits.

The paper trains five convolutions on CIFAR10 for 200 epochs. Here a DeepOptEq of two layers on 64 features
stands for it, trained as there: SGD at rate .1 (halved twice), momentum, weight decay 3e-4, batches of 128,
K = 20 unrolled steps, ‖W_l‖ ≤ 1 by projection. What is compared is α and R, not the paper's accuracies.

    for row in run("small", seeds=3): print(row)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data import load
from ..models.opteq import DeepOptEq
from ..models.properties import L1, GradientStep, SquaredL2
from ..solve import SAM, decorrelation, half_squared_norm, inverse_norm
from .verdicts import standard_error, with_error

ALPHAS = (0.01, 0.1, 0.4, 0.8, 1.0)
STATE, HIDDEN, STEPS = 64, [64, 64], 20
CHANNELS = 8  # the state as 8 channels at 8 positions, which the decorrelation sets against each other
EPOCHS = {"tiny": 1, "small": 6, "medium": 40, "paper": 200}  # of 1437 training samples, tiny of 640

# What each column adds to the network; those of SAM choose among equilibria, the others append a layer.
COLUMNS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "SAM ½‖z‖²": lambda: {"solver": SAM(half_squared_norm())},
    "SAM 1/(‖z‖²+1), not convex": lambda: {"solver": SAM(inverse_norm(1.0))},
    "SAM decorrelation, not convex": lambda: {"solver": SAM(decorrelation(CHANNELS))},
    "prox .05‖z‖₁": lambda: {"regulariser": L1(0.05)},
    "prox .1‖z‖²": lambda: {"regulariser": SquaredL2(0.1)},
    "decorrelation layer, not convex": lambda: {"regulariser": GradientStep(decorrelation(CHANNELS))},
}


@dataclass(frozen=True)
class Row:
    """One cell of the grid: accuracies on the test part over the seeds."""

    alpha: float
    column: str
    accuracies: tuple[float, ...]
    residual: (
        float  # ‖T(z^K) − z^K‖/‖T(z^K)‖, mean over samples and seeds: how far K steps are from a fixed point
    )
    zeros: float  # share of entries of z^K that are exactly 0
    norm: float  # ‖z^K‖, mean over samples and seeds
    parameters: int

    @property
    def mean(self) -> float:
        return sum(self.accuracies) / len(self.accuracies)

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None for one seed."""
        return standard_error(self.accuracies)

    def __str__(self) -> str:
        score = with_error(100 * self.mean, None if self.error is None else 100 * self.error)
        return (
            f"α = {self.alpha:<4g} {self.column:<32} {score} %   "
            f"residual {self.residual:.1e}, ‖z‖ {self.norm:.2f}, zeros {100 * self.zeros:.0f} %"
        )


def run(
    scale: str = "small",
    seeds: int = 3,
    alphas: Sequence[float] = ALPHAS,
    columns: Sequence[str] | None = None,
    progress: Callable[[Row], None] | None = None,
) -> list[Row]:
    """The grid, a row a cell. `scale` sets the epochs: tiny 1, small 6, medium 40, paper 200."""
    if scale not in EPOCHS:
        raise ValueError(f"scale must be one of {', '.join(EPOCHS)}. Got {scale!r} instead.")
    unknown = sorted(set(columns or ()) - set(COLUMNS))
    if unknown:
        raise ValueError(f"columns must be among {', '.join(COLUMNS)}. Got {', '.join(unknown)} instead.")
    data, rows = _digits(640 if scale == "tiny" else None), []
    for alpha in alphas:
        for column in columns or tuple(COLUMNS):
            cells = [_train(alpha, column, seed, EPOCHS[scale], data) for seed in range(seeds)]
            mean = lambda name, cells=cells: sum(c[name] for c in cells) / len(cells)
            row = Row(
                alpha,
                column,
                tuple(c["accuracy"] for c in cells),
                mean("residual"),
                mean("zeros"),
                mean("norm"),
                int(cells[0]["parameters"]),
            )
            rows.append(row)
            if progress is not None:
                progress(row)
    return rows


def build(alpha: float, column: str, seed: int) -> DeepOptEq:
    """The network of one cell, trained by K = 20 unrolled steps."""
    return DeepOptEq(
        64,
        STATE,
        HIDDEN,
        alpha,
        outputs=10,
        gradient=STEPS,
        on_failure="accept",  # z^K is the state whatever its residual, which is reported
        generator=torch.Generator().manual_seed(seed),
        **COLUMNS[column](),
    )


def _digits(most: int | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features in [0, 1] less their training mean, and labels; the first `most` training samples."""
    data = load("digits")
    X, X_test = (torch.as_tensor(x).flatten(1).float() / 16 for x in (data.x_train, data.x_test))
    mean = X.mean(dim=0)
    return (
        (X - mean)[:most],
        torch.as_tensor(data.y_train)[:most],
        X_test - mean,
        torch.as_tensor(data.y_test),
    )


def _train(
    alpha: float, column: str, seed: int, epochs: int, data: tuple[Tensor, Tensor, Tensor, Tensor]
) -> dict[str, float]:
    X, y, X_test, y_test = data
    model, order = build(alpha, column, seed), torch.Generator().manual_seed(1000 + seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=3e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [epochs // 2 + 1, 3 * epochs // 4 + 1], 0.5)
    for _ in range(epochs):
        for rows in torch.randperm(len(X), generator=order).split(128):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(X[rows]), y[rows]).backward()
            optimiser.step()
            model.project_()
        schedule.step()
    with torch.no_grad():
        Z = model.equilibrium(X_test)
        solution = model.last.forward
        assert solution is not None
        return {
            "accuracy": float((model.readout(Z).argmax(dim=1) == y_test).float().mean()),
            "residual": float(solution.relative_residual.mean()),
            "zeros": float((Z == 0).float().mean()),
            "norm": float(Z.norm(dim=1).mean()),
            "parameters": sum(p.numel() for p in model.parameters()),
        }
