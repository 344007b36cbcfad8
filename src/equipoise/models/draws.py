"""Seeded parameters: all of a model come from one generator, in one dtype, on one device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Draws:
    """Draws parameters of one dtype on one device from one generator; torch's global one is left alone."""

    dtype: torch.dtype | None = None
    device: torch.device | str | None = None
    generator: torch.Generator | None = None

    def normal(self, *shape: int, std: float = 1.0) -> Tensor:
        """Normal numbers of mean 0."""
        return std * torch.randn(*shape, dtype=self.dtype, device=self.device, generator=self.generator)

    def zeros(self, *shape: int) -> Tensor:
        """Zeros."""
        return torch.zeros(*shape, dtype=self.dtype, device=self.device)
