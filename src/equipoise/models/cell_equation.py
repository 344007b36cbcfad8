"""A user's cell as an equation in its inputs, parameters, buffers and random masks."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from ..differentiate import Equation, Method
from ..differentiate.closure import closed_over
from ..differentiate.equation import under_transform
from ..solve import Solution, Solver
from ..solve.problem import Layout, make_map
from ..solve.solution import State
from .parametrised import HeldWeights
from .places import call_with, places_of, tensors_of
from .shared_dropout import SharedDropout, draw_masks, holding

_SHAPES = re.compile(r"\b(sizes?|shapes?|channels|dimensions?|elements)\b")  # in errors about shapes
_REFUSALS = (RuntimeError, ValueError, AssertionError, TypeError)  # raised by torch if shapes do not fit


class CellEquation(Equation):
    """z = cell(z, *args, *shared), with the cell's parameters, buffers and masks as further tensors."""

    start: Tensor

    def __init__(
        self,
        cell: Callable[..., State],
        layout: Layout,
        args: Sequence[Any],
        shared: Sequence[Any],
        method: Method,
        start: Tensor,
        masks: dict[SharedDropout, Tensor] | None = None,
    ) -> None:
        self.cell, self.layout, self.method, self.start = cell, layout, method, start
        self.inputs = [*args, *shared]  # the tensors among them are replaced at each call
        self.masks = masks or {}
        module = cell if isinstance(cell, nn.Module) else None
        named = tensors_of(module) if module is not None else {}
        self.names = list(named)
        self.weights = HeldWeights(cell)
        self.slots = [i for i, a in enumerate(self.inputs) if isinstance(a, Tensor)]
        batched = [a for a in args if isinstance(a, Tensor)]
        unbatched = [a for a in shared if isinstance(a, Tensor)]
        self.tensors = (*batched, *self.masks.values(), *unbatched, *named.values())
        self.inputs_batched, self.batched = len(batched), len(batched) + len(self.masks)

    @functools.cached_property
    def places(self) -> dict[str, str]:
        """Where the cell holds its tensors; asked for only where others take their place."""
        return places_of(self.cell) if isinstance(self.cell, nn.Module) else {}

    def __call__(self, z: Tensor, *tensors: Tensor) -> Tensor:
        state, inputs = self.layout.unflat(z), self.inputs
        own = all(map(operator.is_, tensors, self.tensors))
        if own and self.weights.known is not None and not (self.masks or self.weights.lists):
            return self._flat(self._answer(state, inputs), z)  # nothing is replaced in most steps
        given = self.inputs_of(tensors)
        if not own:
            inputs = list(self.inputs)
            for slot, tensor in zip(self.slots, given, strict=True):
                inputs[slot] = tensor
        if isinstance(self.cell, nn.Module):
            values = tensors[len(given) + len(self.masks) :]
            masks = dict(zip(self.masks, tensors[self.inputs_batched : self.batched], strict=True))
            with holding(masks), self.weights.steady(z.dtype):
                if self._has(values):
                    out = self._answer(state, inputs)
                else:
                    named = dict(zip(self.names, values, strict=True))
                    out = call_with(self.cell, named, (state, *inputs), places=self.places)
        else:
            out = self._answer(state, inputs)
        return self._flat(out, z)

    def _answer(self, state: State, inputs: Sequence[Any]) -> State:
        """What the cell returns; if a state of this shape does not fit into it, an error that says so."""
        try:
            return self.cell(state, *inputs)
        except _REFUSALS as error:
            told = str(error).splitlines()[0] if str(error) else ""
            parts = isinstance(error, TypeError) and isinstance(state, tuple) and "tuple" in told
            if type(error) not in _REFUSALS or not (parts or _SHAPES.search(told)):
                raise
            shapes = [tuple(p.shape) for p in (state if isinstance(state, tuple) else (state,))]
            given = [tuple(a.shape) for a in inputs if isinstance(a, Tensor)]
            raise ValueError(
                f"the cell must take the state of the layer. Got {told!r} from the cell instead, on a "
                f"state of shape {shapes} and inputs of shape {given}: give the layer state=…, the shape "
                f"of one sample's state (by default that of x), as the cell expects it."
            ) from error

    def _has(self, values: Sequence[Tensor]) -> bool:
        """Whether these are the cell's own parameters and buffers, so that it can be called directly."""
        own = self.tensors[len(self.tensors) - len(self.names) :]
        return self.weights.known is not None and all(a is b for a, b in zip(values, own, strict=True))

    def _flat(self, out: Any, z: Tensor) -> Tensor:
        if self.layout.passes(out, z):
            return out
        plain = not self.layout.is_tuple and isinstance(out, Tensor) and out.dtype == z.dtype
        if plain and out.shape == (len(z), *self.layout.shapes[0]):  # as it is in almost every step
            return self.layout.flat(out)
        wrong = self.layout.mismatch(out, z.shape[0])
        if wrong:
            raise ValueError(
                f"the cell must return a state like the one it is given: {wrong} "
                f"Give the layer state=… (the shape of one sample's state), or project inside the cell."
            )
        cast = torch.is_autocast_enabled(z.device.type)
        for part in out if isinstance(out, tuple) else (out,):
            if part.dtype != z.dtype and not cast:
                raise ValueError(
                    f"the cell must return {z.dtype} like the state it is given. Got {part.dtype} instead: "
                    f"give x, the start and the cell one dtype (cell.to({z.dtype}))."
                )
        return self.layout.flat(out).to(z.dtype)

    def inputs_of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors that stand for the cell's arguments, in the order of its signature."""
        tail = self.batched + len(self.slots) - self.inputs_batched
        return [*tensors[: self.inputs_batched], *tensors[self.batched : tail]]

    def name(self, index: int) -> str:
        """What the user calls tensor `index`."""
        tail = self.batched + len(self.slots) - self.inputs_batched
        if index >= tail:
            return f"parameter `{self.names[index - tail]}`"
        if index >= self.batched:
            return f"shared tensor {index - self.batched}"
        return f"input {index}" if index < self.inputs_batched else "dropout mask"

    def solve(self, start: Tensor, tensors: Sequence[Tensor], ahead: bool = False) -> Solution:
        """The Solution, or a RuntimeError if evaluating the cell has changed one of its own tensors."""
        named = dict(zip(self.names, tensors[len(tensors) - len(self.names) :], strict=True))
        before = {name: t._version for name, t in named.items() if not t.is_inference()}
        solution = super().solve(start, tensors, ahead)
        moved = [f"`{name}`" for name, version in before.items() if named[name]._version != version]
        if moved:
            raise RuntimeError(
                f"the cell must be one map for the whole solve. Got one that changes {', '.join(moved)} when "
                f"it is evaluated instead: hold buffers still, keep counters outside of tensors, and use "
                f"torch.nn.utils.parametrizations.spectral_norm rather than the older hook."
            )
        return solution

    def held(self) -> AbstractContextManager[None]:
        """A context in which parametrised weights (spectral norm, …) are computed once, not in every step."""
        return self.weights.held()


