"""dz = (I − ∂f/∂z)⁻¹ (∂f/∂θ) dθ: the exact gradient of an equilibrium, by one linear solve.

An equilibrium z = f(z, θ) has the pullback u = g + (∂f/∂z)ᵀ u, θ̄ = (∂f/∂θ)ᵀ u, and the push-forward
w = ∂f/∂z w + ∂f/∂θ θ̇. Both are equations of the same kind as the one they differentiate, in z, θ and g,
so each is solved, differentiated and batched by the same code: every order is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..solve import Anderson, Solution, Stop
from ..solve.driver import confirm, finish
from .closure import closed_over as closed_over
from .closure import closed_over_message, refuse_closed_over
from .equation import Equation, needs_gradient, under_transform
from .gradient import Record, SolvedGradient
from .graph import Graph, Pullback, leaves, refuse_unsteady
from .linear import GMRES, LinearSolver, adjoint_chain, solve_linear, solve_linear_once
from .method import Method


@dataclass(frozen=True)
class Implicit(SolvedGradient):
    """u = g + (∂f/∂z)ᵀ u, θ̄ = (∂f/∂θ)ᵀ u.

    `solver` finds u. The default is Anderson(10), whose steps are cheap, followed by GMRES() on the rows that
    have not converged after 60 steps; GMRES() alone, or any solver for a general f, will do as well. `stop`
    is the tolerance, by default that of the forward solve. It is applied to g of size 1, since the equation
    is linear. The failure policy of the layer decides about samples whose adjoint does not converge.

    The gradient is exact to every order in the inputs of the layer and the parameters of its cell, as far as
    the cell itself can be differentiated (second derivatives of attention need torch's MATH kernel). A tensor
    that the cell merely closes over gets first-order gradients in eager mode; an error names it if more is
    asked for.
    """

    solver: LinearSolver = (Anderson(10), GMRES())
    stop: Stop | None = None

    def __post_init__(self) -> None:
        adjoint_chain(self.solver)
        if self.stop is not None and not isinstance(self.stop, Stop):
            raise TypeError(f"stop must be a Stop such as eq.Stop(rtol=1e-6). Got {self.stop!r} instead.")

    @classmethod
    def truncated(cls, stop: Stop) -> Implicit:
        """An eighth of the steps of a solve: where an adjoint may not exist, more are of little use."""
        return cls(Anderson(), replace(stop, max_steps=-(-stop.max_steps // 8)))

    def stop_for(self, equation: Equation) -> Stop:
        """The tolerance of the adjoint: its own, or that of the equation it differentiates."""
        return self.stop or equation.method.stop

    def equilibrium(
        self, equation: Equation, start: Tensor, tensors: Sequence[Tensor], record: Record
    ) -> Tensor:
        """The equilibrium with its exact gradient, also under a torch.func transform."""
        if under_transform():  # the solve itself must happen below the transform
            refuse_closed_over(equation, start, tensors)
            return _ImplicitEquilibrium.apply(equation, self, record, start, *tensors)
        return super().equilibrium(equation, start, tensors, record)

    def solve(self, equation: Equation, start: Tensor, tensors: Sequence[Tensor], record: Record) -> Solution:
        """The equilibrium, unjudged."""
        return solved_once(equation, start, tensors, record)

    def attach(self, equation: Equation, z: Tensor, tensors: Sequence[Tensor], record: Record) -> Tensor:
        """z with the exact gradient in the tensors, or in those the cell closes over."""
        if not torch.is_grad_enabled():
            return z
        graph, record.graph = record.graph, None
        if graph is None:
            graph = Graph.of(equation, z, leaves(tensors, [t.requires_grad for t in tensors]))
            refuse_unsteady(equation, z, graph, record.forward)
        if graph.foreign():
            graph = Graph.of(equation, z, tensors)  # connected to the graph of the surrounding program
            return _ClosedOver.apply(_Task(self, equation, record, graph), z, graph.fz)
        if not needs_gradient(tensors):
            return z
        return _ImplicitEquilibrium.apply(equation, self, record, z, *tensors, graph)


def solved_once(equation: Equation, start: Tensor, tensors: Sequence[Tensor], record: Record) -> Solution:
    """Solve; the evaluation that verifies the equilibrium is recorded and serves its gradient too."""
    if not torch.is_grad_enabled() or equation.method.precision == "mixed":
        return equation.solve(start, tensors)
    found = equation.solve(start, tensors, ahead=True)
    assert isinstance(found.value, Tensor)
    graph = Graph.of(equation, found.value, leaves(tensors, [t.requires_grad for t in tensors]))
    seen = confirm(found, graph.fz.detach())
    if bool((seen.status == found.status).all()):
        used = not seen.failed_rows or equation.method.on_failure.uses_failed
        record.graph = graph if used else None  # rows may be left out, or the batch refused
        return seen
    return finish(seen, equation.solve(found.value, tensors))


# -- the differentiable equilibrium ------------------------------------------------------------------------


class _ImplicitEquilibrium(torch.autograd.Function):
    """(θ) ↦ z with z = f(z, θ). Inputs: equation, gradient, record, start, *tensors[, graph]."""

    @staticmethod
    def forward(equation: Equation, how: Implicit, record: Record, start: Tensor, *rest: Any) -> Tensor:
        tensors, graph = _split(rest)
        if graph is not None:
            return start.clone()
        solution = record.forward = equation.solve(start, tensors)
        equation.method.on_failure.require_all(solution, equation.what)
        assert isinstance(solution.value, Tensor)
        return solution.value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.equation, ctx.how, ctx.record = inputs[:3]
        tensors, ctx.graph = _split(inputs[4:])
        ctx.save_for_backward(output, *tensors)
        ctx.save_for_forward(output, *tensors)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        _refuse_old_vmap()
        z, *tensors = ctx.saved_tensors
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[4 : 4 + len(tensors)]) if needed]
        grads: list[Tensor | None] = [None] * (len(tensors) + (ctx.graph is not None))
        if ctx.graph is not None and not torch.is_grad_enabled() and not under_transform():
            found = _eager_pullback(ctx, g, z, tensors, wanted)
        else:
            adjoint = _Adjoint(ctx.equation, ctx.how)
            u = _ImplicitEquilibrium.apply(adjoint, ctx.how, Record(), torch.zeros_like(g), g, z, *tensors)
            found = _pullback_tensors(ctx.equation, z, tensors, wanted, u)
        for i, grad in zip(wanted, found, strict=True):
            grads[i] = grad
        return None, None, None, None, *grads

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        _refuse_old_vmap()
        # torch calls this with forward mode switched off, which would lose the derivatives of a derivative.
        with forward_ad._set_fwd_grad_enabled(True):
            z, *tensors = (forward_ad.unpack_dual(t, level=0).primal for t in ctx.saved_tensors)
            moves = {i: t for i, t in enumerate(tangents[4 : 4 + len(tensors)]) if t is not None}
            if not moves:
                return torch.zeros_like(z)
            t = _pushforward_tensors(ctx.equation, z, tensors, moves)
            tangent = _Tangent(ctx.equation, ctx.how)
            return _ImplicitEquilibrium.apply(tangent, ctx.how, Record(), torch.zeros_like(z), t, z, *tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, equation: Equation, how: Any, record: Any, start: Tensor, *rest: Any):  # type: ignore[no-untyped-def]
        """The mapped dimension folds into the batch: samples are independent, so that is the same problem."""
        size = info.batch_size
        rows = start.shape[0 if in_dims[3] is None or in_dims[3] > 0 else 1]

        def fold(t: Tensor, dim: int | None) -> Tensor:
            t = t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
            return t.reshape(size * rows, *t.shape[2:])

        folded = [fold(start, in_dims[3])]
        for i, (t, dim) in enumerate(zip(rest, in_dims[4:], strict=True)):
            if i < equation.batched:
                folded.append(fold(t, dim))
            elif dim is None:
                folded.append(t)
            else:
                raise RuntimeError(
                    f"vmap over an equilibrium layer maps its batch-first inputs. Got a mapped "
                    f"{equation.name(i)} instead, which would make a different problem of each sample: loop "
                    f"over its values."
                )
        z = _ImplicitEquilibrium.apply(equation, how, record, *folded)
        return z.reshape(size, rows, *z.shape[1:]), 0


def solve_below(equation: Equation, start: Tensor, tensors: Sequence[Tensor], record: Record) -> Tensor:
    """The equilibrium under a transform, without a derivative."""
    refuse_closed_over(equation, start, tensors)
    return _ImplicitEquilibrium.apply(
        equation, Implicit(), record, start.detach(), *(t.detach() for t in tensors)
    )


def _split(rest: Sequence[Any]) -> tuple[tuple[Tensor, ...], Graph | None]:
    if rest and isinstance(rest[-1], Graph):
        return tuple(rest[:-1]), rest[-1]
    return tuple(rest), None


def _eager_pullback(
    ctx: Any, g: Tensor, z: Tensor, tensors: Sequence[Tensor], wanted: Sequence[int]
) -> Sequence[Tensor]:
    """θ̄ of the wanted tensors, from the recorded graph."""
    equation, graph, how = ctx.equation, ctx.graph, ctx.how
    solution, found = solve_linear_once(
        Pullback.of(equation, graph, z, tensors),
        lambda u: graph.pull_both(wanted, u),
        g,
        how.solver,
        how.stop_for(equation),
        graph.dtype,
    )
    u, kept = _judged(solution, equation, ctx.record)
    if kept is None:
        return found
    # Rows whose adjoint failed stay out altogether: zero times an infinite derivative is NaN.
    rows = [t[kept] if i < equation.batched else t for i, t in enumerate(tensors)]
    part = Graph.of(equation, z[kept], leaves(rows, [i in wanted for i in range(len(rows))]))
    found = part.pull_tensors(wanted, u[kept])
    return [
        torch.zeros_like(tensors[i]).index_copy_(0, kept, grad) if i < equation.batched else grad
        for i, grad in zip(wanted, found, strict=True)
    ]


def _solve_eager_adjoint(
    how: Implicit, equation: Equation, graph: Graph, g: Tensor, record: Record
) -> tuple[Tensor, Tensor | None]:
    """u = g + (∂f/∂z)ᵀ u, and the rows to keep: those that fail are judged by the layer's policy."""
    solution = solve_linear(graph.pull, g, how.solver, how.stop_for(equation), graph.dtype)
    return _judged(solution, equation, record)


def _judged(solution: Solution, equation: Equation, record: Record) -> tuple[Tensor, Tensor | None]:
    record.adjoint = solution
    kept = equation.method.on_failure.judge(solution, f"adjoint of the {equation.what}")
    u = solution.value
    assert isinstance(u, Tensor)
    if kept is not None:
        record.masked += len(u) - len(kept)
        u = torch.zeros_like(u).index_copy(0, kept, u[kept])
    return u, kept


def _refuse_old_vmap() -> None:
    nested = torch._C._vmapmode_increment_nesting() > 1
    torch._C._vmapmode_decrement_nesting()
    if nested:
        raise RuntimeError(
            "is_grads_batched=True and vectorize=True rest on an old vmap of torch that cannot see into an "
            "equilibrium: use torch.func.vjp, jacrev or hessian instead."
        )


# -- the equations of its derivatives ----------------------------------------------------------------------


class _Linearised(Equation):
    """What the pullback and the push-forward share: both depend on z, θ and a right-hand side b."""

    def __init__(self, of: Equation, how: Implicit) -> None:
        self.of = of
        self.batched = of.batched + 2
        self.method = Method(stop=of.method.stop, on_failure=of.method.on_failure)
        self.how = how

    def name(self, index: int) -> str:
        return self.of.name(index - 2)

    def solve(self, start: Tensor, tensors: Sequence[Tensor], ahead: bool = False) -> Solution:
        b, *rest = tensors
        return solve_linear(self.at(*rest), b, self.how.solver, self.how.stop_for(self))

    def __call__(self, u: Tensor, *tensors: Tensor) -> Tensor:
        b, *rest = tensors
        return b + self.at(*rest)(u)

    def at(self, z: Tensor, *tensors: Tensor) -> Callable[[Tensor], Tensor]:
        """u ↦ (∂f/∂z)ᵀ u, or the same without the transpose."""
        raise NotImplementedError


class _Adjoint(_Linearised):
    """u = b + (∂f/∂z)ᵀ u."""

    what = "adjoint solve"

    def at(self, z: Tensor, *tensors: Tensor) -> Callable[[Tensor], Tensor]:
        pull = torch.func.vjp(lambda z: self.of(z, *tensors), z)[1]
        return lambda u: pull(u)[0]


class _Tangent(_Linearised):
    """w = b + ∂f/∂z w."""

    what = "tangent solve"

    def at(self, z: Tensor, *tensors: Tensor) -> Callable[[Tensor], Tensor]:
        pull = torch.func.vjp(lambda z: self.of(z, *tensors), z)[1]
        push = torch.func.vjp(pull, torch.zeros_like(z))[1]  # the transpose of the transpose
        return lambda w: push((w,))[0]


def _pullback_tensors(
    equation: Equation, z: Tensor, tensors: Sequence[Tensor], wanted: Sequence[int], u: Tensor
) -> tuple[Tensor, ...]:
    """(∂f/∂θ)ᵀ u for the wanted tensors, differentiable in z, θ and u."""

    def of_wanted(*some: Tensor) -> Tensor:
        return equation(z, *_put(tensors, wanted, some))

    return torch.func.vjp(of_wanted, *(tensors[i] for i in wanted))[1](u)


def _pushforward_tensors(
    equation: Equation, z: Tensor, tensors: Sequence[Tensor], moves: dict[int, Tensor]
) -> Tensor:
    """∂f/∂θ θ̇, as the transpose of the pullback, which is linear in u."""

    def of_moving(*some: Tensor) -> Tensor:
        return equation(z, *_put(tensors, list(moves), some))

    pull = torch.func.vjp(of_moving, *(tensors[i] for i in moves))[1]
    return torch.func.vjp(pull, torch.zeros_like(z))[1](tuple(moves.values()))[0]


def _put(tensors: Sequence[Tensor], at: Sequence[int], some: Sequence[Tensor]) -> list[Tensor]:
    full = list(tensors)
    for i, t in zip(at, some, strict=True):
        full[i] = t
    return full


# -- tensors that a cell closes over -----------------------------------------------------------------------


@dataclass
class _Task:
    how: Implicit
    equation: Equation
    record: Record
    graph: Graph


class _ClosedOver(torch.autograd.Function):
    """z, whose gradient goes on through the graph of f to tensors that were not given. First order only."""

    @staticmethod
    def forward(ctx: Any, task: _Task, z: Tensor, fz: Tensor) -> Tensor:
        ctx.task = task
        return z.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        task = ctx.task
        if torch.is_grad_enabled():
            raise RuntimeError(closed_over_message(task.equation, "for a second derivative"))
        return None, None, _solve_eager_adjoint(task.how, task.equation, task.graph, g, task.record)[0]
