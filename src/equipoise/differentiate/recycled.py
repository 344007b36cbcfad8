"""u ≈ (I − ∂f/∂z)⁻ᵀ g by what the steps of the forward solver tell: a cheap gradient of measured error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..solve import Anderson, Solution, Status
from ..solve.norms import row_norms
from ..solve.solution import SHARE, Counts
from .closure import closed_over, differentiated
from .equation import Equation, needs_gradient, under_transform
from .gradient import Record, SolvedGradient
from .graph import Graph, Pullback, leaves, refuse_unsteady
from .implicit import solved_once
from .linear import solve_linear_once


@dataclass(frozen=True)
class Recycled(SolvedGradient):
    """θ̄ = (∂f/∂θ)ᵀ u with u = B g, where B ≈ (I − ∂f/∂z)⁻ᵀ is what the forward solver has learned.

    This is not the exact gradient. Anderson's and Broyden's methods come to know the Jacobian along the steps
    that they take, and the transpose of what they know is applied to g. The whole backward pass then takes
    one product with the Jacobian of f; it is exact for directions in which the solver has moved, and plain
    (u = g) for all others. After another solver B is I, and this is the Jacobian-free gradient.

    The same product tells the error: `layer.last.adjoint` holds ‖g + (∂f/∂z)ᵀ u − u‖ of every sample, which
    is zero for the exact gradient, and the status `converged` where that meets the tolerance. The failure
    policy of the layer does not judge it. `steps` of Anderson's method on the adjoint equation, from B g on,
    make the error smaller; of these the best is taken. The history is kept from the forward pass until the
    backward pass. First derivatives only, in eager mode.
    """

    steps: int = 0
    exact = False
    recycles = True

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or isinstance(self.steps, bool) or self.steps < 0:
            raise ValueError(f"steps must be an integer ≥ 0. Got {self.steps!r} instead.")

    def equilibrium(
        self, equation: Equation, start: Tensor, tensors: Sequence[Tensor], record: Record
    ) -> Tensor:
        """The equilibrium with the approximate gradient."""
        if under_transform():
            raise RuntimeError(
                "Recycled reads the history of an eager solve, and was used under a torch.func transform or "
                "forward mode: use Implicit() there."
            )
        return super().equilibrium(equation, start, tensors, record)

    def solve(self, equation: Equation, start: Tensor, tensors: Sequence[Tensor], record: Record) -> Solution:
        """The equilibrium; what its solver has learned waits in the record until `attach` takes it."""
        found = solved_once(equation, start, tensors, record)
        record.inverse = found.inverse
        return replace(found, inverse=None)

    def attach(self, equation: Equation, z: Tensor, tensors: Sequence[Tensor], record: Record) -> Tensor:
        """z with the approximate gradient in the tensors."""
        graph, record.graph = record.graph, None
        inverse, record.inverse = record.inverse, None
        if not needs_gradient(tensors) and not torch.is_grad_enabled():
            return z
        if graph is None:
            graph = Graph.of(equation, z, leaves(tensors, [t.requires_grad for t in tensors]))
            refuse_unsteady(equation, z, graph, record.forward)
        if graph.foreign():
            names = ", ".join(closed_over(getattr(equation, "cell", None), differentiated)) or "a tensor"
            raise RuntimeError(
                f"the cell closes over {names}, to which Recycled has no gradient: make it a parameter of an "
                f"nn.Module cell or an input of the layer, or use Implicit()."
            )
        if not needs_gradient(tensors):
            return z
        found = record.forward
        if inverse is not None and found is not None and len(z) < len(found.status):
            inverse = _of_some(inverse, found.converged)  # rows that failed were left out
        return _RecycledEquilibrium.apply(_Recall(self, equation, record, graph, inverse), z, *tensors)


def _of_some(inverse: Callable[[Tensor], Tensor], kept: Tensor) -> Callable[[Tensor], Tensor]:
    """The estimate for some of the rows."""

    def part(g: Tensor) -> Tensor:
        full = g.new_zeros(len(kept), g.shape[1])
        full[kept] = g
        return inverse(full)[kept]

    return part


@dataclass
class _Recall:
    how: Recycled
    equation: Equation
    record: Record
    graph: Graph
    inverse: Callable[[Tensor], Tensor] | None


class _RecycledEquilibrium(torch.autograd.Function):
    """(θ) ↦ z, first order only."""

    @staticmethod
    def forward(ctx: Any, task: _Recall, z: Tensor, *tensors: Tensor) -> Tensor:
        ctx.task = task
        ctx.save_for_backward(*tensors)  # so that a change in place is noticed
        return z.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple:
        task, tensors = ctx.task, ctx.saved_tensors
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        task.record.adjoint, found = _pulled_back(task, g, tensors, wanted)
        grads: list[Tensor | None] = [None] * len(tensors)
        for i, grad in zip(wanted, found, strict=True):
            grads[i] = grad
        return None, None, *grads


def _pulled_back(
    task: _Recall, g: Tensor, tensors: Sequence[Tensor], wanted: Sequence[int]
) -> tuple[Solution, tuple[Tensor, ...]]:
    """u with its true residual, and θ̄ of the wanted tensors."""
    equation, graph = task.equation, task.graph
    u = g if task.inverse is None else task.inverse(g)
    stop = equation.method.stop
    if task.how.steps:
        product = Pullback.of(equation, graph, graph.z, tensors)
        stop = replace(stop, max_steps=task.how.steps)
        last = lambda u: graph.pull_both(wanted, u)
        found, grads = solve_linear_once(product, last, g, Anderson(), stop, graph.dtype, start=u)
        return replace(found, solver="history → Anderson"), grads
    moved, grads = graph.pull_both(wanted, u)
    stop, image = stop.resolve(graph.dtype), g + moved
    residual, scale, floor = row_norms(image - u), row_norms(image), SHARE * row_norms(g)
    there = residual <= stop.tolerance(scale, floor)
    status = torch.where(there, int(Status.converged), int(Status.max_steps))
    status[~torch.isfinite(residual)] = int(Status.nonfinite)
    counts, none = Counts(evaluations=1, row_evaluations=len(u)), torch.zeros_like(status)
    found = Solution(u, status.to(torch.int8), residual, scale, none, counts, stop, "history", floor=floor)
    return found, grads