def cell_equation(
    cell: Callable[..., State], inputs: Sequence[Any], shared: Sequence[Any], start: State, method: Method
) -> CellEquation:
    """z = cell(z, *inputs, *shared), checked: one map for the whole solve, each sample on its own."""
    refuse_splitting(method)
    rows = make_map(cell, start, (), shared).rows
    for i, a in enumerate(inputs):
        if isinstance(a, Tensor) and (a.ndim < 1 or len(a) != rows):
            raise ValueError(
                f"x and args are batch-first: {f'args[{i - 1}]' if i else 'x'} must have {rows} rows, as "
                f"the state has. Got shape {tuple(a.shape)} instead. What all share goes into shared=."
            )
    _check_state(cell, start, method)
    layout, masks = Layout.of(start), {}
    if isinstance(cell, nn.Module):
        refuse_unsteady(cell)
        masks = draw_masks(cell, start, (*inputs, *shared), rows)
    equation = CellEquation(cell, layout, inputs, shared, method, layout.flat(start), masks)
    _check_closure(equation)
    return equation


def refuse_splitting(method: Method) -> None:
    """Raise a TypeError if a solver splits an AffineMap, since a cell may be any map."""
    for one in [method.solver] if isinstance(method.solver, Solver) else method.solver or ():
        if one.affine_only:
            raise TypeError(
                f"{type(one).__name__} splits an AffineMap, and a cell may be any map: "
                f"use Anderson() or Newton() instead."
            )


def _check_state(cell: Callable[..., State], start: State, method: Method) -> None:
    dtype = (start[0] if isinstance(start, tuple) else start).dtype
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"an equilibrium is solved for in float32 or float64. Got a state of {dtype} instead: use "
            f"torch.autocast for lower precision, which keeps the state in float32."
        )
    if method.precision == "mixed" and (held := closed_over(cell, torch.is_floating_point)):
        raise ValueError(
            f"precision='mixed' cannot cast what a cell closes over: {', '.join(held)}. Make it a "
            f"parameter or buffer of an nn.Module cell, or an input of the layer."
        )


def _check_closure(equation: CellEquation) -> None:
    """Refuse a cell that holds a batch of its own, from which samples that have ended are not dropped."""
    rows = len(equation.start)
    if rows < 2 or under_transform():
        return
    held = closed_over(equation.cell, lambda t: t.ndim > 0 and t.shape[0] == rows)
    if not held:
        return
    tensors = [t[:1] if i < equation.batched else t for i, t in enumerate(equation.tensors)]
    try:
        with torch.no_grad():
            equation(equation.start[:1], *tensors)
    except (RuntimeError, ValueError, IndexError) as error:
        raise ValueError(
            f"the cell must take any number of samples. Got one that closes over {', '.join(held)}, a "
            f"batch of {rows}, and fails on a single sample ({str(error).splitlines()[0]}): make it an "
            f"input of the layer, layer(x, more), as cell(z, x, more)."
        ) from error


def refuse_unsteady(cell: nn.Module) -> None:
    """Refuse cells that change during a solve, or in which samples of a batch affect each other."""
    for name, module in cell.named_modules():
        where = f"`{name}` ({type(module).__name__})" if name else f"the cell ({type(module).__name__})"
        random = isinstance(
            module, nn.modules.dropout._DropoutNd | nn.RReLU | nn.MultiheadAttention | nn.RNNBase
        )
        option = next((o for o in ("p", "dropout") if hasattr(module, o)), None)
        if module.training and random and (option is None or getattr(module, option) > 0):
            other = f"set its {option} to 0" if option else "a deterministic map, such as nn.LeakyReLU"
            raise ValueError(
                f"{where} draws anew at every evaluation, so there is no equilibrium to find. Use "
                f"eq.SharedDropout, whose mask is held through the solve, or {other}."
            )
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
            module.training or not module.track_running_stats
        ):
            raise ValueError(
                f"{where} mixes the samples of a batch and changes at every evaluation, so the equilibrium "
                f"of a sample depends on its neighbours. Use nn.GroupNorm or nn.LayerNorm, or eval mode."
            )
