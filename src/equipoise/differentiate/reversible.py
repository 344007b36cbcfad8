"""y_{k+1} = ½ y_k + ½ f(z_k), z_{k+1} = ½ z_k + ½ f(y_{k+1}): steps that can be taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..solve import Solution
from ..solve.driver import verify
from .closure import closed_over, closed_over_message, differentiated
from .equation import Equation, needs_gradient, under_transform
from .gradient import Gradient, Record
from .graph import Graph, leaves
from .unrolled import judged_steps

# A step back doubles what rounding has left, and the pairs of numbers below hold twice the digits of a dtype.
_MOST = {torch.float64: 90, torch.float32: 40}


@dataclass(frozen=True)
class Reversible(Gradient):
    """z_K with y_{k+1} = ½ y_k + ½ f(z_k), z_{k+1} = ½ z_k + ½ f(y_{k+1}), from y_0 = z_0.

    This is the exact gradient of z_K, as autograd would compute it from these steps, but none of them is
    stored: the backward pass takes them back, z_k = 2 z_{k+1} − f(y_{k+1}) and y_k = 2 y_{k+1} − f(z_k), so
    it needs the memory of one evaluation however many steps there are. A step back doubles rounding errors.
    To hide them, y and z are carried as sums of two numbers each, and `steps` may not exceed 90 in float64
    and 40 in float32.

    A step takes two evaluations. If f contracts by q, each step reduces the distance of z_K to the
    equilibrium by a factor of about (1 + q)/2. As with `Unrolled`, the residual at z_K is judged by the
    stopping test and the failure policy of the layer. It gives first derivatives only, in eager mode.
    """

    exact = False
    steps: int = 40

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or self.steps < 1:
            raise ValueError(f"steps must be an integer ≥ 1. Got {self.steps!r} instead.")

    def equilibrium(
        self, equation: Equation, start: Tensor, tensors: Sequence[Tensor], record: Record
    ) -> Tensor:
        """z_K, judged, with the gradient of the steps that lead to it."""
        if under_transform():
            raise RuntimeError(
                "Reversible takes its steps back in eager mode only, and was used under a torch.func "
                "transform or forward mode: use Implicit() or Unrolled(steps) there."
            )
        most = _MOST.get(start.dtype, 0)
        if self.steps > most:
            raise ValueError(
                f"steps must be at most {most} in {start.dtype}, beyond which steps that are taken back lose "
                f"their digits. Got {self.steps} instead: use Implicit(), or Unrolled({self.steps})."
            )
        if torch.is_grad_enabled() and closed_over(getattr(equation, "cell", None), differentiated):
            raise RuntimeError(closed_over_message(equation, "with Reversible"))
        task = _ReversibleSteps(equation, self.steps)
        z = _Steps.apply(task, start, *tensors) if needs_gradient(tensors) else task.run(start, tensors)[1][0]
        record.forward = task.seen(z.detach(), tensors)
        return judged_steps(self, equation, start, tensors, record, z)


Pair = tuple[Tensor, Tensor]  # a number of twice the digits, as the sum of a large and a small one


@dataclass(frozen=True)
class _ReversibleSteps:
    equation: Equation
    steps: int

    @torch.no_grad()
    def run(self, start: Tensor, tensors: Sequence[Tensor]) -> tuple[Pair, Pair]:
        """y_K and z_K."""
        y = z = (start, torch.zeros_like(start))
        with self.equation.held():
            for _ in range(self.steps):
                y = _halfway(y, self.equation(z[0], *tensors))
                z = _halfway(z, self.equation(y[0], *tensors))
        return y, z

    def seen(self, z: Tensor, tensors: Sequence[Tensor]) -> Solution:
        """The Solution of z_K: its true residual, its status, and what it cost."""
        batched = self.equation.batched
        args, shared = tensors[:batched], tensors[batched:]
        found = verify(self.equation, z, args, shared, stop=self.equation.method.stop)
        found.counts.evaluations += 2 * self.steps
        found.counts.row_evaluations += 2 * self.steps * len(z)
        taken = torch.full_like(found.steps, self.steps)
        return replace(
            found, steps=taken, stop=replace(found.stop, max_steps=self.steps), solver="Reversible"
        )


class _Steps(torch.autograd.Function):
    """(θ) ↦ z_K. Inputs: task, start, *tensors."""

    @staticmethod
    def forward(ctx: Any, task: _ReversibleSteps, start: Tensor, *tensors: Tensor) -> Tensor:
        y, z = task.run(start, tensors)
        ctx.task = task
        ctx.save_for_backward(*y, *z, *tensors)
        return z[0].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple:
        y_large, y_small, z_large, z_small, *tensors = ctx.saved_tensors
        y, z, equation = (y_large, y_small), (z_large, z_small), ctx.task.equation
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        inputs = leaves(tensors, [i in wanted for i in range(len(tensors))])
        of_y, of_z = torch.zeros_like(g), g  # cotangents
        sums: list[Tensor | None] = [None] * len(tensors)

        def pulled(at: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
            """f at a state, and (∂f/∂z)ᵀ u there; (∂f/∂θ)ᵀ u is added to the sums."""
            graph = Graph.of(equation, at, inputs)
            back, parts = graph.pull_both(wanted, u)
            for i, part in zip(wanted, parts, strict=True):
                sums[i] = part if (known := sums[i]) is None else known + part
            return graph.fz.detach(), back

        with equation.held():
            for _ in range(ctx.task.steps):
                fy, back = pulled(y[0], of_z / 2)
                z, of_y, of_z = _taken_back(z, fy), of_y + back, of_z / 2
                fz, back = pulled(z[0], of_y / 2)
                y, of_z, of_y = _taken_back(y, fz), of_z + back, of_y / 2
        return None, None, *sums


def _halfway(a: Pair, f: Tensor) -> Pair:
    """(a + f)/2."""
    large, error = _sum(a[0] / 2, f / 2)
    return _sum(large, error + a[1] / 2)


def _taken_back(a: Pair, f: Tensor) -> Pair:
    """2a − f, which undoes `_halfway`."""
    large, error = _sum(a[0], f / -2)
    large, small = _sum(large, error + a[1])
    return 2 * large, 2 * small


def _sum(a: Tensor, b: Tensor) -> Pair:
    """a + b as rounded, and what that leaves, exactly [Knuth, two-sum]."""
    total = a + b
    rest = total - a
    return total, (a - (total - rest)) + (b - rest)
