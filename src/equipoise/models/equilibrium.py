"""z = f(z, x): any cell as a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..differentiate import Gradient, Implicit, Method, Record
from ..solve import Solution, Solver, Stop
from ..solve.driver import Precision
from ..solve.failure import OnFailure, Policy
from ..solve.problem import Layout
from ..solve.solution import EquilibriumError, State, Status
from .cell import CellEquation, SharedDropout, refuse_unsteady

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
        if not callable(cell):
            raise TypeError(f"cell must be callable as cell(z, x). Got {type(cell).__name__} instead.")
        if gradient is not None and not isinstance(gradient, Gradient):
            raise TypeError(f"gradient must be a Gradient such as eq.Implicit(). Got {gradient!r} instead.")
        if stop is not None and not isinstance(stop, Stop):
            raise TypeError(f"stop must be a Stop such as eq.Stop(rtol=1e-6). Got {stop!r} instead.")
        self.cell = cell
        self.gradient = gradient or Implicit()
        self.method = Method(solver, stop or Stop(), precision, OnFailure.of(on_failure))
        self.state = state
        self._last = Record()

    @property
    def last(self) -> Record:
        """The forward and adjoint Solution of the last call."""
        return self._last

    def forward(
        self, x: Any, *args: Any, shared: Sequence[Any] = (), start: State | Solution | None = None
    ) -> State:
        """The equilibrium of every sample: z = cell(z, x, *args, *shared).

        x and args are batch-first (a padding mask, say); `shared` tensors belong to all samples. `start` is
        where to begin, such as the equilibrium of a nearby input.
        """
        inputs = (x, *args)
        z0 = self._start(inputs, start)
        layout = Layout.of(z0)
        self._check(z0, inputs, shared)
        equation = CellEquation(self.cell, layout, inputs, shared, self.method)
        record = self._last = Record()
        try:
            flat = self.gradient.equilibrium(equation, layout.flat(z0), equation.tensors, record)
        except EquilibriumError as error:
            raise self._explained(error, layout) from None
        if record.forward is not None:
            record.forward = _unflat(record.forward, layout)
        return layout.unflat(flat)

    def solve(
        self, x: Any, *args: Any, shared: Sequence[Any] = (), start: State | Solution | None = None
    ) -> Solution:
        """The Solution behind `forward`, whatever became of each sample, without a gradient."""
        inputs = (x, *args)
        z0 = self._start(inputs, start)
        layout = Layout.of(z0)
        self._check(z0, inputs, shared)
        with torch.no_grad():
            equation = CellEquation(self.cell, layout, inputs, shared, self.method)
            return _unflat(equation.solve(layout.flat(z0), equation.tensors), layout)

    def _start(self, inputs: Sequence[Any], start: State | Solution | None) -> State:
        if isinstance(start, Solution):
            start = start.value
        if start is not None:
            return tuple(p.detach() for p in start) if isinstance(start, tuple) else start.detach()
        if callable(self.state):
            return self.state(*inputs)
        x = inputs[0]
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a tensor, batch-first. Got {type(x).__name__} instead.")
        like = x if x.is_floating_point() else next(iter(self.parameters()), torch.empty(0))
        if self.state is None:
            return torch.zeros(x.shape, dtype=like.dtype, device=x.device)
        single = all(isinstance(s, int) for s in self.state)
        shapes = cast(Sequence[Shape], [self.state] if single else self.state)
        parts = tuple(torch.zeros((len(x), *s), dtype=like.dtype, device=x.device) for s in shapes)
        return parts[0] if single else parts

    def _check(self, z0: State, inputs: Sequence[Any], shared: Sequence[Any]) -> None:
        """Refuse what has no equilibrium, and draw the masks that are held through the solve."""
        if not isinstance(self.cell, nn.Module):
            return
        refuse_unsteady(self.cell)
        dropouts = [m for m in self.cell.modules() if isinstance(m, SharedDropout)]
        for dropout in dropouts:
            dropout.mask = None
        if any(d.active for d in dropouts):
            with torch.no_grad():
                self.cell(z0, *inputs, *shared)

    def _explained(self, error: EquilibriumError, layout: Layout) -> EquilibriumError:
        """The same error, with the parameters that are not finite named."""
        solution = _unflat(error.solution, layout)
        bad = [n for n, p in self.named_parameters() if not bool(torch.isfinite(p).all())]
        message = str(error)
        if bad and bool((solution.status == Status.nonfinite).any()):
            message += f"\nNot finite in the layer itself: {', '.join(bad)}."
        return EquilibriumError(message, solution)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": Record()}

    def extra_repr(self) -> str:
        solver = self.method.solver or "Anderson()"
        return f"z = cell(z, x), solver={solver}, gradient={self.gradient}"


def _unflat(solution: Solution, layout: Layout) -> Solution:
    value = solution.value
    if isinstance(value, tuple) or value.shape[1:].numel() != layout.width:
        return solution
    return replace(solution, value=layout.unflat(value.detach()))
