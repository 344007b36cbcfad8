"""The weights that a model is left at, whatever ends its training."""

from __future__ import annotations

from typing import Self

import torch
from torch import nn


class LastGood:
    """A copy of a model's weights, from when they were last known to be good."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.take()

    @torch.no_grad()
    def take(self) -> Self:
        """Keep the weights as they now are; if this is interrupted, those kept before stay."""
        self.weights = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        return self

    def put_back(self, model: nn.Module | None = None) -> None:
        """Copy them into their model, or another of its shape; once more if that is interrupted."""
        try:
            self._copy(self.model if model is None else model)
        except BaseException:
            self._copy(self.model if model is None else model)
            raise

    @torch.no_grad()
    def _copy(self, model: nn.Module) -> None:
        for name, p in model.named_parameters():
            p.copy_(self.weights[name])
