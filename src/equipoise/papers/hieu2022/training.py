"""θ by Adam, its rate falling as a cosine: the residual DEQs of [hieu2022, chapter 4] and their repeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...differentiate import jacobian_penalty
from ...models.images import ImageModel
from ...models.zoo import ResidualConv
from ...solve import Anderson, Broyden, Stop
from ..framework.small import seeded, take_step

BATCH = 100
RATES = {"tiny": 1e-2, "medium": 3e-3, "paper": 1e-3}  # a larger rate for fewer steps
STOP = Stop(rtol=1e-2, max_steps=50)  # of training, as in the text of §4.1.2

# For measurements equilibria are searched from zero, by each solver for the images that the one before left.
# f is continuous and its last norm bounds it, so that one exists for any weights (Brouwer), found or not.
SEARCH = (Anderson(memory=5), Broyden(memory=30), Anderson(memory=20))
FAR = Stop(rtol=1e-2, max_steps=200, patience=200)


def build(X: Tensor, channels: int, seed: int, **options: Any) -> ResidualConv:
    """The residual DEQ for images like X; large ones are halved by the first convolution."""
    return ResidualConv(
        tuple(X.shape[1:]),
        channels,
        groups=4,
        extractor=(2,) if X.shape[2] > 16 else (1,),
        on_failure="accept",
        generator=seeded(seed),
        **{"stop": STOP, **options},
    )


def fit(
    model: nn.Module,
    X: Tensor,
    y: Tensor,
    epochs: int,
    *,
    seed: int,
    rate: float,
    penalty: float = 0.0,
    after: Callable[[int], None] = lambda epoch: None,
) -> list[float]:
    """Mean cross-entropy by epoch; `after(epoch)` is called at 0 and after every epoch.

    `penalty` times an estimate of ‖∂f/∂z‖_F² / D at the equilibria is added to what is minimised.
    """
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    steps = epochs * -(-len(X) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(steps, 1))
    shuffle, signs = (seeded(seed) for _ in range(2))
    losses: list[float] = []
    after(0)
    for epoch in range(1, epochs + 1):
        total = 0.0
        for rows in torch.randperm(len(X), generator=shuffle).split(BATCH):
            x, extra = X[rows], None
            if penalty and isinstance(model, ImageModel):
                z, c = model.equilibrium(x), model.injection(x)
                loss = F.cross_entropy(model.readout(z), y[rows])
                extra = penalty * jacobian_penalty(model, *c, shared=model.shared(), z=z, generator=signs)
            else:
                loss = F.cross_entropy(model(x), y[rows])
            take_step(optimiser, schedule, loss if extra is None else loss + extra)
            total += loss.item() * len(rows)
        losses.append(total / len(X))
        after(epoch)
    return losses
