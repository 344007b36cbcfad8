"""A user's cell as an equation: its inputs, parameters, buffers and random masks all in the open."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList

from ..differentiate import Equation, Method
from ..differentiate.closure import closed_over
from ..differentiate.equation import under_transform
from ..solve import Solution, Solver
from ..solve.problem import Layout, make_map
from ..solve.solution import State
from .places import call_with, places_of, tensors_of


class SharedDropout(nn.Module):
    """Dropout whose mask is drawn once and held through the solve: y = h ∘ mask / (1 − p).

    For use inside the cell of an Equilibrium, where each sample keeps its own mask from the first evaluation
    to the last and in the backward solve; the mask stays until the layer is called again. In eval mode it
    does nothing; in a module that no Equilibrium has called it is nn.Dropout, a new mask every time.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p must lie in [0, 1). Got {p} instead.")
        self.p = p
        self.mask: Tensor | None = None
        self.held = False  # whether a layer is evaluating its cell: the mask is its business then

    @property
    def active(self) -> bool:
        """Whether anything is dropped: in training, with p > 0."""
        return self.training and self.p > 0

    def forward(self, h: Tensor) -> Tensor:
        """h ∘ mask / (1 − p)."""
        if not self.active:
            return h
        mask = self.mask
        if mask is None:
            mask = torch.bernoulli(torch.full_like(h, 1 - self.p)) / (1 - self.p)
            if self.held:
                self.mask = mask
        if mask.shape != h.shape:
            raise ValueError(
                f"SharedDropout holds one mask a solve, of shape {tuple(mask.shape)}. Got an input of "
                f"shape {tuple(h.shape)} instead: use one SharedDropout for each place."
            )
        return h * mask.to(h.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "mask": None, "held": False}

    def extra_repr(self) -> str:
        """The probability."""
        return f"p={self.p}"


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
        self.places = places_of(module) if module is not None else {}
        self.parametrisations = _parametrisations(module) if module is not None else []
        self.compiled = module is not None and any(
            hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for m in module.modules()
        )
        # Parametrised weights, while the equation is held: inside one call of the layer.
        self.known: dict[tuple[int, torch.dtype], Tensor] | None = None

        self.slots = [i for i, a in enumerate(self.inputs) if isinstance(a, Tensor)]
        batched = [a for a in args if isinstance(a, Tensor)]
        unbatched = [a for a in shared if isinstance(a, Tensor)]
        self.tensors = (*batched, *self.masks.values(), *unbatched, *named.values())
        self.inputs_batched, self.batched = len(batched), len(batched) + len(self.masks)

    def __call__(self, z: Tensor, *tensors: Tensor) -> Tensor:
        state, inputs = self.layout.unflat(z), self.inputs
        own = all(map(operator.is_, tensors, self.tensors))
        if own and self.known is not None and not (self.masks or self.parametrisations):
            return self._flat(self.cell(state, *inputs), z)  # as it is: most steps of most solves
        given = self.inputs_of(tensors)
        if not own:
            inputs = list(self.inputs)
            for slot, tensor in zip(self.slots, given, strict=True):
                inputs[slot] = tensor
        if isinstance(self.cell, nn.Module):
            values = tensors[len(given) + len(self.masks) :]
            with self._steady(tensors[self.inputs_batched : self.batched], z.dtype):
                if self._has(values):
                    out = self.cell(state, *inputs)
                else:
                    named = dict(zip(self.names, values, strict=True))
                    out = call_with(self.cell, named, (state, *inputs), places=self.places)
        else:
            out = self.cell(state, *inputs)
        return self._flat(out, z)

    def _has(self, values: Sequence[Tensor]) -> bool:
        """Whether these are the cell's parameters and buffers as it is, so that it can be called directly."""
        own = self.tensors[len(self.tensors) - len(self.names) :]
        return self.known is not None and all(a is b for a, b in zip(values, own, strict=True))

    def _flat(self, out: Any, z: Tensor) -> Tensor:
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
        """Which tensor this is, in words."""
        tail = self.batched + len(self.slots) - self.inputs_batched
        if index >= tail:
            return f"parameter `{self.names[index - tail]}`"
        if index >= self.batched:
            return f"shared tensor {index - self.batched}"
        return f"input {index}" if index < self.inputs_batched else "dropout mask"

    def solve(self, start: Tensor, tensors: Sequence[Tensor], ahead: bool = False) -> Solution:
        """The Solution, or a RuntimeError where evaluating the cell has changed one of its own tensors."""
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

    @contextmanager
    def held(self) -> Iterator[None]:
        """Parametrised weights (spectral norm, orthogonal, …) are computed once inside, not once a step.

        A compiled cell computes them as it was compiled to.
        """
        before, self.known = self.known, {}
        try:
            yield
        finally:
            self.known = before

    @contextmanager
    def _steady(self, masks: Sequence[Tensor], dtype: torch.dtype) -> Iterator[None]:
        """One evaluation: masks in place, parametrisations as they were when the layer was called.

        torch's own cache of parametrised weights is left aside. It may have been opened by the program around
        the layer and hold weights without the graph that is wanted here, and it takes the copies of a module
        for one and the same.
        """
        if not (self.masks or self.parametrisations):
            yield
            return
        lists = self.parametrisations
        still = [m for one in lists for m in one.modules() if m.training]
        remember = self.known is not None and not self.compiled
        mine = [one for one in lists if "forward" not in vars(one)] if remember else []
        before = [(d.mask, d.held) for d in self.masks]
        cache_before = parametrize._cache_enabled
        try:
            parametrize._cache_enabled = 0
            for dropout, mask in zip(self.masks, masks, strict=True):
                dropout.mask, dropout.held = mask, True
            for m in still:
                m.training = False
            for one in mine:
                vars(one)["forward"] = partial(self._weight, one, dtype)
            yield
        finally:
            for one in mine:
                del vars(one)["forward"]
            for m in still:
                m.training = True
            for dropout, (old, held) in zip(self.masks, before, strict=True):
                dropout.mask, dropout.held = old, held
            parametrize._cache_enabled = cache_before

    def _weight(self, one: ParametrizationList, dtype: torch.dtype) -> Tensor:
        assert self.known is not None
        key = id(one), dtype
        if key not in self.known:
            self.known[key] = type(one).forward(one)
        return self.known[key]


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
    """A TypeError where a solver splits an AffineMap: a cell may be any map."""
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
    """Samples that end leave the batch, which a batch held by the cell itself cannot follow."""
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


