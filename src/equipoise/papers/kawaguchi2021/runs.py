"""v ← .8v + ∇L, θ ← θ − ηv on mini-batches: every trial and learning rate of a model as one tensor program.

Parameters have a leading dimension of runs, R = trials × rates, as in `train_many`; here the models are the
three kinds of [kawaguchi2021, Appendix D], and the loss is the mean over the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data import Dataset, prepare
from ..framework.experiments import Context, Measured, Progress
from ..framework.small import seeded

RATES = (0.01, 0.005, 0.001, 0.0005, 0.0001, 0.00005)
GAMMA, FEATURES, BATCH, MOMENTUM = 0.8, 150, 64, 0.8
LOST = 1e9  # a mean loss from which no run comes back

Parameters = list[Tensor]  # each (R, …)


@dataclass(frozen=True)
class Kind:
    """A model of the comparison: how it starts and what it predicts."""

    name: str  # "linear", "delm" or "dnn"
    depth: int = 0
    bias: bool = True

    @property
    def label(self) -> str:
        """What the figures call it."""
        return {"linear": "linear", "delm": "DELM"}.get(self.name, f"DNN, H = {self.depth}")

    def start(self, m: int, generator: torch.Generator) -> Parameters:
        """One trial: entries N(0, 1/m); the linear model at the predictions of the DELM."""
        normal = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator) / m**0.5
        if self.name != "dnn":
            A, B = normal(m, m), normal(1, m)
            return [A, B] if self.name == "delm" else [_predictor(A[None], B[None])[0]]
        weights = [normal(m, m) for _ in range(self.depth - 1)] + [normal(1, m)]
        biases = [torch.zeros(len(W), dtype=torch.float64) for W in weights] if self.bias else []
        return [*weights, *biases]

    def predict(self, parameters: Parameters, X: Tensor) -> Tensor:
        """(R, b) of X (R, b, m)."""
        if self.name == "linear":
            return (X @ parameters[0].mT)[:, :, 0]
        if self.name == "delm":
            return (X @ _predictor(*parameters).mT)[:, :, 0]
        weights, biases = parameters[: self.depth], parameters[self.depth :]
        h = X
        for l, W in enumerate(weights):
            h = torch.baddbmm(biases[l][:, None, :], h, W.mT) if biases else h @ W.mT
            h = torch.relu(h) if l < self.depth - 1 else h
        return h[:, :, 0]


def _predictor(A: Tensor, B: Tensor) -> Tensor:
    """M = B(I − γS)⁻¹, (R, 1, m); for a run that is lost its numbers mean nothing, but there is no error."""
    eye = torch.eye(A.shape[-1], dtype=A.dtype)
    return torch.linalg.solve_ex((eye - GAMMA * torch.softmax(A, dim=1)).mT, B.mT)[0].mT


def teacher_data(dataset: Dataset, train: int, test: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x = R x_pre with pixels in [0, 1], grey; y = B* z*(x; A*) + N(0, 1): X, y, X_test, y_test."""
    drawn = prepare.subsample(dataset, train, test, seed)
    images = np.concatenate([drawn.x_train, drawn.x_test])
    top = 16.0 if dataset.name == "digits" else 1.0 if images.max() <= 1 else 255.0
    X = prepare.random_projection(prepare.flatten(prepare.grey(images)) / top, FEATURES, seed)
    y = prepare.teacher_targets(X, GAMMA, seed)[:, 0]
    rows, targets = torch.from_numpy(X), torch.from_numpy(y)
    return rows[:train], targets[:train], rows[train:], targets[train:]


def _in_words(train: int, test: int) -> str:
    """What `teacher_data` takes and makes of it."""
    return (
        f"{train} training and {test} test images of all classes, drawn by the seed of the trial; grey, "
        f"pixels in [0, 1], projected to {FEATURES} features by a random matrix; targets of a random DELM "
        f"(γ = {GAMMA:g}) with noise N(0, 1)"
    )


