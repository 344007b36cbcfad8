"""z = f(z, x): any cell as a layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..differentiate import Equation, Method, jacobian_penalty
from ..differentiate.equation import under_transform
from ..solve import EquilibriumError, Solution, Status
from ..solve.norms import row_distances, row_norms
from ..solve.solution import State
from .base import EquilibriumModel, Start
from .cell_equation import CellEquation, cell_equation, refuse_splitting
from .parametrised import advance_parametrisations

Shape = Sequence[int]


class Equilibrium(EquilibriumModel):
    """z = cell(z, x): a layer whose output is the state that its cell leaves unchanged.

    Args:
        cell: an nn.Module or function `(z, x, *more) -> z`. The parameters of a module are trained. One that
            holds active Dropout or BatchNorm is refused with an error that says what to use instead.
        state: the shape of one sample's state, (m,) or (c, h, w); a list of shapes for a tuple state; or a
            function of the inputs that returns the start. By default the start is zero, shaped like x.
        solver: finds the equilibrium; Anderson by default. Each solver of a sequence is tried on the rows on
            which those before it failed.
        gradient: `Implicit()` (exact, default), `Unrolled(steps)`, `Reversible(steps)`, `Phantom(steps)` or
            `Recycled(steps)`.
        stop: the stopping test; by default that of the dtype.
        on_failure: "raise" (default), "warn", "mask", "count", "accept", or an `OnFailure`.
        precision: "mixed" solves in float32 first, then finishes and verifies in float64. "native" does not;
            nor does "auto", the default, if f is a cell.
        jacobian: the weight γ of `jacobian_penalty`, 0 by default. In training mode each backward pass
            through the layer then adds the gradient of γ · penalty to that of your loss, whatever the scale
            of the loss. A cell whose solves grow long in training then needs fewer steps, and what is
            minimised is no longer the loss alone.

    All but `cell`, `state` and `jacobian` may also be given for one call, as in
    `layer(x, stop=eq.Stop(rtol=1e-6))`. `layer.last` holds detached records of the last call,
    which are neither copied nor saved with the layer.
    """

    any_cell = True

    def __init__(
        self,
        cell: Callable[..., State],
        *,
        state: Shape | Sequence[Shape] | Callable[..., State] | None = None,
        jacobian: float = 0.0,
        **how: Any,
    ) -> None:
        super().__init__(**how)
        if not (isinstance(jacobian, int | float) and 0 <= jacobian < math.inf):
            raise ValueError(f"jacobian must be a finite number ≥ 0. Got {jacobian!r} instead.")
        self.jacobian = float(jacobian)
        if not callable(cell) or isinstance(cell, type):
            raise TypeError(f"cell must be callable as cell(z, x). Got {_kind(cell)} instead.")
        self.cell: Callable[..., State] = cell
        self.state = state if callable(state) else checked_shapes(state)
        refuse_splitting(self.method)

    def equilibrium(self, *inputs: Any, start: Start = None, **how: Any) -> Any:
        """z of every sample, differentiable; in training, with the penalty that `jacobian` asks for."""
        z = super().equilibrium(*inputs, start=start, **how)
        if not (self.jacobian and self.training and torch.is_grad_enabled()):
            return z
        if under_transform():
            raise RuntimeError(
                "jacobian= adds to the gradient of a backward pass. Got a torch.func transform instead: set "
                "layer.jacobian = 0 and add eq.jacobian_penalty to the loss, or use eval mode."
            )
        found = self.last.forward  # rows without an equilibrium have no Jacobian at one
        kept = slice(None) if found is None or bool(found.converged.all()) else found.converged
        some = [a[kept] if isinstance(a, Tensor) else a for a in inputs]
        parts = z if isinstance(z, tuple) else (z,)
        at = tuple(part[kept].detach() for part in parts)
        if not len(at[0]):
            return z
        shared = how.get("shared", ())
        point = at if isinstance(z, tuple) else at[0]
        penalty = self.jacobian * jacobian_penalty(self, *some, shared=shared, z=point)
        told = _Penalised.apply(penalty, *parts)
        return told if isinstance(z, tuple) else told[0]

    def begin(self) -> None:
        """One step of each power iteration that normalises a weight of the cell."""
        advance_parametrisations(self.cell)

    def equation(
        self, x: Any, *args: Any, shared: Sequence[Any] = (), start: Start = None, method: Method
    ) -> CellEquation:
        """z = cell(z, x, *args, *shared).

        x and args (such as a padding mask) are batch-first; `shared` tensors belong to all samples. `start`
        is where to begin, such as the equilibrium of a nearby input.
        """
        inputs = (x, *args)
        if isinstance(shared, Tensor) or not isinstance(shared, Sequence):
            raise TypeError(f"shared must be a sequence, such as shared=(t,). Got {_kind(shared)} instead.")
        _check_inputs((*inputs, *shared))
        return cell_equation(self.cell, inputs, shared, self.start_of(*inputs, start=start), method)

    def start_of(self, *inputs: Any, start: Start = None) -> State:
        """Where a solve begins: at `start`, where `state=` says, or at zero."""
        if callable(self.state) and start is None:
            return self.state(*inputs)
        state = None if callable(self.state) else self.state
        return checked_state(state, start, inputs[0], next(iter(self.parameters()), None))

    def diagnosis(self, error: EquilibriumError, equation: Equation) -> str:
        """What in the layer itself is to blame."""
        found = []
        if bool((error.solution.status == Status.nonfinite).any()):
            values = {**dict(self.named_parameters()), **dict(self.named_buffers())}
            bad = [f"`{name}`" for name, p in values.items() if not bool(torch.isfinite(p).all())]
            found += [f"Not finite in the layer itself: {', '.join(bad)}."] if bad else []
        if bool((error.solution.status == Status.coupled).any()):
            found.append(
                "The cell mixes the samples of a batch, and a layer solves each on its own: use LayerNorm "
                "or GroupNorm for norms over the batch, and let attention see one sample. Where samples "
                "belong together, make them one: x[None], with the batch as a dimension of the state."
            )
        if not under_transform() and not self._repeats(equation, error.solution):
            found.append(
                "The cell gives another answer each time it is called with the same state, so there is no "
                "equilibrium to find: draw random masks once per solve (eq.SharedDropout for dropout)."
            )
        return "\n".join(found)

    def _repeats(self, equation: Equation, solution: Solution) -> bool:
        """Whether the cell answers the same twice."""
        z = solution.value
        assert isinstance(z, Tensor)  # in flat rows
        if len(z) != len(equation.tensors[0]):
            return True
        with torch.no_grad():
            one, two = (equation(z, *equation.tensors) for _ in range(2))
        return not bool((row_distances(one, two) > 1e-3 * row_norms(one)).any())

    def extra_repr(self) -> str:
        """The equation, and how it is solved and differentiated."""
        solver = self.method.solver or "Anderson()"
        penalty = f", jacobian={self.jacobian:g}" if self.jacobian else ""
        return f"z = cell(z, x), solver={solver}, gradient={self.gradient}{penalty}"


class _Penalised(torch.autograd.Function):
    """The parts of z as they are; a backward pass through them goes on into the penalty, with weight 1."""

    @staticmethod
    def forward(ctx: Any, penalty: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.penalty = penalty.dtype, penalty.device
        return tuple(part.view_as(part) for part in parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        dtype, device = ctx.penalty
        return torch.ones((), dtype=dtype, device=device), *grads


def checked_state(state: Shape | Sequence[Shape] | None, start: Start, x: Any, like: Tensor | None) -> State:
    """Where a solve begins: at `start`, which must have the shape of `state` or of x, or else at zero.

    `like` is a parameter, whose dtype the state has if x holds integers. If `state` names no shape, a start
    of any shape is taken.
    """
    if isinstance(start, Solution):
        start = start.value
    if isinstance(start, Sequence) and not isinstance(start, Tensor):
        start = tuple(start)
    if start is None or state is not None:
        zero = _zeros(state, x, like)
        if start is None:
            return zero
        if _shapes(start) != _shapes(zero):
            raise ValueError(
                f"start must be of shape {_shapes(zero)}, as state= says. Got {_shapes(start)} instead."
            )
    return tuple(p.detach() for p in start) if isinstance(start, tuple) else start.detach()


def _zeros(state: Shape | Sequence[Shape] | None, x: Any, like: Tensor | None) -> State:
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, batch-first. Got {_kind(x)} instead.")
    if x.ndim < 1 or (x.ndim < 2 and x.is_floating_point()):
        raise ValueError(
            f"x must be batch-first, (N, …). Got shape {tuple(x.shape)} instead: a single sample is "
            f"x[None], N numbers are x[:, None]."
        )
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype() if like is None else like.dtype
    if torch.is_autocast_enabled(x.device.type) and dtype.itemsize < 4:
        dtype = torch.float32  # x comes from a layer in half precision, in which nothing can be solved
    if state is None:
        return torch.zeros(x.shape, dtype=dtype, device=x.device)
    single = all(isinstance(s, int) for s in state)
    shapes = cast(Sequence[Shape], [state] if single else state)
    parts = tuple(torch.zeros((len(x), *s), dtype=dtype, device=x.device) for s in shapes)
    return parts[0] if single else parts


def checked_shapes(state: Any) -> Shape | Sequence[Shape] | None:
    """`state`, which must be a shape, a list of shapes, or None."""

    def is_shape(s: Any) -> bool:
        return isinstance(s, Sequence) and all(isinstance(n, int) and n > 0 for n in s)

    if state is None or is_shape(state):
        return state
    if isinstance(state, Sequence) and state and all(is_shape(s) for s in state):
        return state
    raise ValueError(
        f"state must be the shape of one sample's state, such as (m,) or (c, h, w) with sizes ≥ 1, a list of "
        f"shapes, or a function of the inputs. Got {state!r} instead."
    )


def _check_inputs(inputs: Sequence[Any]) -> None:
    """A tensor inside a container, or an array, would be neither differentiated nor kept with its sample."""
    for i, a in enumerate(inputs):
        parts = a.values() if isinstance(a, dict) else a if isinstance(a, list | tuple | set) else ()
        if isinstance(a, np.ndarray) or any(isinstance(p, Tensor | np.ndarray) for p in parts):
            raise TypeError(
                f"inputs of a layer are tensors, or plain values. Got {_kind(a)} for input {i} instead: give "
                f"each tensor as an input of its own (torch.as_tensor makes one of an array)."
            )


def _shapes(z: State) -> tuple:
    return tuple(tuple(p.shape) for p in z) if isinstance(z, tuple) else tuple(z.shape)


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
