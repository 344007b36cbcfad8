"""In which dtype a map computes under autocast, which lowers every product of numbers below float64."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def compute_dtype(z: Tensor) -> torch.dtype:
    """The dtype that limits the residual: under autocast the lower one, but of float64, which it leaves."""
    kind = z.device.type
    lowered = z.dtype != torch.float64 and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if lowered else z.dtype


def full_precision(z: Tensor) -> AbstractContextManager[None]:
    """Where products are taken in the dtype of z, autocast or not."""
    kind = z.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
