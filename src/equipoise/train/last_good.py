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
        """The weights as they now are: all of them, or, where this is interrupted, those taken before."""
        self.weights = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        return self

    def put_back(self, model: nn.Module | None = None) -> None:
        """Into the model they came from, or another of its shape; done over where it is interrupted."""
        try:
            self._copy(self.model if model is None else model)
        except BaseException:
            self._copy(self.model if model is None else model)
            raise

    @torch.no_grad()
    def _copy(self, model: nn.Module) -> None:
        for name, p in model.named_parameters():
            p.copy_(self.weights[name])
