"""A residual cell with GroupNorm on images of digits, as papers on DEQs train it: passes, and three epochs.

Of three epochs of Adam in batches of 50, each side by its defaults for such a cell (ours `on_failure="mask"`,
torchdeq 30 steps), the error is the share of 397 held-out images that the last network gets wrong.
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
REASONS = {
    "epochs": "Thirty steps do not bring this cell to its tolerance: the rows above show what they leave. "
    "Ours takes what a relative residual of 1e-4 needs, about 50 steps forward and 30 backward for a row."
}


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
    epochs = 1 if quick else 3
    labels = torch.tensor(digits.target)
    some = slice(0, 200 if quick else TRAINED)
    ours_ms, ours_wrong = _trained(True, images, labels, some, epochs)
    if thirty() is None:
        return found
    peer_ms, peer_wrong = _trained(False, images, labels, some, epochs)
    work = f"residual cell, {epochs} epochs (share wrong)"
    ratio = peer_ms / ours_ms
    return [
        *found,
        Row(work, ours_ms, "torchdeq 30 steps", peer_ms, ours_wrong, peer_wrong, ratio, target=1.0),
    ]


def _trained(ours: bool, images: Tensor, labels: Tensor, some: slice, epochs: int) -> tuple[float, float]:
    """CPU milliseconds of training with an evaluation on held-out images each epoch, and the share wrong."""
    torch.manual_seed(0)
    inject, cell = nn.Conv2d(1, CHANNELS, 3, padding=1), ResidualCell()
    head = nn.Linear(CHANNELS * 16, 10)
    layer = eq.Equilibrium(cell, on_failure="mask")
    deq = None if ours else thirty()

    def answer(batch: Tensor) -> Tensor:
        x = inject(batch)
        z = layer(x) if ours else deq(lambda z: cell(z, x), torch.zeros_like(x))[0][-1]
        return head(avg_pool2d(z, 2).flatten(1))

    optimiser = torch.optim.Adam([p for m in (inject, cell, head) for p in m.parameters()], 1e-3)
    begin, wrong = time.process_time(), 1.0
    for epoch in range(epochs):
        order = torch.randperm(some.stop, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(50):
            optimiser.zero_grad()
            cross_entropy(answer(images[batch]), labels[batch]).backward()
            optimiser.step()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", eq.EquilibriumWarning)
            layer.eval()
            if deq is not None:
                deq.eval()
            guess = answer(images[TRAINED:]).argmax(dim=1)
            layer.train()
            if deq is not None:
                deq.train()
        wrong = float((guess != labels[TRAINED:]).float().mean())
    return 1e3 * (time.process_time() - begin), wrong
