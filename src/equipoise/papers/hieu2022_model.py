"""f(z, x) = norm(relu(z + norm(x + W₂⋆norm(relu(W₁⋆z))))): the residual DEQ of [hieu2022, (4.1)]."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import Dataset, prepare
from ..models import Equilibrium
from ..models.baselines import Repeat
from ..solve import Anderson, Stop
from .experiments import Progress

GROUPS = 4


class Cell(nn.Module):
    """(z, x) ↦ norm(relu(z + norm(x + W₂⋆norm(relu(W₁⋆z))))), group norms, 3×3 convolutions."""

    def __init__(self, channels: int, std: float, generator: torch.Generator) -> None:
        super().__init__()
        for name in ("W1", "W2"):
            draw = std * torch.randn(channels, channels, 3, 3, generator=generator)
            setattr(self, name, nn.Parameter(draw))
        self.norms = nn.ModuleList(nn.GroupNorm(GROUPS, channels) for _ in range(3))

    W1: nn.Parameter
    W2: nn.Parameter

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        inner = self.norms[0](torch.relu(F.conv2d(z, self.W1, padding=1)))
        branch = self.norms[1](x + F.conv2d(inner, self.W2, padding=1))
        return self.norms[2](torch.relu(z + branch))


class ResidualNetwork(nn.Module):
    """x ↦ extractor → equilibrium of the cell (or the cell `repeats` times) → means → linear."""

    def __init__(
        self,
        channels_in: int,
        channels: int,
        *,
        repeats: int | None = None,
        std: float = 0.01,
        stride: int = 1,
        classes: int = 10,
        stop: Stop | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.stride = stride
        size = (2 / (9 * channels_in)) ** 0.5
        self.inject = nn.Parameter(size * torch.randn(channels, channels_in, 3, 3, generator=generator))
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.cell = Cell(channels, std, generator)
        self.layer: nn.Module = (
            Equilibrium(
                self.cell, solver=Anderson(), stop=stop or Stop(rtol=1e-2, max_steps=50), on_failure="accept"
            )
            if repeats is None
            else Repeat(self.cell, repeats)
        )
        self.head = nn.Parameter(torch.randn(classes, channels, generator=generator) / channels**0.5)
        self.shift = nn.Parameter(torch.zeros(classes))

    def features(self, x: Tensor) -> Tensor:
        """What is injected, (N, c, h, w)."""
        return self.norm(F.conv2d(x, self.inject, stride=self.stride, padding=1))

    def forward(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        features = self.features(x)
        z = self.layer(features) if start is None else self.layer(features, start=start)
        return z.mean(dim=(2, 3)) @ self.head.T + self.shift


def images(dataset: Dataset, train: int, test: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images (N, C, H, W) in [−1, 1] and their labels, training and test."""
    part = prepare.subsample(dataset, min(train, len(dataset.x_train)), min(test, len(dataset.x_test)), seed)
    top = 16.0 if dataset.name == "digits" else 1.0 if dataset.x_train.max() <= 1 else 255.0

    def planes(x: np.ndarray) -> Tensor:
        x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(x)).float() * (2 / top) - 1

    labels = torch.from_numpy
    return planes(part.x_train), labels(part.y_train), planes(part.x_test), labels(part.y_test)


def build(dataset: Dataset, channels: int, seed: int, **options: Any) -> ResidualNetwork:
    """A network for the images of a data set; large images are halved by the first convolution."""
    shape = dataset.x_train.shape[1:]
    channels_in = shape[2] if len(shape) == 3 else 1
    stride = 2 if shape[0] > 16 else 1
    return ResidualNetwork(channels_in, channels, stride=stride, seed=seed, **options)


def fit(
    model: ResidualNetwork,
    X: Tensor,
    y: Tensor,
    epochs: int,
    *,
    seed: int,
    rate: float = 1e-3,
    batch: int = 100,
    progress: Progress = lambda share: None,
    after: Any = None,
) -> list[float]:
    """Adam, cosine schedule; `after(epoch)` is called at 0 and after every epoch. Mean loss by epoch."""
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    steps = epochs * -(-len(X) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(steps, 1))
    shuffle = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    if after is not None:
        after(0)
    for epoch in range(1, epochs + 1):
        total = 0.0
        for rows in torch.randperm(len(X), generator=shuffle).split(batch):
            loss = F.cross_entropy(model(X[rows]), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += loss.item() * len(rows)
        losses.append(total / len(X))
        progress(epoch / epochs)
        if after is not None:
            after(epoch)
    return losses


@torch.no_grad()
def accuracy(model: ResidualNetwork, X: Tensor, y: Tensor) -> float:
    parts = [model(x).argmax(dim=1) for x in X.split(500)]
    return (torch.cat(parts) == y).double().mean().item()
