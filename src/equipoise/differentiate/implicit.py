"""dz = (I − ∂f/∂z)⁻¹ (∂f/∂θ) dθ: the exact gradient of an equilibrium, by one linear solve.

An equilibrium z = f(z, θ) has the pullback u = g + (∂f/∂z)ᵀ u, θ̄ = (∂f/∂θ)ᵀ u, and the push-forward
w = ∂f/∂z w + ∂f/∂θ θ̇. Both are equations of the same kind as the one they differentiate, with z, θ and g
in the open, so each is solved, differentiated and batched by the same code: every order is exact.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..solve import Solution, Stop
from ..solve.failure import OnFailure
from .equation import Equation, Method, needs_gradient, under_transform
from .gradient import Record, SolvedGradient
from .linear import GMRES, LinearSolver, solve_linear


@dataclass(frozen=True)
class Implicit(SolvedGradient):
    """u = g + (∂f/∂z)ᵀ u, θ̄ = (∂f/∂θ)ᵀ u.

    `solver` finds u: GMRES by default, or any solver of equipoise. `stop` is its tolerance, by default that
    of the dtype. A sample whose adjoint does not converge is treated by the layer's failure policy.

    Exact to every order in the tensors the layer knows of: its inputs and the parameters of its cell. A
    tensor that a cell merely closes over gets first-order gradients in eager mode; asked for more, it is
    named in an error.
    """

    solver: LinearSolver = field(default_factory=GMRES)
    stop: Stop = field(default_factory=Stop)

    def equilibrium(
        self, equation: Equation, start: Tensor, tensors: Sequence[Tensor], record: Record
    ) -> Tensor:
        if under_transform():  # the solve itself must happen below the transform
            _refuse_closed_over(equation, start, tensors)
            return _Equilibrium.apply(equation, self, record, start, *tensors)
        return super().equilibrium(equation, start, tensors, record)

    def attach(self, equation: Equation, z: Tensor, tensors: Sequence[Tensor], record: Record) -> Tensor:
        if not torch.is_grad_enabled():
            return z
        graph = _Graph.of(equation, z, tensors)
        if graph.foreign:
            graph = _Graph.of(equation, z, tensors, through=True)
            return _ClosedOver.apply(_Task(self, equation, record, graph), z, graph.fz)
        if not needs_gradient(tensors):
            return z
        return _Equilibrium.apply(equation, self, record, z, *tensors, graph)


# -- the eager graph of one evaluation at the equilibrium --------------------------------------------------


@dataclass
class _Graph:
    """f at the equilibrium, recorded once: every product with its Jacobian's transpose comes from it."""

    z: Tensor  # (N, D), a leaf
    leaves: tuple[Tensor, ...]  # the tensors, as leaves
    fz: Tensor  # (N, D)
    foreign: list[Tensor]  # leaves of autograd that f reads without having been given them

    @classmethod
    def of(cls, equation: Equation, z: Tensor, tensors: Sequence[Tensor], through: bool = False) -> _Graph:
        """With `through`, the graph goes on beyond `tensors` into the program around the layer."""
        leaf = z.detach().requires_grad_()
        leaves = tuple(tensors if through else (t.detach().requires_grad_(t.requires_grad) for t in tensors))
        with torch.enable_grad():
            fz = equation(leaf, *leaves)
        _refuse_random_cell(z, fz, equation)
        return cls(leaf, leaves, fz, [] if through else _foreign_leaves(fz, (leaf, *leaves)))

    def pull(self, u: Tensor) -> Tensor:
        """(∂f/∂z)ᵀ u."""
        return _grad_or_zero(self.fz, (self.z,), u)[0]


def _grad_or_zero(out: Tensor, inputs: Sequence[Tensor], u: Tensor) -> tuple[Tensor, ...]:
    if not out.requires_grad:
        return tuple(torch.zeros_like(i) for i in inputs)
    return torch.autograd.grad(out, inputs, u, retain_graph=True, materialize_grads=True)


def _foreign_leaves(out: Tensor, known: Sequence[Tensor]) -> list[Tensor]:
    """The leaves of the graph of `out` that are not in `known`."""
    mine, found = {id(t) for t in known}, []
    seen, queue = set(), [out.grad_fn]
    while queue:
        node = queue.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in mine:
            found.append(leaf)
        queue.extend(parent for parent, _ in node.next_functions)
    return found