def _parametrisations(cell: nn.Module) -> list[ParametrizationList]:
    return [m for m in cell.modules() if isinstance(m, ParametrizationList)]


def advance_parametrisations(cell: Any) -> None:
    """Let parametrisations in training take the one step of a call (the power iteration of spectral_norm).

    During the solve and its derivatives they are held in eval mode, so that the cell is one map.
    """
    if not isinstance(cell, nn.Module) or under_transform():
        return
    with torch.no_grad():
        for one in _parametrisations(cell):
            if one.training and next(one.buffers(), None) is not None:
                one()


def draw_masks(
    cell: nn.Module, state: State, inputs: Sequence[Any], rows: int
) -> dict[SharedDropout, Tensor]:
    """The masks of a whole solve, by one evaluation of the cell; those that a layer around it holds, kept."""
    dropouts = [m for m in cell.modules() if isinstance(m, SharedDropout) and m.active]
    mine = [d for d in dropouts if not d.held]  # the others belong to the solve around this one
    for dropout in mine:
        dropout.mask, dropout.held = None, True
    try:
        if any(d.mask is None for d in dropouts):
            with torch.no_grad():
                cell(state, *inputs)
        masks = {d: d.mask for d in dropouts if d.mask is not None}
    finally:
        for dropout in mine:
            dropout.held = False
            if dropout.mask is not None and torch._C._functorch.is_functorch_wrapped_tensor(dropout.mask):
                dropout.mask = None  # of no use outside of its transform
    for mask in masks.values():
        if len(mask) != rows:
            raise ValueError(
                f"SharedDropout keeps a mask for each sample: its input must be batch-first, of {rows} rows. "
                f"Got shape {tuple(mask.shape)} instead; move the batch to the front before it."
            )
    return masks


def refuse_unsteady(cell: nn.Module) -> None:
    """A cell must be one map for the whole solve, and a sample must not feel its neighbours."""
    for name, module in cell.named_modules():
        where = f"`{name}` ({type(module).__name__})" if name else f"the cell ({type(module).__name__})"
        random = isinstance(
            module, nn.modules.dropout._DropoutNd | nn.RReLU | nn.MultiheadAttention | nn.RNNBase
        )
        option = next((o for o in ("p", "dropout") if hasattr(module, o)), None)
        if module.training and random and (option is None or getattr(module, option) > 0):
            other = f"set its {option} to 0" if option else "a map without chance, such as nn.LeakyReLU"
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
