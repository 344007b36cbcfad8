"""The contract of a gradient: from an equation and a start to an equilibrium that autograd understands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..solve import Solution, Status, Stop
from ..solve.norms import row_distances, row_norms
from .equation import Equation


@dataclass
class Record:
    """What the last call of a layer did. The tensors are detached and only for reading."""

    forward: Solution | None = None
    adjoint: Solution | None = None  # of the last backward pass, in flat rows (N, D)
    masked: int = 0  # rows left without a gradient by on_failure="mask"
    used: int | None = None  # rows used although they failed, by on_failure="count"
    counted: bool = field(default=False, repr=False)  # whether these were added to the model's count
    inverse: Any = field(default=None, repr=False)  # ≈ (I − ∂f/∂z)⁻ᵀ, until the gradient is attached
    graph: Any = field(default=None, repr=False)  # f at the equilibrium, until its gradient is attached


@dataclass(frozen=True)
class Gradient(ABC):
    """One way to differentiate an equilibrium. Subclasses are frozen dataclasses of their options."""

    exact: ClassVar[bool] = True
    """Whether it is the gradient of the equilibrium itself, as `audit` then requires."""

    recycles: ClassVar[bool] = False
    """Whether it needs what the steps of the forward solve tell of the Jacobian."""

    @abstractmethod
    def equilibrium(
        self, equation: Equation, start: Tensor, tensors: Sequence[Tensor], record: Record
    ) -> Tensor:
        """The equilibrium (N, D), differentiable in `tensors`; what was done goes into `record`."""


@dataclass(frozen=True)
class SolvedGradient(Gradient):
    """A gradient that is attached to an equilibrium after it was found."""

    def equilibrium(
        self, equation: Equation, start: Tensor, tensors: Sequence[Tensor], record: Record
    ) -> Tensor:
        """The equilibrium, with a gradient for the rows that the failure policy keeps."""
        solution = record.forward = self.solve(equation, start, tensors, record)
        kept = equation.method.on_failure.judge(solution, equation.what)
        value = solution.value
        assert isinstance(value, Tensor)
        if kept is None:
            return self.attach(equation, value, tensors, record)
        # Rows that failed stay out of the graph altogether: a NaN in one would spread through a sum.
        record.masked, record.graph = len(value) - len(kept), None
        rows = rows_alone(equation, value, kept, tensors, record)
        frame = torch.where(torch.isfinite(value), value, 0.0)
        return frame.index_copy(0, kept, self.attach(equation, value[kept], rows, record))

    def solve(self, equation: Equation, start: Tensor, tensors: Sequence[Tensor], record: Record) -> Solution:
        """The equilibrium, unjudged."""
        return equation.solve(start, tensors)

    @abstractmethod
    def attach(self, equation: Equation, z: Tensor, tensors: Sequence[Tensor], record: Record) -> Tensor:
        """z with a gradient in `tensors`."""


def rows_alone(
    equation: Equation, z: Tensor, kept: Tensor, tensors: Sequence[Tensor], record: Record
) -> tuple[Tensor, ...]:
    """The tensors of the rows that are kept; an error if these depend on those that are left out."""
    rows = tuple(t[kept] if i < equation.batched else t for i, t in enumerate(tensors))
    found = record.forward
    assert found is not None
    with torch.no_grad(), equation.held():
        among, alone = equation(z, *tensors)[kept], equation(z[kept], *rows)
    # Sums over another number of rows round otherwise, and that is no dependence.
    rounding = Stop.reach(among.dtype) * row_norms(among) + found.tolerance[kept] / 100
    apart = kept[~(row_distances(among, alone) <= rounding)]
    if len(apart):
        record.forward = replace(found, status=found.status.index_fill(0, apart, int(Status.coupled)))
        equation.method.on_failure.judge(record.forward, equation.what)
    return rows
