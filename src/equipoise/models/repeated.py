"""z_k = cell(z_{k−1}, x), k = 1…K from zero: a cell repeated, which is a weight-tied network."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from ..solve.problem import Layout
from ..solve.solution import State
from .cell import Shape, checked_shapes
from .checks import counts

Start = Shape | Sequence[Shape] | Callable[[Tensor], State]


class Repeat(nn.Module):
    """z_k = cell(z_{k−1}, x), `times` times from a start of zero (or `state(x)`): a weight-tied network.

    `state` is as for `Equilibrium`: the shape of one sample's state (by default that of x), a list of shapes
    for a tuple, or a function of x that returns the start.
    """

    def __init__(self, cell: Callable[..., Any], times: int, state: Start | None = None) -> None:
        super().__init__()
        (self.times,) = counts(times=times)
        if not callable(cell):
            raise TypeError(f"cell must be callable, cell(z, x). Got {cell!r} instead.")
        self.cell = cell
        self.state = state if callable(state) else checked_shapes(_own(state))

    def forward(self, x: Tensor, *args: Any) -> Any:
        """z_K."""
        z = self._start(x)
        layout, rows = Layout.of(z), len(z[0] if isinstance(z, tuple) else z)
        for k in range(1, self.times + 1):
            z = self.cell(z, x, *args)
            if wrong := layout.mismatch(z, rows):
                raise ValueError(
                    f"the cell must return a state like the one it is given: {wrong} That was z_{k}: give "
                    f"state=…, the shape of one sample's state, or project inside the cell."
                )
        return z

    def _start(self, x: Tensor) -> State:
        if callable(self.state):
            return self.state(x)
        shapes: Any = x.shape[1:] if self.state is None else self.state
        if all(isinstance(n, int) for n in shapes):
            return x.new_zeros((len(x), *shapes))
        return tuple(x.new_zeros((len(x), *shape)) for shape in shapes)

    def extra_repr(self) -> str:
        """The recursion, and how often it is applied."""
        return f"z_k = cell(z_(k-1), x), k = 1…{self.times}"


def repeat(cell: Callable[..., Any], times: int, state: Start | None = None) -> Repeat:
    """A cell applied `times` times: repeat(cell, 6), repeat(cell, 11), repeat(cell, 18)."""
    return Repeat(cell, times, state)


def _own(value: Any) -> Any:
    """An integer of any library as Python's own, also inside sequences; anything else unchanged."""
    if isinstance(value, list | tuple):
        return tuple(map(_own, value))
    try:
        return operator.index(value)
    except TypeError:
        return value
