"""z = f(z, c(x)),  ŷ = head(z): what the equilibrium models of images share.

Images are (N, C, H, W). What f needs of the image is computed once, before the solve.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...differentiate import Gradient, Implicit, Record
from ...differentiate.equation import under_transform
from ...differentiate.gradient import SolvedGradient
from ...solve import Solution, Solver, Stop
from ...solve.compilers import uncompiled
from ...solve.driver import checked_chain
from ...solve.failure import OnFailure, Policy
from ...solve.solution import State
from ..baselines import Repeat
from ..equilibrium import Equilibrium
from ..opteq.pieces import Gradients, as_gradient, check_sam, trained_by
from ..properties import as_sam, as_stop, method_config, selects
from ..saving import Saved
from .parts import Image, checked_image, images_of, positive

Solvers = Solver | Sequence[Solver]
StoredSolvers = Solvers | Mapping[str, Any] | str  # or what a file holds of one


class ImageModel(Saved, ABC):
    """z = f(z, c(x)),  ŷ = head(z).

    A family gives its `cell`, which is f, `injection(x)`, which is c(x), `shared()` (weights that f takes as
    arguments), the shape of one image's state, and `readout(z)`.

    `solver`, `gradient`, `stop` and `on_failure` are those of `Equilibrium`. `gradient` may be a number K,
    for Unrolled(K); `rtol` of `stop` serves the adjoint too unless `gradient` has its own. solver=SAM(…)
    chooses among equilibria and trains unrolled: z is its K-th iterate. `last` records the last call,
    neither copied nor saved.
    """

    cell: Callable[..., State]
    state: Sequence[int] | Sequence[Sequence[int]]

    def __init__(
        self,
        inputs: Sequence[int],
        outputs: int,
        *,
        solver: StoredSolvers,
        gradient: Gradients | None,
        stop: Stop | None,
        on_failure: Policy | OnFailure,
    ) -> None:
        super().__init__()
        self.inputs: Image = checked_image(inputs)
        (self.outputs,) = positive(outputs=outputs)
        self.solver: Solvers = as_sam(solver)
        checked_chain(self.solver)
        self.stop, self.on_failure = as_stop(stop), OnFailure.of(on_failure)
        self.gradient = None if gradient is None else as_gradient(gradient)
        self._last = Record()

    # -- what a family is --------------------------------------------------------------------------------

    @abstractmethod
    def injection(self, x: Tensor) -> tuple[Tensor, ...]:
        """What f needs of every image, batch-first."""

    def shared(self) -> tuple[Tensor, ...]:
        """What f needs besides, the same for all images."""
        return ()

    @abstractmethod
    def readout(self, z: Any) -> Tensor:
        """ŷ: (N, k), or (N, k, H, W) for pixels."""

    @property
    def solved_cell(self) -> Callable[..., State]:
        """What is solved: f, or a map with the same equilibria."""
        return self.cell

    def cell_stop(self, stop: Stop | None) -> Stop | None:
        """To what tolerance f itself is solved, for equilibria as near as `stop` says."""
        return stop

    def solved_stop(self, stop: Stop | None) -> Stop | None:
        """To what tolerance `solved_cell` is."""
        return self.cell_stop(stop)

    def stepped_stop(self, stop: Stop | None) -> Stop | None:
        """By what tolerance the last of unrolled steps of f is judged."""
        return stop

    def default_start(self, c: Sequence[Tensor]) -> State | None:
        """Where a solve begins unless `start` says it; None for zero, where an unrolled iteration begins."""
        return None

    def default_gradient(self, stop: Stop) -> Implicit:
        """How equilibria are differentiated unless `gradient` says it, to the tolerance of `stop`."""
        return Implicit(stop=stop)

    # -- equilibria --------------------------------------------------------------------------------------

    def forward(
        self,
        x: Tensor,
        *,
        start: State | Solution | None = None,
        stop: Stop | None = None,
        solver: Solvers | None = None,
    ) -> Tensor:
        """ŷ = head(z)."""
        return self.readout(self.equilibrium(x, start=start, stop=stop, solver=solver))

    @uncompiled
    def equilibrium(
        self,
        x: Tensor,
        *,
        start: State | Solution | None = None,
        stop: Stop | None = None,
        solver: Solvers | None = None,
    ) -> State:
        """z (N, channels, h, w), or a tuple of such; differentiable."""
        c = self.injection(self._check_images(x))
        layer = self._layer(x, stop, solver, named=solver is not None)
        if start is None and isinstance(layer.gradient, SolvedGradient) and not under_transform():
            start = self._default_start(c)
        try:
            return layer(*c, shared=self.shared(), start=start)
        finally:
            self._last = layer.last

    @uncompiled
    @torch.no_grad()
    def solve(
        self,
        x: Tensor,
        *,
        start: State | Solution | None = None,
        stop: Stop | None = None,
        solver: Solvers | None = None,
    ) -> Solution:
        """The Solution behind `equilibrium`, whatever became of each image, without a gradient."""
        c = self.injection(self._check_images(x))
        start = self._default_start(c) if start is None else start
        return self._layer(x, stop, solver, named=False).solve(*c, shared=self.shared(), start=start)

    def as_equilibrium(self) -> Equilibrium:
        """The same map as an `Equilibrium` of a cell, without the head: what `diagnose` and `unroll` take."""
        return Equilibrium(
            _ImageCell(self),
            solver=self.solver,
            gradient=self.gradient,
            stop=self.cell_stop(self.stop),
            on_failure=self.on_failure,
            state=self.state,
        )

    @torch.no_grad()
    def _default_start(self, c: Sequence[Tensor]) -> State | None:
        """In the dtype of the parameters, which the state has under autocast too."""
        start = self.default_start(c)
        return start.to(next(self.parameters()).dtype) if isinstance(start, Tensor) else start

    def repeated(self, times: int) -> RepeatedModel:
        """The weight-tied network that applies the same cell `times` times: repeat-6, repeat-11, …"""
        return RepeatedModel(self, times)

    def _layer(self, x: Tensor, stop: Stop | None, solver: Solvers | None, named: bool) -> Equilibrium:
        stop, solver = stop or self.stop, solver or self.solver
        if selects(solver) and isinstance(self.state[0], int):  # SAM sees flat rows
            check_sam(solver, x.new_zeros(1, math.prod(self.state)))  # type: ignore[arg-type]
        gradient = self._gradient(x, stop, solver, named)
        solved = isinstance(gradient, SolvedGradient) and not selects(solver)  # else each step of f counts
        return Equilibrium(
            self.solved_cell if solved else self.cell,
            solver=solver,
            gradient=gradient,
            stop=self.solved_stop(stop) if solved else self.stepped_stop(stop),
            on_failure=self.on_failure,
            state=self.state,
        )

    def _gradient(self, x: Tensor, stop: Stop | None, solver: Solvers, named: bool) -> Gradient:
        how = self.gradient or self.default_gradient(stop or Stop())
        return trained_by(how, solver, named, (x, *self.parameters()))

    # -- housekeeping ------------------------------------------------------------------------------------

    @property
    def last(self) -> Record:
        """The forward and adjoint Solution of the last call."""
        return self._last

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": Record()}

    def config(self) -> dict[str, Any]:
        """What all families keep of how z is found."""
        return method_config(self.gradient, self.solver, self.stop)

    def _check_images(self, x: Tensor) -> Tensor:
        return images_of(self.inputs, x, next(self.parameters()))


class _ImageCell(torch.nn.Module):
    """(z, x) ↦ f(z, c(x)): the map of a model as a cell of its own, which shares the parameters."""

    def __init__(self, model: ImageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, z: Any, x: Tensor) -> State:
        return self.model.cell(z, *self.model.injection(x), *self.model.shared())


class RepeatedModel(torch.nn.Module):
    """z_k = cell(z_{k−1}, c(x)), ŷ = head(z_K): an equilibrium model's cell, `times` times from zero."""

    def __init__(self, model: ImageModel, times: int) -> None:
        super().__init__()
        self.model = model
        (self.times,) = positive(times=times)

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        repeat = Repeat(model.cell, self.times, model.state)
        return model.readout(repeat(*model.injection(model._check_images(x)), *model.shared()))
