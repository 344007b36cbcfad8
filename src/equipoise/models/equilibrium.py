"""z = f(z, x): any cell as a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..differentiate import Gradient, Implicit, Method, Record
from ..differentiate.closure import closed_over
from ..differentiate.equation import under_transform
from ..solve import Solution, Solver, Stop
from ..solve.compilers import uncompiled
from ..solve.driver import Precision, checked_chain
from ..solve.failure import OnFailure, Policy
from ..solve.norms import row_distances, row_norms
from ..solve.problem import Layout, make_map
from ..solve.solution import EquilibriumError, State, Status
from .cell import CellEquation, advance_parametrisations, draw_masks, refuse_unsteady

Shape = Sequence[int]


class Equilibrium(nn.Module):
    """z = cell(z, x): a layer whose output is the state its cell leaves alone.

    Args:
        cell: an nn.Module or function `(z, x, *more) -> z`. The parameters of a module are trained; one that
            holds active Dropout or BatchNorm is refused, with the remedy.
        solver: finds the equilibrium; Anderson by default. A sequence is tried in turn on rows that failed.
        gradient: `Implicit()` (exact, default), `Unrolled(steps)` or `Phantom(steps)`.
        stop: the stopping test; by default that of the dtype.
        on_failure: "raise" (default), "warn", "mask", "accept", or an `OnFailure`.
        state: the shape of one sample's state, (m,) or (c, h, w); a list of shapes for a tuple state; or a
            function of the inputs that returns the start. By default the start is zero, shaped like x.
        precision: "mixed" solves in float32 first, then polishes and verifies in float64.

    `layer.last` holds detached records of the last call; they are neither copied nor saved with the layer.
    """

    def __init__(
        self,
        cell: Callable[..., State],
        *,
        solver: Solver | Sequence[Solver] | None = None,
        gradient: Gradient | None = None,
        stop: Stop | None = None,
        on_failure: Policy | OnFailure = "raise",
        state: Shape | Sequence[Shape] | Callable[..., State] | None = None,
        precision: Precision = "native",
    ) -> None:
        super().__init__()
        if not callable(cell) or isinstance(cell, type):
            raise TypeError(f"cell must be callable as cell(z, x). Got {_kind(cell)} instead.")
        if gradient is not None and not isinstance(gradient, Gradient):
            raise TypeError(f"gradient must be a Gradient such as eq.Implicit(). Got {gradient!r} instead.")
        if stop is not None and not isinstance(stop, Stop):
            raise TypeError(f"stop must be a Stop such as eq.Stop(rtol=1e-6). Got {stop!r} instead.")
        if precision not in ("native", "mixed"):
            raise ValueError(f"precision must be 'native' or 'mixed'. Got {precision!r} instead.")
        listed = solver is None or (isinstance(solver, Sequence) and not isinstance(solver, str))
        for one in checked_chain(solver if listed else [solver]):  # type: ignore[list-item]
            if one.affine_only:
                raise TypeError(
                    f"{type(one).__name__} splits an AffineMap, and a cell may be any map: "
                    f"use Anderson() or Newton() instead."
                )
        self.cell: Callable[..., State] = cell
        self.gradient = gradient or Implicit()
        self.method = Method(solver, stop or Stop(), precision, OnFailure.of(on_failure))
        self.state = state if callable(state) else _checked_shapes(state)
        self._last = Record()

    @property
    def last(self) -> Record:
        """The forward and adjoint Solution of the last call."""
        return self._last

    @uncompiled
    def forward(
        self, x: Any, *args: Any, shared: Sequence[Any] = (), start: State | Solution | None = None
    ) -> State:
        """The equilibrium of every sample: z = cell(z, x, *args, *shared).

        x and args are batch-first (a padding mask, say); `shared` tensors belong to all samples. `start` is
        where to begin, such as the equilibrium of a nearby input.
        """
        if isinstance(self.cell, nn.Module) and not under_transform():
            advance_parametrisations(self.cell)
        equation, z0 = self._equation((x, *args), shared, start)
        record = self._last = Record()
        try:
            flat = self.gradient.equilibrium(equation, z0, equation.tensors, record)
        except EquilibriumError as error:
            if error.solution is not record.forward:
                raise  # of a layer inside the cell
            raise self._explained(error, equation) from None
        finally:
            if record.forward is not None:
                record.forward = _shaped(record.forward, equation.layout)
        return equation.layout.unflat(flat)

    @uncompiled
    def solve(
        self, x: Any, *args: Any, shared: Sequence[Any] = (), start: State | Solution | None = None
    ) -> Solution:
        """The Solution behind `forward`, whatever became of each sample, without a gradient."""
        with torch.no_grad():
            equation, z0 = self._equation((x, *args), shared, start)
            return _shaped(equation.solve(z0, equation.tensors), equation.layout)

    def _equation(
        self, inputs: Sequence[Any], shared: Sequence[Any], start: State | Solution | None
    ) -> tuple[CellEquation, Tensor]:
        """The problem with everything in the open, checked, and where to start."""
        if isinstance(shared, Tensor) or not isinstance(shared, Sequence):
            raise TypeError(f"shared must be a sequence, such as shared=(t,). Got {_kind(shared)} instead.")
        _check_inputs((*inputs, *shared))
        z0 = self._start(inputs, start)
        rows = make_map(self.cell, z0, (), shared).rows
        for i, a in enumerate(inputs):
            if isinstance(a, Tensor) and (a.ndim < 1 or len(a) != rows):
                raise ValueError(
                    f"x and args are batch-first: {f'args[{i - 1}]' if i else 'x'} must have {rows} rows, as "
                    f"the state has. Got shape {tuple(a.shape)} instead. What all share goes into shared=."
                )
        self._check_state(z0)
        layout, masks = Layout.of(z0), {}
        if isinstance(self.cell, nn.Module):
            refuse_unsteady(self.cell)
            masks = draw_masks(self.cell, z0, (*inputs, *shared), rows)
        equation = CellEquation(self.cell, layout, inputs, shared, self.method, masks)
        flat = layout.flat(z0)
        self._check_closure(equation, flat)
        return equation, flat

    def _start(self, inputs: Sequence[Any], start: State | Solution | None) -> State:
        if callable(self.state) and start is None:
            return self.state(*inputs)
        x = inputs[0]
        if isinstance(start, Solution):
            start = start.value
        if isinstance(start, Sequence) and not isinstance(start, Tensor):
            start = tuple(start)
        if start is None or not (self.state is None or callable(self.state)):
            zero = self._zeros(x)
            if start is None:
                return zero
            if _shapes(start) != _shapes(zero):
                raise ValueError(
                    f"start must be of shape {_shapes(zero)}, as state= says. Got {_shapes(start)} instead."
                )
        return tuple(p.detach() for p in start) if isinstance(start, tuple) else start.detach()

    def _zeros(self, x: Any) -> State:
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a tensor, batch-first. Got {_kind(x)} instead.")
        if x.ndim < 1 or (x.ndim < 2 and x.is_floating_point()):
            raise ValueError(
                f"x must be batch-first, (N, …). Got shape {tuple(x.shape)} instead: a single sample is "
                f"x[None], N numbers are x[:, None]."
            )
        like = x if x.is_floating_point() else next(iter(self.parameters()), torch.empty(0))
        dtype = like.dtype
        if torch.is_autocast_enabled(x.device.type) and dtype.itemsize < 4:
            dtype = torch.float32  # x comes from a layer in half precision, in which nothing can be solved
        if self.state is None:
            return torch.zeros(x.shape, dtype=dtype, device=x.device)
        single = all(isinstance(s, int) for s in cast(Sequence[Any], self.state))
        shapes = cast(Sequence[Shape], [self.state] if single else self.state)
        parts = tuple(torch.zeros((len(x), *s), dtype=dtype, device=x.device) for s in shapes)
        return parts[0] if single else parts

    def _check_state(self, z0: State) -> None:
        dtype = (z0[0] if isinstance(z0, tuple) else z0).dtype
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"an equilibrium is solved for in float32 or float64. Got a state of {dtype} instead: use "
                f"torch.autocast for lower precision, which keeps the state in float32."
            )
        if self.method.precision == "mixed":
            held = closed_over(self.cell, torch.is_floating_point)
            if held:
                raise ValueError(
                    f"precision='mixed' cannot cast what a cell closes over: {', '.join(held)}. Make it a "
                    f"parameter or buffer of an nn.Module cell, or an input of the layer."
                )

    def _check_closure(self, equation: CellEquation, start: Tensor) -> None:
        """Samples that end leave the batch, which a batch held by the cell itself cannot follow."""
        rows = len(start)
        if rows < 2 or under_transform():
            return
        held = closed_over(self.cell, lambda t: t.ndim > 0 and t.shape[0] == rows)
        if not held:
            return
        tensors = [t[:1] if i < equation.batched else t for i, t in enumerate(equation.tensors)]
        try:
            with torch.no_grad():
                equation(start[:1], *tensors)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(
                f"the cell must take any number of samples. Got one that closes over {', '.join(held)}, a "
                f"batch of {rows}, and fails on a single sample ({str(error).splitlines()[0]}): make it an "
                f"input of the layer, layer(x, more), as cell(z, x, more)."
            ) from error

    def _explained(self, error: EquilibriumError, equation: CellEquation) -> EquilibriumError:
        """The same error, with what in the layer or its inputs is to blame."""
        solution = _shaped(error.solution, equation.layout)
        message = str(error)
        if bool((solution.status == Status.nonfinite).any()):
            values = {**dict(self.named_parameters()), **dict(self.named_buffers())}
            bad = [f"`{name}`" for name, p in values.items() if not bool(torch.isfinite(p).all())]
            if bad:
                message += f"\nNot finite in the layer itself: {', '.join(bad)}."
        if bool((solution.status == Status.coupled).any()):
            message += (
                "\nThe cell mixes the samples of a batch, and a layer solves each on its own: use LayerNorm "
                "or GroupNorm for norms over the batch, and let attention see one sample. Where samples "
                "belong together, make them one: x[None], with the batch as a dimension of the state."
            )
        if not under_transform() and not self._repeats(equation, solution):
            message += (
                "\nThe cell gives another answer each time it is called with the same state, so there is no "
                "equilibrium to find: draw random masks once per solve (eq.SharedDropout for dropout)."
            )
        return EquilibriumError(message, solution)

    def _repeats(self, equation: CellEquation, solution: Solution) -> bool:
        """Whether the cell answers the same twice."""
        z = equation.layout.flat(solution.value)
        if len(z) != len(equation.tensors[0]):
            return True
        with torch.no_grad():
            one, two = (equation(z, *equation.tensors) for _ in range(2))
        return not bool((row_distances(one, two) > 1e-3 * row_norms(one)).any())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": Record()}

    def extra_repr(self) -> str:
        solver = self.method.solver or "Anderson()"
        return f"z = cell(z, x), solver={solver}, gradient={self.gradient}"


def _checked_shapes(state: Any) -> Shape | Sequence[Shape] | None:
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


def _shaped(solution: Solution, layout: Layout) -> Solution:
    """A solution in flat rows with its value in the shape of the state, free of any transform."""
    assert isinstance(solution.value, Tensor)
    value = layout.unflat(solution.value.detach())
    plain: dict[str, Any] = {name: _plain(t) for name, t in vars(solution).items() if isinstance(t, Tensor)}
    plain["value"] = tuple(map(_plain, value)) if isinstance(value, tuple) else _plain(value)
    return replace(solution, **plain)


def _plain(t: Tensor) -> Tensor:
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        t = torch._C._functorch.get_unwrapped(t)
    return t
