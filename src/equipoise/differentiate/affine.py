"""Λ = D ∘ (G + Λ W): the one linear equation behind every derivative of Z = σ(Z Wᵀ + u).

With the masks D = σ'(Z Wᵀ + u), constant almost everywhere for a piecewise linear σ:

    pullback      a cotangent G of Z gives Λ, and from it ∇u = Λ, ∇W = Λᵀ Z
    push-forward  tangents u', W' give Z' = D ∘ ((u' + Z W'ᵀ) + Z' Wᵀ): the same equation with Wᵀ
    both again    Λ is differentiated by the same two rules, so derivatives of every order are exact
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..solve import Activation, AffineMap, EquilibriumError, Solution, fixed_point
from ..solve.autocast import full_precision
from ..solve.norms import row_norms
from ..solve.problem import Layout
from .equation import Equation, needs_gradient, under_transform
from .gradient import Record, SolvedGradient
from .method import Method, Solvers


class MaskedMap(AffineMap):
    """f(λ) = D ∘ (W λ + b), in rows `D ∘ (Λ Wᵀ + b)`: an AffineMap whose σ is a mask of its own for each row.

    D ∘ · projects on the active coordinates of a row, so the splitting solvers take it like a relu.
    """

    def __init__(self, weight: Tensor, bias: Tensor, mask: Tensor) -> None:
        super().__init__(weight, bias, _projection(mask))
        self.mask = mask  # (N, m) of 0 and 1

    def take(self, rows: Tensor) -> MaskedMap:
        """The same map on some of its samples."""
        return self._masked(self.weight, self.bias[rows], self.mask[rows])

    def to(self, dtype: torch.dtype) -> MaskedMap:
        """The same map in another dtype."""
        cast = super().to(dtype)
        return self._masked(cast.weight, cast.bias, self.mask.to(dtype))

    def _masked(self, weight: Tensor, bias: Tensor, mask: Tensor) -> MaskedMap:
        other = object.__new__(MaskedMap)
        other.weight, other.bias, other.mask, other.cache = weight, bias, mask, self.cache
        other.activation = _projection(mask)
        return other


def _projection(mask: Tensor) -> Activation:
    return Activation("mask", lambda p: mask * p, lambda p: mask, lambda v, _: mask * v, exact=True)


def transposed(cache: dict[Any, Any]) -> dict[Any, Any]:
    """What was derived from W, turned into the same for Wᵀ: numbers stay, matrices are transposed."""
    square = {k: v.T for k, v in cache.items() if isinstance(v, Tensor) and v.ndim == 2}
    return square | {k: v for k, v in cache.items() if isinstance(v, float)}


class AffineEquation(Equation):
    """z = σ(W z + u), in rows Z = σ(Z Wᵀ + u), as an equation in u (N, m) and W (m, m).

    `solver(problem)` is the solver of the family, used if the method names none, and `masks(problem, Z,
    f(Z))` gives D = σ'(Z Wᵀ + u) at an equilibrium, ties included.
    """

    batched = 1

    def __init__(
        self,
        u: Tensor,
        weight: Tensor,
        activation: Activation,
        method: Method,
        solver: Callable[[AffineMap], Solvers],
        masks: Callable[[AffineMap, Tensor, Tensor | None], Tensor],
        start: Tensor | None = None,
    ) -> None:
        self.tensors, self.activation, self.method = (u, weight), activation, method
        self.solver, self.masks, self.start = solver, masks, start
        self.layout = Layout([u.shape[1:]], is_tuple=False)

    def __call__(self, z: Tensor, *tensors: Tensor) -> Tensor:
        u, weight = tensors
        return self.activation(torch.addmm(u, z, weight.T))

    def name(self, index: int) -> str:
        """What the user calls tensor `index`."""
        return ("the injection u", "the weight W")[index]

    @cached_property
    def problem(self) -> AffineMap:
        """f in the form that solvers take; what they derive from W is kept and serves the adjoint too."""
        u, weight = self.tensors
        return AffineMap(weight.detach(), u.detach(), self.activation)

    def solve(self, start: Tensor | None, tensors: Sequence[Tensor], ahead: bool = False) -> Solution:
        """The equilibria by the model's method, unjudged and without a gradient."""
        u, weight = tensors
        own = all(a is b for a, b in zip(tensors, self.tensors, strict=True))
        return self.find(
            self.problem if own else AffineMap(weight.detach(), u.detach(), self.activation), start
        )

    def find(self, problem: AffineMap, start: Tensor | None) -> Solution:
        """The equilibria of a problem like this one, unjudged."""
        how = self.method
        solver = how.solver or self.solver(problem)
        return fixed_point(problem, start, solver=solver, stop=how.stop, precision=how.precision)