def _refuse_random_cell(z: Tensor, fz: Tensor, equation: Equation) -> None:
    """A cell that answers differently each time has no equilibrium; the last evaluation tells."""
    stop = equation.method.stop
    scale = fz.detach().norm(dim=1)
    allowed = 1e3 * (stop.rtol or 1e-3) * scale + 1e-3 * scale
    gap = (fz.detach() - z).norm(dim=1)
    off = gap > allowed
    if equation.method.on_failure.policy in ("raise", "mask") and bool(off.any()):
        row = int(torch.nonzero(off)[0])
        raise RuntimeError(
            f"the cell must give the same answer each time it is called with the same state. Got another "
            f"one after the solve, off by {float(gap[row] / scale[row]):.1e} in row {row}: "
            f"draw random masks once per solve (eq.SharedDropout), and hold buffers still during it."
        )


# -- the differentiable equilibrium ------------------------------------------------------------------------


class _Equilibrium(torch.autograd.Function):
    """(θ) ↦ z with z = f(z, θ). Inputs: equation, gradient, record, start, *tensors[, graph]."""

    @staticmethod
    def forward(equation: Equation, how: Implicit, record: Record, start: Tensor, *rest: Any) -> Tensor:
        tensors, graph = _split(rest)
        if graph is not None:
            return start.clone()
        solution = record.forward = equation.solve(start, tensors)
        value = solution.value
        assert isinstance(value, Tensor)
        OnFailure("raise").judge(solution, equation.what)  # inside a transform there are no rows to leave out
        return value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.equation, ctx.how, ctx.record = inputs[:3]
        tensors, ctx.graph = _split(inputs[4:])
        ctx.save_for_backward(output, *tensors)
        ctx.save_for_forward(output, *tensors)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        z, *tensors = ctx.saved_tensors
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[4 : 4 + len(tensors)]) if needed]
        grads: list[Tensor | None] = [None] * len(tensors)
        if ctx.graph is not None and not torch.is_grad_enabled():
            u = _solve_eager_adjoint(ctx.how, ctx.equation, ctx.graph, g, ctx.record)
            found = _grad_or_zero(ctx.graph.fz, [ctx.graph.leaves[i] for i in wanted], u)
        else:
            adjoint = _Adjoint(ctx.equation, ctx.how)
            u = _Equilibrium.apply(adjoint, ctx.how, Record(), torch.zeros_like(g), g, z, *tensors)
            found = _pullback_tensors(ctx.equation, z, tensors, wanted, u)
        for i, grad in zip(wanted, found, strict=True):
            grads[i] = grad
        tail = (None,) if ctx.graph is not None else ()
        return None, None, None, None, *grads, *tail

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        z, *tensors = ctx.saved_tensors
        moves = tangents[4 : 4 + len(tensors)]
        moving = [i for i, t in enumerate(moves) if t is not None]
        t = _pushforward_tensors(ctx.equation, z, tensors, moving, [moves[i] for i in moving])
        tangent = _Tangent(ctx.equation, ctx.how)
        return _Equilibrium.apply(tangent, ctx.how, Record(), torch.zeros_like(z), t, z, *tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, equation: Equation, how: Any, record: Any, start: Tensor, *rest: Any):  # type: ignore[no-untyped-def]
        """The mapped dimension folds into the batch: samples are independent, so that is the same problem."""
        size = info.batch_size
        rows = None

        def fold(t: Tensor, dim: int | None) -> Tensor:
            t = t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
            nonlocal rows
            rows = t.shape[1]
            return t.reshape(size * t.shape[1], *t.shape[2:])

        folded = [fold(start, in_dims[3])]
        for i, (t, dim) in enumerate(zip(rest, in_dims[4:], strict=True)):
            if i < equation.batched:
                folded.append(fold(t, dim))
            elif dim is None:
                folded.append(t)
            else:
                raise RuntimeError(
                    "vmap over an equilibrium layer maps its batch-first inputs: a mapped parameter or "
                    "shared tensor would be a different problem for each. Loop over the parameters instead."
                )
        z = _Equilibrium.apply(equation, how, record, *folded)
        return z.reshape(size, rows, *z.shape[1:]), 0


def _split(rest: Sequence[Any]) -> tuple[tuple[Tensor, ...], _Graph | None]:
    if rest and isinstance(rest[-1], _Graph):
        return tuple(rest[:-1]), rest[-1]
    return tuple(rest), None


def _solve_eager_adjoint(
    how: Implicit, equation: Equation, graph: _Graph, g: Tensor, record: Record
) -> Tensor:
    """u = g + (∂f/∂z)ᵀ u over the recorded graph; rows that fail are judged by the layer's policy."""
    solution = record.adjoint = solve_linear(graph.pull, g, None, how.solver, how.stop)
    kept = equation.method.on_failure.judge(solution, f"adjoint of the {equation.what}")
    u = solution.value
    assert isinstance(u, Tensor)
    if kept is not None:
        record.masked += len(u) - len(kept)
        u = torch.zeros_like(u).index_copy(0, kept, u[kept])
    return u


