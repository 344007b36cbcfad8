"""What the loops over mini-batches of the papers share."""

from __future__ import annotations

import torch
from torch import Tensor


def take_step(
    optimiser: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler, loss: Tensor
) -> float:
    """One step down a loss, which is returned, and one of the schedule of the learning rate."""
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    schedule.step()
    return loss.item()
