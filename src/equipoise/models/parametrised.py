"""W = g(θ), such as a spectral norm: parametrised weights, which must stand still for a whole solve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList

from ..differentiate.equation import under_transform


def advance_parametrisations(cell: Any) -> None:
    """Let parametrisations in training take the one step of a call (the power iteration of spectral_norm).

    During the solve and its derivatives they are held in eval mode, so that the cell is one map.
    """
    if not isinstance(cell, nn.Module) or under_transform():
        return
    with torch.no_grad():
        for one in _lists(cell.modules()):
            if one.training and next(one.buffers(), None) is not None:
                one()


def _lists(modules: Iterable[nn.Module]) -> list[ParametrizationList]:
    return [m for m in modules if isinstance(m, ParametrizationList)]


class HeldWeights:
    """The parametrised weights of a cell: inside `held` each is computed once, and not in every step.

    A compiled cell computes them as it was compiled to.
    """

    def __init__(self, cell: Any) -> None:
        modules = list(cell.modules()) if isinstance(cell, nn.Module) else []
        self.lists = _lists(modules)
        self.compiled = any(m._compiled_call_impl is not None or "_orig_mod" in m._modules for m in modules)
        self.known: dict[tuple[int, torch.dtype], Tensor] | None = None  # while held: in a call of the layer

    @contextmanager
    def held(self) -> Iterator[None]:
        """One call of the layer."""
        before, self.known = self.known, {}
        try:
            yield
        finally:
            self.known = before

    @contextmanager
    def steady(self, dtype: torch.dtype) -> Iterator[None]:
        """One evaluation, with parametrisations as they were when the layer was called.

        They are read in eval mode, where a power iteration stands still. torch's own cache of parametrised
        weights is switched off: the program around the layer may have filled it with weights that lack the
        graph needed here, and it cannot tell copies of a module apart.
        """
        if not self.lists:
            yield
            return
        moving = [m for one in self.lists for m in one.modules() if m.training]
        remember = self.known is not None and not self.compiled
        mine = [one for one in self.lists if "forward" not in vars(one)] if remember else []
        cache_before = parametrize._cache_enabled
        try:
            parametrize._cache_enabled = 0
            for m in moving:
                m.training = False
            for one in mine:
                vars(one)["forward"] = partial(self._weight, one, dtype)
            yield
        finally:
            for one in mine:
                del vars(one)["forward"]
            for m in moving:
                m.training = True
            parametrize._cache_enabled = cache_before

    def _weight(self, one: ParametrizationList, dtype: torch.dtype) -> Tensor:
        assert self.known is not None
        key = id(one), dtype
        if key not in self.known:
            self.known[key] = type(one).forward(one)
        return self.known[key]
