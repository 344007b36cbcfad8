"""The tensors a run's certificates are about: raw rows, prepared as for training."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from ..runs.fitting import Fitted
    from .sources import Sample


def prepared(fitted: Fitted, sample: Sample) -> tuple[Tensor, Tensor]:
    """X (N, d) and y like the network's output; of certified training the gathered, weighted rows."""
    from ..runs.fitting import Rows, training_tensors

    rows = Rows.of(*sample.train, sample.kind)
    return training_tensors(
        fitted.model, fitted.preparation, rows.gathered() if fitted.recipe.certified else rows
    )
