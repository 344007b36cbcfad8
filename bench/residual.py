"""A residual cell with GroupNorm on images of digits, as papers on DEQs train it: passes, and three epochs.

Of three epochs of Adam in batches of 50, each side by one word for such a cell (ours `on_failure="count"`,
torchdeq's 30 steps), from the same weights and in turns, the error is the share of 397 held-out images that
the last network gets wrong. Ours counts the rows that 30 steps do not solve, and tells of them once an epoch.
"""

from __future__ import annotations

import time
import warnings

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy, relu

import equipoise as eq
from bench.layers import rows_of, thirty
from bench.measure import Row

CHANNELS, TRAINED = 24, 1400


class ResidualCell(nn.Module):
    """GN(relu(z + GN(x + conv(GN(relu(conv z))))))."""

    def __init__(self, channels: int = CHANNELS) -> None:
        super().__init__()
        self.inner, self.outer = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels) for _ in range(3))
        for conv in (self.inner, self.outer):
            nn.init.normal_(conv.weight, std=0.01)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        first, second, last = self.norms
        return last(relu(z + second(x + self.outer(first(relu(self.inner(z)))))))


def run(quick: bool = False) -> list[Row]:
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    with torch.no_grad():
        x = nn.Conv2d(1, CHANNELS, 3, padding=1)(images[: 16 if quick else 50])
    found = rows_of("residual cell", ResidualCell(), (x,), 1e-3, 3 if quick else 7, target=1.3)
    if thirty() is None:
        return found
    labels = torch.tensor(digits.target)
    return found + [_training(images, labels, seed, quick) for seed in range(1 if quick else 5)]


class Side(nn.Module):
    """A classifier by the cell, what its training has taken, and its share of wrong answers."""

    def __init__(self, ours: bool) -> None:
        super().__init__()
        self.inject, self.cell = nn.Conv2d(1, CHANNELS, 3, padding=1), ResidualCell()
        self.head = nn.Linear(CHANNELS * 16, 10)
        self.layer = eq.Equilibrium(self.cell, on_failure="count") if ours else None
        self.deq = None if ours else thirty()
        self.optimiser = torch.optim.Adam(self.parameters(), 1e-3)
        self.ms, self.wrong = 0.0, 1.0

    def forward(self, images: Tensor) -> Tensor:
        x = self.inject(images)
        if self.layer is not None:
            z = self.layer(x)
        else:
            z = self.deq(lambda z: self.cell(z, x), torch.zeros_like(x))[0][-1]
        return self.head(avg_pool2d(z, 2).flatten(1))

    def epoch(self, images: Tensor, labels: Tensor, order: Tensor) -> None:
        """One epoch, and a look at the held-out images; both count."""
        begin = time.process_time()
        self.train()
        for batch in order.split(50):
            self.optimiser.zero_grad()
            cross_entropy(self(images[batch]), labels[batch]).backward()
            self.optimiser.step()
        self.eval()
        with torch.no_grad():
            guess = self(images[TRAINED:]).argmax(dim=1)
        self.ms += 1e3 * (time.process_time() - begin)
        self.wrong = float((guess != labels[TRAINED:]).float().mean())


def _training(images: Tensor, labels: Tensor, seed: int, quick: bool) -> Row:
    epochs, rows = (1, 200) if quick else (3, TRAINED)
    sides = []
    for ours in (True, False):
        torch.manual_seed(seed)
        sides.append(Side(ours))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", eq.EquilibriumWarning)
        for epoch in range(epochs):
            order = torch.randperm(rows, generator=torch.Generator().manual_seed(100 * seed + epoch))
            for side in sides if epoch % 2 else reversed(sides):
                side.epoch(images, labels, order)
    ours, peer = sides
    work = f"residual cell, {epochs} epochs, seed {seed} (share wrong)"
    ratio = peer.ms / ours.ms
    return Row(work, ours.ms, "torchdeq 30 steps", peer.ms, ours.wrong, peer.wrong, ratio, target=1.0)
