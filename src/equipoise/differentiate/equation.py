"""z = f(z, *tensors): an equation, together with every tensor it depends on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..solve import Solution, fixed_point
from ..solve.driver import approach, confirm
from ..solve.problem import Layout
from .method import Method
from .ties import settle

_NEAR = 1000.0  # how many times its residual an equilibrium may be off, if the map contracts by 0.999


class Equation(ABC):
    """z = f(z, *tensors) on flat rows (N, D), a pure function of what it is given.

    The first `batched` tensors are batch-first, with one row for each sample; all samples share the others.
    """

    tensors: tuple[Tensor, ...]
    batched: int
    method: Method
    layout: Layout  # how a state lies in flat rows
    start: Tensor | None  # (N, D), where a solve begins; None for the solvers' own start
    what: str = "forward solve"

    @abstractmethod
    def __call__(self, z: Tensor, *tensors: Tensor) -> Tensor:
        """f(z, *tensors), (N, D) like z. Differentiable in everything."""

    def held(self) -> AbstractContextManager[None]:
        """A context in which evaluations share what no state changes, such as a parametrised weight."""
        return nullcontext()

    def name(self, index: int) -> str:
        """What the user calls tensor `index`."""
        return f"tensor {index}"

    def solve(self, start: Tensor, tensors: Sequence[Tensor], ahead: bool = False) -> Solution:
        """Find the equilibrium, without a gradient or a judgement; with `ahead` it must be confirmed."""
        method, parts = self.method, (tensors[: self.batched], tensors[self.batched :])
        with self.held():
            if ahead and method.precision != "mixed":
                history = method.gradient is not None and method.gradient.recycles
                found = approach(self, start, *parts, solver=method.solver, stop=method.stop, history=history)
            else:
                found = fixed_point(
                    self, start, *parts, solver=method.solver, stop=method.stop, precision=method.precision
                )
            return self._settled(start, found, tensors)

    def _of(self, rows: Tensor, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """The tensors of some of the rows."""
        if len(rows) == len(tensors[0]):
            return tensors
        return (*(t[rows] for t in tensors[: self.batched]), *tensors[self.batched :])

    @torch.no_grad()
    def _settled(self, start: Tensor, found: Solution, tensors: Sequence[Tensor]) -> Solution:
        """The solution, with exactly those entries set to 0 that are 0 at the equilibrium.

        An entry that starts at 0 and is 0 at the equilibrium stays 0 in the solve. Nothing is done if no
        tensor holds a zero, since a pre-activation that is exactly 0 comes from one.
        """
        z = found.value
        assert isinstance(z, Tensor)
        if not bool(start.any()) and bool(z.all()):  # no entry is 0, nor was led away from it
            return found
        small = (start != 0) & (z.abs() <= _NEAR * found.residual[:, None])
        near = ((z == 0) | small) & found.converged[:, None]
        if not bool(near.any()) or not any(bool((t == 0).any()) for t in tensors):
            return found
        if self.batched:
            settled = settle(lambda now, rows: self(now, *self._of(rows, tensors)), z, near, by_rows=True)
        else:
            settled = settle(lambda now: self(now, *tensors), z, near)
        moved = (settled != z).any(dim=1)
        if not bool(moved.any()):
            return found
        seen = confirm(replace(found, value=settled), self(settled, *tensors))
        moved &= seen.converged
        return replace(
            found,
            value=torch.where(moved[:, None], settled, z),
            residual=torch.where(moved, seen.residual, found.residual),
            scale=torch.where(moved, seen.scale, found.scale),
            image=None,
        )


def under_transform() -> bool:
    """Whether a torch.func transform or forward-mode differentiation is at work."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def needs_gradient(tensors: Sequence[Tensor]) -> bool:
    """Whether a gradient in one of these tensors may be asked for."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
