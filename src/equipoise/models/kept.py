"""A value computed from weights, kept for as long as they are the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..differentiate.equation import under_transform

T = TypeVar("T")


class Kept:
    """A value computed from tensors, and copies of them that tell whether they have changed since.

    Numbers are compared, not versions: whatever changes a weight (a step of an optimiser, an assignment to
    `.data` or within it, `load_state_dict`, `to`) is seen. That takes one pass over the weights. Copies and
    files of a model begin without a value.
    """

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._settings: tuple[Any, ...] = ()
        self._value: Any = None

    @torch.no_grad()
    def of(self, tensors: Sequence[Tensor], compute: Callable[[], T], *settings: Any) -> T:
        """`compute()`, or what it gave last time if the tensors and the settings are as they were then."""
        if under_transform() or torch.compiler.is_compiling():
            return compute()
        if not self._tensors or settings != self._settings or not _same(self._tensors, tensors):
            self._value = compute()
            self._tensors, self._settings = [t.detach().clone() for t in tensors], settings
        return self._value

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()


def _same(before: Sequence[Tensor], now: Sequence[Tensor]) -> bool:
    return len(before) == len(now) and all(
        a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
        for a, b in zip(before, now, strict=True)
    )