class _Linearised(Equation):
    """What the pullback and the push-forward share: z, θ and a right-hand side b in the open."""

    def __init__(self, of: Equation, how: Implicit) -> None:
        self.of = of
        self.batched = of.batched + 2
        self.method = Method(on_failure=of.method.on_failure)
        self.how = how

    def solve(self, start: Tensor, tensors: Sequence[Tensor]) -> Solution:
        b, *rest = tensors
        return solve_linear(self.at(*rest), b, None, self.how.solver, self.how.stop)

    def at(self, z: Tensor, *tensors: Tensor) -> Callable[[Tensor], Tensor]:
        raise NotImplementedError


class _Adjoint(_Linearised):
    """u = b + (∂f/∂z)ᵀ u."""

    what = "adjoint solve"

    def at(self, z: Tensor, *tensors: Tensor) -> Callable[[Tensor], Tensor]:
        pull = torch.func.vjp(lambda z: self.of(z, *tensors), z)[1]
        return lambda u: pull(u)[0]

    def __call__(self, u: Tensor, *tensors: Tensor) -> Tensor:
        b, *rest = tensors
        return b + self.at(*rest)(u)


class _Tangent(_Linearised):
    """w = b + ∂f/∂z w."""

    what = "tangent solve"

    def at(self, z: Tensor, *tensors: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda w: torch.func.jvp(lambda z: self.of(z, *tensors), (z,), (w,))[1]

    def __call__(self, w: Tensor, *tensors: Tensor) -> Tensor:
        b, *rest = tensors
        return b + self.at(*rest)(w)


def _pullback_tensors(
    equation: Equation, z: Tensor, tensors: Sequence[Tensor], wanted: Sequence[int], u: Tensor
) -> tuple[Tensor, ...]:
    """(∂f/∂θ)ᵀ u for the wanted tensors, differentiable in z, θ and u."""

    def of_wanted(*some: Tensor) -> Tensor:
        return equation(z, *_put(tensors, wanted, some))

    return torch.func.vjp(of_wanted, *(tensors[i] for i in wanted))[1](u)


def _pushforward_tensors(
    equation: Equation,
    z: Tensor,
    tensors: Sequence[Tensor],
    moving: Sequence[int],
    moves: Sequence[Tensor | None],
) -> Tensor:
    """∂f/∂θ θ̇."""

    def of_moving(*some: Tensor) -> Tensor:
        return equation(z, *_put(tensors, moving, some))

    return torch.func.jvp(of_moving, tuple(tensors[i] for i in moving), tuple(moves))[1]


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
    graph: _Graph


class _ClosedOver(torch.autograd.Function):
    """z, whose gradient goes on through the graph of f: the way to tensors nobody named. First order only."""

    @staticmethod
    def forward(ctx: Any, task: _Task, z: Tensor, fz: Tensor) -> Tensor:
        ctx.task = task
        return z.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        task = ctx.task
        if torch.is_grad_enabled():
            raise RuntimeError(_closed_over_message(task.equation, "for a second derivative"))
        return None, None, _solve_eager_adjoint(task.how, task.equation, task.graph, g, task.record)


def _refuse_closed_over(equation: Equation, start: Tensor, tensors: Sequence[Tensor]) -> None:
    """A tensor of the transform that f reads without having been given it would lose its derivative."""
    level = torch._C._functorch.maybe_get_level
    with torch.no_grad():
        reached = level(equation(start, *tensors))
    given = max(level(t) for t in (start, *tensors))
    held = closed_over(getattr(equation, "cell", None), torch._C._functorch.is_functorch_wrapped_tensor)
    if held or reached > given:
        raise RuntimeError(_closed_over_message(equation, "under a torch.func transform"))


def _closed_over_message(equation: Equation, when: str) -> str:
    cell = getattr(equation, "cell", None)
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    names = closed_over(cell, lambda t: t.requires_grad or wrapped(t))
    return (
        f"the cell closes over {', '.join(names) or 'a tensor'}, which only first-order eager gradients can "
        f"reach, and was used {when}. Make it a parameter of an nn.Module cell, or an input of the layer."
    )


def closed_over(cell: Any, which: Callable[[Tensor], bool]) -> list[str]:
    """Names under which a function holds such tensors, or modules with such parameters."""
    function = inspect.unwrap(getattr(cell, "forward", cell)) if cell is not None else None
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function):
        return []
    held = inspect.getclosurevars(function)

    def tracked(value: Any) -> bool:
        if isinstance(value, torch.nn.Module):
            return any(which(p) for p in value.parameters())
        return isinstance(value, Tensor) and which(value)

    return [f"`{name}`" for name, value in {**held.globals, **held.nonlocals}.items() if tracked(value)]
