"""f at an equilibrium, recorded by autograd: what every first-order product with its Jacobian comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..solve.autocast import compute_dtype
from ..solve.norms import row_distances, row_norms
from ..solve.problem import RowMap
from ..solve.solution import Solution
from .equation import Equation


@dataclass
class Graph:
    """f at the equilibrium, recorded once: every product with its Jacobian's transpose comes from it."""

    z: Tensor  # (N, D), a leaf
    tensors: Sequence[Tensor]
    fz: Tensor  # (N, D)
    dtype: torch.dtype  # of the arithmetic in f

    @classmethod
    def of(cls, equation: Equation, z: Tensor, tensors: Sequence[Tensor]) -> Graph:
        """f at z, recorded."""
        leaf = z.detach().requires_grad_()
        with torch.enable_grad():
            return cls(leaf, tensors, equation(leaf, *tensors), compute_dtype(z))

    def pull(self, u: Tensor) -> Tensor:
        """(∂f/∂z)ᵀ u."""
        return self._grads((self.z,), u)[0]

    def pull_tensors(self, wanted: Sequence[int], u: Tensor) -> tuple[Tensor, ...]:
        """(∂f/∂θ)ᵀ u for the wanted tensors."""
        return self._grads([self.tensors[i] for i in wanted], u)

    def pull_both(self, wanted: Sequence[int], u: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(∂f/∂z)ᵀ u and (∂f/∂θ)ᵀ u, in one pass."""
        first, *rest = self._grads([self.z, *(self.tensors[i] for i in wanted)], u)
        return first, tuple(rest)

    def _grads(self, inputs: Sequence[Tensor], u: Tensor) -> tuple[Tensor, ...]:
        if not self.fz.requires_grad:
            return tuple(torch.zeros_like(i) for i in inputs)
        return torch.autograd.grad(self.fz, inputs, u, retain_graph=True, materialize_grads=True)

    def foreign(self) -> bool:
        """Whether f reads a tensor that requires a gradient and was not given to it."""
        mine = {id(t) for t in (self.z, *self.tensors)}
        leaves = (getattr(node, "variable", None) for node in nodes_of(self.fz))
        return any(leaf is not None and id(leaf) not in mine for leaf in leaves)


def nodes_of(t: Tensor) -> Iterator[Any]:
    """Every node of the graph behind a tensor, once."""
    seen, queue = set(), [t.grad_fn]
    while queue:
        node = queue.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            queue.extend(parent for parent, _ in node.next_functions)


@dataclass(frozen=True)
class Pullback(RowMap):
    """u ↦ (∂f/∂z)ᵀ u at an equilibrium. To restrict it to some rows, f is recorded again at these."""

    equation: Equation
    graph: Graph
    z: Tensor  # (n, D)
    tensors: Sequence[Tensor]

    @classmethod
    def of(
        cls, equation: Equation, graph: Graph, z: Tensor, tensors: Sequence[Tensor]
    ) -> Callable[[Tensor], Tensor]:
        """The products; if f was recorded in another arithmetic, they cannot be restricted to some rows."""
        known = graph.dtype == compute_dtype(z)
        return cls(equation, graph, z, tuple(t.detach() for t in tensors)) if known else graph.pull

    def __call__(self, u: Tensor) -> Tensor:
        return self.graph.pull(u)

    def take(self, rows: Tensor) -> Pullback:
        """The products of some of the rows, with f recorded at these alone."""
        z = self.z[rows]
        tensors = tuple(t[rows] if i < self.equation.batched else t for i, t in enumerate(self.tensors))
        with self.equation.held():
            return replace(self, graph=Graph.of(self.equation, z, tensors), z=z, tensors=tensors)


def leaves(tensors: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor, ...]:
    """The tensors, detached from the surrounding graph; the wanted ones require a gradient."""
    return tuple(t.detach().requires_grad_(yes) for t, yes in zip(tensors, wanted, strict=True))


def refuse_unsteady(equation: Equation, z: Tensor, graph: Graph, solution: Solution | None) -> None:
    """Refuse a cell that gives a different answer each time, since it has no equilibrium."""
    if equation.method.on_failure.uses_failed:
        return  # z need not be an equilibrium
    fz = graph.fz.detach()
    scale, gap = row_norms(fz), row_distances(fz, z)
    floor = None if solution is None else solution.floor
    if solution is not None and floor is not None and len(floor) > len(z):  # rows that failed were left out
        floor = floor[solution.converged]
    allowed = 10 * equation.method.stop.resolve(graph.dtype).tolerance(scale, floor)
    off = gap > allowed + torch.finfo(graph.dtype).eps ** 0.5 * scale
    if bool(off.any()):
        row = int(torch.nonzero(off)[0])
        raise RuntimeError(
            f"the cell must give the same answer each time it is called with the same state. Got another "
            f"one after the solve, off by {float(gap[row] / scale[row]):.1e} in row {row}: "
            f"draw random masks once per solve (eq.SharedDropout), and hold buffers still during it."
        )
