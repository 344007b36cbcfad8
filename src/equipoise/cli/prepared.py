"""The tensors a run's certificates are about: raw rows, prepared as for training."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from ..tasks import Fitted
    from .sources import Sample


def prepared(fitted: Fitted, sample: Sample) -> tuple[Tensor, Tensor]:
    """X (N, d) and y like the network's output, every different row once."""
    return fitted.training(*sample.train)
