"""z = f(z, c(x)),  ŷ = head(z): what the equilibrium models of images share.

Images are (N, C, H, W). What f needs of the image is computed once, before the solve.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...differentiate import Method
from ...differentiate.equation import under_transform
from ...differentiate.gradient import SolvedGradient
from ...solve import Stop
from ...solve.solution import State
from ..base import EquilibriumModel, Start
from ..cell import Equilibrium, checked_state
from ..cell_equation import CellEquation, cell_equation
from ..checks import counts
from ..methods import check_sam, method_config, selects
from ..parametrised import advance_parametrisations
from ..repeated import Repeat
from .parts import Extractor, Image, checked_image, images_of, with_channels_last


class ImageModel(EquilibriumModel):
    """z = f(z, c(x)),  ŷ = head(z).

    A family defines its `cell`, which is f, `injection(x)`, which is c(x), `shared()` (weights that f takes
    as arguments), the shape of one image's state, and `readout(z)`.

    `solver`, `gradient`, `stop` and `on_failure` are those of `Equilibrium`. `gradient` may be a number K,
    which stands for Unrolled(K). `rtol` of `stop` holds for the adjoint too, unless `gradient` has its own.
    solver=SAM(…) chooses among equilibria and is trained through its unrolled steps: z is its K-th iterate.
    `last` records the last call; it is neither copied nor saved.
    """

    cell: Callable[..., State]
    state: Sequence[int] | Sequence[Sequence[int]]
    extractor: Extractor
    head: Any  # from the state to ŷ
    plainly_iterated = False  # whether z ← cell(z, …) is likely to settle
    channels_last = False  # whether z and c(x) lie in memory with their channels last

    def __init__(self, inputs: Sequence[int], outputs: int, **how: Any) -> None:
        super().__init__(**how)
        self.inputs: Image = checked_image(inputs)
        (self.outputs,) = counts(outputs=outputs)

    # -- what a family is --------------------------------------------------------------------------------

    @abstractmethod
    def injection(self, x: Tensor) -> tuple[Tensor, ...]:
        """What f needs of every image, batch-first."""

    def shared(self) -> tuple[Tensor, ...]:
        """What f needs besides, the same for all images."""
        return ()

    def readout(self, z: Any) -> Tensor:
        """ŷ: (N, k), or (N, k, H, W) for pixels."""
        return self.head(z)

    def output_shape(self, N: int) -> tuple[int, ...]:
        """The shape of ŷ for N images that have one answer each: (N, k)."""
        return N, self.outputs

    @property
    def solved_cell(self) -> Callable[..., State]:
        """What is solved: f, or a map with the same equilibria."""
        return self.cell

    def cell_stop(self, stop: Stop) -> Stop:
        """The tolerance to which f itself must be solved for equilibria that are as near as `stop` asks."""
        return stop

    def solved_stop(self, stop: Stop) -> Stop:
        """The tolerance to which `solved_cell` must be solved for the same."""
        return self.cell_stop(stop)

    def stepped_stop(self, stop: Stop) -> Stop:
        """The tolerance by which the last unrolled step of f is judged."""
        return stop

    def default_start(self, c: Sequence[Tensor]) -> State | None:
        """Where a solve begins unless `start` says it; None for zero, where an unrolled iteration begins."""
        return None

    # -- equilibria --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """One step of each power iteration that normalises a weight of the cell."""
        advance_parametrisations(self.cell)

    def equation(  # type: ignore[override]
        self, x: Tensor, *, start: Start = None, method: Method
    ) -> CellEquation:
        """z = f(z, c(x)), or a map with the same equilibria if nothing but these is asked for."""
        x = self._check_images(x)
        c = self.injection(with_channels_last(x) if self.channels_last else x)
        if selects(method.solver) and isinstance(self.state[0], int):  # SAM sees flat rows
            check_sam(method.solver, x.new_zeros(1, math.prod(self.state)))  # type: ignore[arg-type]
        solved = isinstance(method.gradient, SolvedGradient) and not selects(method.solver)
        if start is None and solved and not under_transform():
            start = self._default_start(c)
        cell, stop = (
            (self.solved_cell, self.solved_stop(method.stop))
            if solved
            else (self.cell, self.stepped_stop(method.stop))
        )
        z0 = checked_state(self.state, start, c[0], next(self.parameters()))
        if self.channels_last:
            assert isinstance(z0, Tensor)
            c, z0 = tuple(map(with_channels_last, c)), with_channels_last(z0)
        return cell_equation(cell, c, self.shared(), z0, replace(method, stop=stop))

    def as_equilibrium(self) -> Equilibrium:
        """The same map as an `Equilibrium` of a cell, without the head: what `diagnose` and `unroll` take."""
        method = self.method
        return Equilibrium(
            _ImageCell(self),
            solver=method.solver or self.default_solver_chain(),
            gradient=method.gradient,
            stop=self.cell_stop(method.stop),
            on_failure=method.on_failure,
            state=self.state,
        )

    @torch.no_grad()
    def _default_start(self, c: Sequence[Tensor]) -> State | None:
        """`default_start` in the dtype of the parameters, which the state has under autocast too."""
        start = self.default_start(c)
        return start.to(next(self.parameters()).dtype) if isinstance(start, Tensor) else start

    def repeated(self, times: int) -> RepeatedModel:
        """The weight-tied network that applies the same cell `times` times: repeat-6, repeat-11, …"""
        return RepeatedModel(self, times)

    # -- housekeeping ------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """The family's settings, the strides of g, and how z is found."""
        return super().config() | {"extractor": self.extractor.strides} | method_config(self.method)

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
        (self.times,) = counts(times=times)

    def forward(self, x: Tensor) -> Tensor:
        """ŷ of the last repeat."""
        model = self.model
        repeat = Repeat(model.cell, self.times, model.state)
        return model.readout(repeat(*model.injection(model._check_images(x)), *model.shared()))