@dataclass(frozen=True)
class StructuredAdjoint(SolvedGradient):
    """Λ = D ∘ (G + Λ W), ∇u = Λ, ∇W = ΛᵀZ: the exact gradient of Z = σ(Z Wᵀ + u), by one masked linear solve.

    This is the gradient of the affine families. The adjoint is solved by the same solver as the equilibrium,
    to the same tolerance, and reuses its norms and factorisations. It is exact to every order.
    """

    def equilibrium(
        self, equation: Equation, start: Tensor | None, tensors: Sequence[Tensor], record: Record
    ) -> Tensor:
        """Z with the gradient of the masked linear solve, also under a torch.func transform."""
        assert isinstance(equation, AffineEquation)
        if under_transform():  # the solve itself must happen below the transform
            u, weight = tensors
            return _AffineEquilibrium.apply(weight, u, start, Task(equation, record))[0]
        return super().equilibrium(equation, start, tensors, record)  # type: ignore[arg-type]

    def attach(self, equation: Equation, z: Tensor, tensors: Sequence[Tensor], record: Record) -> Tensor:
        """Z with a gradient in u and W, from its masks."""
        assert isinstance(equation, AffineEquation)
        solution = record.forward
        assert solution is not None
        # The value is about to get a gradient, and a record holds neither that nor the problem.
        record.forward = replace(solution, value=z.detach(), image=None, solved=None)
        if not needs_gradient(tensors):
            return z
        u, weight = tensors
        whole = len(u) == len(equation.tensors[0])
        problem = equation.problem if whole else equation.problem.with_bias(u.detach())
        image = solution.image if whole else None
        task = Task(equation, record, (z, equation.masks(problem, z, image)), problem.cache)
        return _AffineEquilibrium.apply(weight, u, None, task)[0]


@dataclass
class Task:
    """One equilibrium that is being differentiated, and where its adjoint solve is recorded."""

    equation: AffineEquation
    record: Record
    known: tuple[Tensor, Tensor] | None = None  # Z and D, if they were found before
    cache: dict[Any, Any] = field(default_factory=dict)  # what the forward solve derived from W

    def forward(self, weight: Tensor, u: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor]:
        """Z and D."""
        if self.known is not None:
            return self.known
        equation = self.equation
        problem = AffineMap(weight, u, equation.activation)
        solution = equation.find(problem, start)
        value = _tensor(solution)
        self.cache = problem.cache
        self.record.forward = replace(solution, value=value.detach(), image=None, solved=None)
        equation.method.on_failure.require_all(self.record.forward, equation.what)
        return value, equation.masks(problem, value, solution.image)

    def resolvent(self, weight: Tensor, g: Tensor, mask: Tensor, flipped: bool) -> Tensor:
        """Λ = D ∘ (G + Λ W), solved, recorded and judged."""
        problem = MaskedMap(weight.T, g, mask)
        problem.cache = self.cache if flipped else transposed(self.cache)
        solution = self.record.adjoint = self.equation.find(problem, None)
        if solution.failed_rows:
            raise EquilibriumError(f"adjoint solve: {solution.explain_failure()}", solution)
        return _tensor(solution)


def by_sample(solution: Solution, N: int, k: int, m: int) -> Solution:
    """A solve of N·k rows as one of N samples: a sample is as good as its worst output."""
    assert isinstance(solution.value, Tensor)
    return replace(
        solution,
        value=solution.value.reshape(N, k, m),
        status=solution.status.reshape(N, k).amax(dim=1),
        residual=row_norms(solution.residual.reshape(N, k)),
        scale=row_norms(solution.scale.reshape(N, k)),
        floor=None,
        solved=None,
        steps=solution.steps.reshape(N, k).amax(dim=1),
    )


def _tensor(solution: Solution) -> Tensor:
    assert isinstance(solution.value, Tensor)
    return solution.value


