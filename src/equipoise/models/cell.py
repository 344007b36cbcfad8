"""A user's cell as an equation: its inputs, parameters, buffers and random masks all in the open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..differentiate import Equation, Method
from ..solve import Solution
from ..solve.problem import Layout
from ..solve.solution import State


class SharedDropout(nn.Module):
    """Dropout whose mask is drawn once and held through the solve: y = h ∘ mask / (1 − p).

    For use inside the cell of an Equilibrium, where each sample keeps its own mask from the first evaluation
    to the last and in the backward solve. In eval mode it does nothing.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p must lie in [0, 1). Got {p} instead.")
        self.p = p
        self.mask: Tensor | None = None

    @property
    def active(self) -> bool:
        return self.training and self.p > 0

    def forward(self, h: Tensor) -> Tensor:
        if not self.active:
            return h
        if self.mask is None:
            self.mask = torch.empty_like(h).bernoulli_(1 - self.p) / (1 - self.p)
        if self.mask.shape != h.shape:
            raise ValueError(
                f"SharedDropout holds one mask a solve, of shape {tuple(self.mask.shape)}. Got an input of "
                f"shape {tuple(h.shape)} instead: use one SharedDropout for each place."
            )
        return h * self.mask.to(h.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "mask": None}

    def extra_repr(self) -> str:
        return f"p={self.p}"


class CellEquation(Equation):
    """z = cell(z, *args, *shared), with the cell's parameters, buffers and masks as further tensors."""

    def __init__(
        self,
        cell: Callable[..., State],
        layout: Layout,
        args: Sequence[Any],
        shared: Sequence[Any],
        method: Method,
    ) -> None:
        self.cell, self.layout, self.method = cell, layout, method
        self.inputs = [*args, *shared]  # the tensors among them are replaced at each call
        module = cell if isinstance(cell, nn.Module) else None
        self.dropouts = (
            [m for m in module.modules() if isinstance(m, SharedDropout) and m.active] if module else []
        )
        masks = [m.mask for m in self.dropouts if m.mask is not None]
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())} if module else {}
        self.names = list(named)

        is_tensor = [isinstance(a, Tensor) for a in args]
        self.slots = [i for i, a in enumerate(self.inputs) if isinstance(a, Tensor)]
        batched = [a for a, yes in zip(args, is_tensor, strict=True) if yes]
        self.tensors = (*batched, *masks, *(a for a in shared if isinstance(a, Tensor)), *named.values())
        self.inputs_batched, self.batched = len(batched), len(batched) + len(masks)

    def __call__(self, z: Tensor, *tensors: Tensor) -> Tensor:
        split = len(self.inputs_of(tensors))
        inputs = list(self.inputs)
        for slot, tensor in zip(self.slots, self.inputs_of(tensors), strict=True):
            inputs[slot] = tensor
        for dropout, mask in zip(self.dropouts, tensors[self.inputs_batched : self.batched], strict=True):
            dropout.mask = mask
        state = self.layout.unflat(z)
        if isinstance(self.cell, nn.Module):
            named = dict(zip(self.names, tensors[split + len(self.dropouts) :], strict=True))
            out = torch.func.functional_call(self.cell, named, (state, *inputs))
        else:
            out = self.cell(state, *inputs)
        wrong = self.layout.mismatch(out, z.shape[0])
        if wrong:
            raise ValueError(
                f"the cell must return a state like the one it is given: {wrong} "
                f"Give the layer state=… (the shape of one sample's state), or project inside the cell."
            )
        return self.layout.flat(out)

    def inputs_of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors that stand for the cell's arguments, in the order of its signature."""
        tail = self.batched + len(self.slots) - self.inputs_batched
        return [*tensors[: self.inputs_batched], *tensors[self.batched : tail]]

    def solve(self, start: Tensor, tensors: Sequence[Tensor]) -> Solution:
        # Parametrised weights (spectral norm, orthogonal, …) are computed once a solve, not once a step.
        once = parametrize.cached() if self.method.precision == "native" else nullcontext()
        with once:
            return super().solve(start, tensors)


def refuse_unsteady(cell: nn.Module) -> None:
    """A cell must be one map for the whole solve, and a sample must not feel its neighbours."""
    for name, module in cell.named_modules():
        where = f"`{name}` ({type(module).__name__})" if name else f"the cell ({type(module).__name__})"
        random = isinstance(
            module, nn.modules.dropout._DropoutNd | nn.RReLU | nn.MultiheadAttention | nn.RNNBase
        )
        p = getattr(module, "p", getattr(module, "dropout", 1.0))
        if module.training and random and (not isinstance(p, int | float) or p > 0):
            raise ValueError(
                f"{where} draws a new mask at every evaluation, so there is no equilibrium to find. Use "
                f"eq.SharedDropout, whose mask is held through the solve, or set its p to 0."
            )
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
            module.training or not module.track_running_stats
        ):
            raise ValueError(
                f"{where} mixes the samples of a batch and changes at every evaluation, so the equilibrium "
                f"of a sample depends on its neighbours. Use nn.GroupNorm or nn.LayerNorm, or eval mode."
            )