def train(
    kind: Kind,
    data: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]],
    rates: Sequence[float],
    epochs: int,
    progress: Progress,
    moments: int = 41,
) -> Measured:
    """Every trial (one of `data` each) at every rate. Losses are (trials, rates, moments), null if lost."""
    X, y, X_test, y_test = (torch.stack(part) for part in zip(*data, strict=True))  # (T, N, m), (T, N), …
    trials, N, m = X.shape
    starts = [kind.start(m, seeded(t)) for t in range(trials)]
    parameters = [
        torch.stack(p).repeat_interleave(len(rates), dim=0).requires_grad_()
        for p in zip(*starts, strict=True)
    ]
    velocity = [torch.zeros_like(p) for p in parameters]
    step = torch.tensor(rates, dtype=torch.float64).repeat(trials)  # (R,)
    running = torch.arange(len(step))  # which runs these are: one that is lost leaves at the next measurement
    alive = torch.ones(len(step), dtype=torch.bool)
    shuffle = seeded(0)
    at = sorted(set(np.linspace(0, epochs, min(moments, epochs + 1)).round().astype(int).tolist()))
    found: dict[str, list[Any]] = {"train": [], "test": []}

    def loss(X: Tensor, y: Tensor) -> Tensor:
        """Mean square of every run, (R,), each on the rows of its trial."""
        rows = lambda T: T[running // len(rates)]
        return (kind.predict(parameters, rows(X)) - rows(y)).square().mean(dim=1)

    @torch.no_grad()
    def measure() -> None:
        for key, (some, targets) in (("train", (X, y)), ("test", (X_test, y_test))):
            parts = [loss(a, b) * a.shape[1] for a, b in _chunks(some, targets)]
            value = torch.full((trials * len(rates),), math.nan, dtype=torch.float64)
            value[running[alive]] = (torch.stack(parts).sum(dim=0) / some.shape[1])[alive]
            found[key].append(value.reshape(trials, -1))

    for epoch in range(epochs + 1):
        if epoch in at:
            measure()
            progress(epoch / max(epochs, 1))
            parameters = [p.detach()[alive].requires_grad_() for p in parameters]
            velocity, step, running = [v[alive] for v in velocity], step[alive], running[alive]
            alive = alive[alive]
        if epoch == epochs:
            break
        for rows in torch.randperm(N, generator=shuffle).split(BATCH):
            value = loss(X[:, rows], y[:, rows])
            gradients = torch.autograd.grad(value.sum(), parameters)
            alive &= value < LOST
            with torch.no_grad():
                for p, v, g in zip(parameters, velocity, gradients, strict=True):
                    mask = alive.reshape(-1, *[1] * (p.ndim - 1))
                    v.mul_(MOMENTUM).add_(torch.where(mask, g, 0.0))
                    p.sub_(torch.where(mask, step.reshape(mask.shape) * v, 0.0))
    return {"at": at, "rates": list(rates), **{k: torch.stack(v, dim=2) for k, v in found.items()}}


def _chunks(X: Tensor, y: Tensor, rows: int = 2000) -> list[tuple[Tensor, Tensor]]:
    return list(zip(X.split(rows, dim=1), y.split(rows, dim=1), strict=True))


def runs(
    context: Context, name: str, kind: Kind, *, train_rows: int, test_rows: int, **size: Any
) -> Measured:
    """A unit: one model on one data set; `size` has its epochs, its trials and its rates."""
    dataset = context.load(name)
    train_rows, test_rows = min(train_rows, len(dataset.x_train)), min(test_rows, len(dataset.x_test))
    inputs = {
        "data": context.source(name, _in_words(train_rows, test_rows)),
        "kind": [kind.name, kind.depth, kind.bias],
        "rows": [train_rows, test_rows],
        **size,
    }

    def compute(progress: Progress) -> Measured:
        data = [teacher_data(dataset, train_rows, test_rows, seed) for seed in range(size["trials"])]
        return train(kind, data, size["rates"], size["epochs"], progress)

    what = kind.name if kind.name != "dnn" else f"dnn{kind.depth}{'' if kind.bias else '-nobias'}"
    return context.unit("kawaguchi2021.sgd", f"{name}-{what}-n{train_rows}", inputs, compute)


# -- best and worst rates ------------------------------------------------------------------------------------


def chosen(run: Measured) -> dict[str, Any]:
    """The best and the worst rate by the last mean test loss, of those at which no trial was lost."""
    last = np.array(run["test"], dtype=float)[:, :, -1]  # (trials, rates)
    mean = last.mean(axis=0)
    kept = np.flatnonzero(np.isfinite(mean))
    lost = [run["rates"][i] for i in range(len(mean)) if i not in kept]
    if not len(kept):
        return {"lost": lost, "best": None, "worst": None}
    best, worst = (int(kept[pick(mean[kept])]) for pick in (np.argmin, np.argmax))
    return {"lost": lost, "best": best, "worst": worst}


def series(run: Measured, which: str, at: int) -> np.ndarray:
    """(trials, moments) of "train" or "test" at rate number `at`."""
    return np.array(run[which], dtype=float)[:, at]