class _AffineEquilibrium(torch.autograd.Function):
    """(W, u) ↦ Z = σ(Z Wᵀ + u), with its masks D."""

    @staticmethod
    def forward(weight: Tensor, u: Tensor, start: Tensor | None, task: Task) -> tuple[Tensor, Tensor]:
        return task.forward(weight, u, start)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        weight, _, _, ctx.task = inputs
        z, mask = output
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(weight, z, mask)
        ctx.save_for_forward(weight, z, mask)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple:
        weight, z, mask = ctx.saved_tensors
        adjoint = _Resolvent.apply(weight, g, mask, ctx.task, False)
        with full_precision(z):
            grad_weight = adjoint.T @ z if ctx.needs_input_grad[0] else None
        return grad_weight, adjoint, None, None

    @staticmethod
    def jvp(ctx: Any, dweight: Tensor | None, du: Tensor | None, *_: Any) -> tuple[Tensor, None]:
        weight, z, mask = ctx.saved_tensors
        with full_precision(z):
            push = z @ dweight.T if dweight is not None else torch.zeros_like(z)
        push = push if du is None else push + du
        return _Resolvent.apply(weight.T, push, mask, ctx.task, True), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, weight: Tensor, u: Tensor, start: Tensor | None, task: Task
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        w_dim, u_dim, start_dim, _ = in_dims
        size = info.batch_size
        if w_dim is None:
            rows = u.shape[0] if u_dim is None else u.movedim(u_dim, 0).shape[1]
            begin = None if start is None else _fold(start, start_dim, size)
            z, mask = _AffineEquilibrium.apply(weight, _fold(u, u_dim, size), begin, task)
            return (_unfold(z, size, rows), _unfold(mask, size, rows)), (0, 0)
        each = [
            _AffineEquilibrium.apply(
                _at(weight, w_dim, i), _at(u, u_dim, i), _at(start, start_dim, i), alone(task)
            )
            for i in range(size)
        ]
        return (torch.stack([z for z, _ in each]), torch.stack([d for _, d in each])), (0, 0)


class _Resolvent(torch.autograd.Function):
    """(W, G) ↦ Λ = D ∘ (G + Λ W). `flipped`: this W is the transpose of the one the task has solved with."""

    @staticmethod
    def forward(weight: Tensor, g: Tensor, mask: Tensor, task: Task, flipped: bool) -> Tensor:
        return task.resolvent(weight, g, mask, flipped)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        weight, _, mask, ctx.task, ctx.flipped = inputs
        ctx.save_for_backward(weight, mask, output)
        ctx.save_for_forward(weight, mask, output)

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple:
        weight, mask, adjoint = ctx.saved_tensors
        t = _Resolvent.apply(weight.T, h, mask, ctx.task, not ctx.flipped)  # T = D ∘ (H + T Wᵀ)
        with full_precision(t):
            grad_weight = adjoint.T @ t if ctx.needs_input_grad[0] else None
        return grad_weight, t, None, None, None

    @staticmethod
    def jvp(ctx: Any, dweight: Tensor | None, dg: Tensor | None, *_: Any) -> Tensor:
        weight, mask, adjoint = ctx.saved_tensors
        with full_precision(adjoint):
            push = adjoint @ dweight if dweight is not None else torch.zeros_like(adjoint)
        push = push if dg is None else push + dg
        return _Resolvent.apply(weight, push, mask, ctx.task, ctx.flipped)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, weight: Tensor, g: Tensor, mask: Tensor, task: Task, flipped: bool
    ) -> tuple[Tensor, int]:
        w_dim, g_dim, mask_dim, _, _ = in_dims
        size = info.batch_size
        if w_dim is None:
            rows = g.shape[0] if g_dim is None else g.movedim(g_dim, 0).shape[1]
            folded = _Resolvent.apply(
                weight, _fold(g, g_dim, size), _fold(mask, mask_dim, size), task, flipped
            )
            return _unfold(folded, size, rows), 0
        each = [
            _Resolvent.apply(
                _at(weight, w_dim, i), _at(g, g_dim, i), _at(mask, mask_dim, i), alone(task), flipped
            )
            for i in range(size)
        ]
        return torch.stack(each), 0


def alone(task: Task) -> Task:
    """The same task on a W of its own: nothing derived from another W is shared."""
    return replace(task, cache={})


def _fold(t: Tensor, dim: int | None, size: int) -> Tensor:
    """The mapped dimension in front of the rows: samples are independent, so that is the same problem."""
    t = t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
    return t.reshape(size * t.shape[1], *t.shape[2:])


def _unfold(t: Tensor, size: int, rows: int) -> Tensor:
    return t.reshape(size, rows, *t.shape[1:])


def _at(t: Any, dim: int | None, i: int) -> Any:
    return t if dim is None else t.select(dim, i)
