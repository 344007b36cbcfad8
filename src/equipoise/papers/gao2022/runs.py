"""A(k+1) = A(k) − η∇_A L, from W ~ N(0, 1/m), A = I, b = 0: curves of [gao2022, §7], each a unit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...losses import HalfSquare
from ...models import ScaledReLU
from ...solve import EquilibriumError, Stop
from ...train import gradient_descent
from ..framework.experiments import Context, Measured, Progress
from ..framework.images import TwoClasses, room, two_classes, two_classes_in_words
from ..framework.small import moments, norm, seeded

DATA = ("mnist", "fashion_mnist", "cifar10", "svhn")
GAMMAS = (0.1, 0.3, 0.5, 0.8)
STEP = 1.0  # ηN of the paper: η = 10⁻³ at N = 1000
CALM = 0.15  # ηN at which γ = .8 descends
TOLERANCE, MOST = 1e-2, 100  # of the paper's forward pass: ‖Z^{l+1} − Z^l‖, and its limit
MOMENTS = 26  # at which the test loss, ‖A‖ and the iterations are measured


def sizes(context: Context) -> dict[str, Any]:
    """What a scale means here. The paper has 500 samples of each class, m = 1000 and 500 epochs."""
    return {
        "per_class": context.pick(tiny=6, small=50, medium=500),
        "width": context.pick(tiny=12, small=100, medium=1000),
        "widths": context.pick(
            tiny=(6, 12), small=(25, 50, 100, 200), medium=(100, 300, 1000), paper=(100, 500, 1000, 2000)
        ),
        "epochs": context.pick(tiny=6, small=200, medium=500),
    }


def grid(context: Context, own: Sequence[str], runs: Mapping[str, Mapping[str, Any]]) -> Measured:
    """{"data": {name: {label: [one curve for each seed]}}} on the data asked for, or the paper's own.

    A run names what differs from the paper's m = N, γ = .1 and η = 1/N; it may have `seeds` of its own.
    """
    size = sizes(context)
    usual = {"width": size["width"], "gamma": 0.1, "step": STEP, "epochs": size["epochs"]}
    seeds = len(context.seeds(tiny=1, small=3, medium=1, paper=5))
    found: Measured = {"data": {}}
    for name in context.datasets(*own):
        found["data"][name] = {}
        for label, run in runs.items():
            settings = {**usual, **run}
            count = settings.pop("seeds", seeds)
            curves = [curve(context, name, seed=seed, **settings) for seed in range(count)]
            found["data"][name][label] = curves
    return found


def curve(
    context: Context, data: str, *, width: int, gamma: float, step: float, seed: int, epochs: int
) -> Measured:
    """One run: training loss at every epoch; test loss, γ‖A‖ and forward iterations at some; `step` is ηN."""
    dataset = context.load(data)
    per_class, _ = room(dataset, sizes(context)["per_class"])
    source = context.source(data, two_classes_in_words(dataset, per_class))
    run: dict[str, Any] = {"width": width, "gamma": gamma, "step": step, "seed": seed, "epochs": epochs}
    compute = lambda progress: _descend(two_classes(dataset, per_class, seed), progress, **run)
    name = f"{data}-m{width}-gamma{gamma:g}-step{step:g}-seed{seed}"
    inputs = {"data": source, "per_class": per_class, **run}
    return {**context.unit("gao2022.descent", name, inputs, compute), "N": 2 * per_class}


def _descend(
    split: TwoClasses, progress: Progress, *, width: int, gamma: float, step: float, seed: int, epochs: int
) -> Measured:
    X, y = split.X, split.y
    model = ScaledReLU(X.shape[1], width, gamma, generator=seeded(seed))
    measured_at = moments(epochs, MOMENTS)
    found: dict[str, list[float]] = {name: [] for name in ("at", "test_loss", "norm", "batch", "sample")}

    def look(k: int, loss: float) -> None:
        progress(k / max(epochs, 1))
        if k in measured_at and math.isfinite(loss):
            row = (k, _test_loss(model, split), gamma * norm(model.A), *iterations(model, X))
            for name, value in zip(found, row, strict=True):
                found[name].append(value)

    Phi = norm(model.injection(X))
    stop = Stop(max_steps=2000, patience=200)
    history = gradient_descent(model, X, y, epochs, step / len(X), measure=0, stop=stop, progress=look)
    return {
        **found,
        "loss": history.loss,
        "stopped": history.stopped.splitlines()[0] if history.stopped else "",
        "stable_step": 2 * (1 - gamma) ** 2 / Phi**2 * len(X),  # of ηN, at the start
    }


def _test_loss(model: ScaledReLU, split: TwoClasses) -> float:
    try:
        with torch.no_grad():
            return HalfSquare()(model(split.X_test), split.y_test).item() / len(split.y_test)
    except EquilibriumError:
        return math.nan


@torch.no_grad()
def iterations(model: ScaledReLU, X: Tensor) -> tuple[int, float]:
    """Iterations from 0 until ‖Z^{l+1} − Z^l‖ ≤ 10⁻²: of the batch (Frobenius), and the mean of the rows."""
    f = model.affine_map(X)
    Z, batch = torch.zeros(len(X), model.width), 0
    rows = torch.zeros(len(X))
    for l in range(1, MOST + 1):
        after = f(Z)
        change = (after - Z).norm(dim=1)
        Z = after
        rows = torch.where((rows == 0) & (change <= TOLERANCE), float(l), rows)
        if not batch and change.norm() <= TOLERANCE:
            batch = l
            break
    rows = torch.where(rows == 0, float(MOST), rows)
    return batch or MOST, rows.mean().item()


def predicted(model: ScaledReLU, X: Tensor) -> int:
    """⌈ln(100‖Φ‖_F)/ln(1/γ)⌉ + 1, the count at A = I."""
    size = model.injection(X).norm().item()
    return math.ceil(math.log(size / TOLERANCE) / math.log(1 / model.gamma)) + 1


# -- reading curves ------------------------------------------------------------------------------------------


def ended(run: Measured) -> bool:
    """Whether a run came to its last epoch with a finite loss; otherwise it is lost."""
    return not run["stopped"] and run["loss"][-1] is not None


def learned(run: Measured) -> bool:
    """Whether a run came to its last epoch with a loss below its first; otherwise it still has a loss."""
    return ended(run) and run["loss"][-1] < run["loss"][0]


def finals(runs: Sequence[Measured]) -> list[float]:
    """The last training loss per sample of every run; infinite if it was lost."""
    return [r["loss"][-1] / r["N"] if ended(r) else math.inf for r in runs]


def finals_test(runs: Sequence[Measured]) -> list[float]:
    """The last test loss per sample of every run; infinite if the run was lost, or has none there."""
    values = [r["test_loss"][-1] if ended(r) and r["test_loss"] else None for r in runs]
    return [math.inf if v is None else v for v in values]


def rises(loss: Sequence[float | None]) -> np.ndarray:
    """The epochs at which the loss rose by more than 10⁻⁴ of it."""
    values = np.array(loss, dtype=float)
    return np.flatnonzero(values[1:] > (1 + 1e-4) * values[:-1]) + 1
