"""y = h ∘ mask / (1 − p): dropout for the cell of an equilibrium, where one mask serves the whole solve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..solve.solution import State


class SharedDropout(nn.Module):
    """Dropout whose mask is drawn once and held through the solve: y = h ∘ mask / (1 − p).

    It is made for the cell of an Equilibrium. There each sample keeps its mask from the first evaluation to
    the last, in the backward solve too, until the layer is called again. In eval mode it does nothing. In a
    module that no Equilibrium has called it is nn.Dropout, with a new mask every time.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p must lie in [0, 1). Got {p} instead.")
        self.p = p
        self.mask: Tensor | None = None
        self.held = False  # whether a layer is evaluating its cell, and thus decides on the mask

    @property
    def active(self) -> bool:
        """Whether anything is dropped: in training, with p > 0."""
        return self.training and self.p > 0

    def forward(self, h: Tensor) -> Tensor:
        """h ∘ mask / (1 − p)."""
        if not self.active:
            return h
        mask = self.mask
        if mask is None:
            mask = torch.bernoulli(torch.full_like(h, 1 - self.p)) / (1 - self.p)
            if self.held:
                self.mask = mask
        if mask.shape != h.shape:
            raise ValueError(
                f"SharedDropout holds one mask for each solve, of shape {tuple(mask.shape)}. Got an input of "
                f"shape {tuple(h.shape)} instead: use one SharedDropout for each place."
            )
        return h * mask.to(h.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "mask": None, "held": False}

    def extra_repr(self) -> str:
        """The probability."""
        return f"p={self.p}"


def draw_masks(
    cell: nn.Module, state: State, inputs: Sequence[Any], rows: int
) -> dict[SharedDropout, Tensor]:
    """The masks of a whole solve, drawn by one evaluation of the cell.

    If a layer around this one already holds a mask, the mask is kept, since it belongs to that layer's solve.
    """
    dropouts = [m for m in cell.modules() if isinstance(m, SharedDropout) and m.active]
    mine = [d for d in dropouts if not d.held]
    for dropout in mine:
        dropout.mask, dropout.held = None, True
    try:
        if any(d.mask is None for d in dropouts):
            with torch.no_grad():
                cell(state, *inputs)
        masks = {d: d.mask for d in dropouts if d.mask is not None}
    finally:
        for dropout in mine:
            dropout.held = False
            if dropout.mask is not None and torch._C._functorch.is_functorch_wrapped_tensor(dropout.mask):
                dropout.mask = None  # it belongs to a transform, and is useless outside of it
    for mask in masks.values():
        if len(mask) != rows:
            raise ValueError(
                f"SharedDropout keeps a mask for each sample: its input must be batch-first, of {rows} rows. "
                f"Got shape {tuple(mask.shape)} instead; move the batch to the front before it."
            )
    return masks


@contextmanager
def holding(masks: Mapping[SharedDropout, Tensor]) -> Iterator[None]:
    """One evaluation of a cell with these masks in place."""
    before = [(dropout.mask, dropout.held) for dropout in masks]
    try:
        for dropout, mask in masks.items():
            dropout.mask, dropout.held = mask, True
        yield
    finally:
        for dropout, (mask_before, held) in zip(masks, before, strict=True):
            dropout.mask, dropout.held = mask_before, held
