"""z_i ← the last equilibrium of sample i: solves of the next epoch begin where those of the last one ended.

States are kept by sample index, so they survive shuffling. A sample that has not been seen yet, or has no
equilibrium, starts cold. States belong to the training loop, which saves them with its checkpoints; modules
hold none.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import integer
from ..solve import Solution, Stop, extrapolate
from ..solve.solution import State, Status


class WarmStart:
    """The last equilibrium (and with `extrapolated` the one before) of each of N samples.

        warm = eq.WarmStart(len(X))
        z = layer(X[rows], start=warm.start(rows))
        warm.update(rows, layer.last.forward)

    Args:
        samples: N.
        extrapolated: start from 2z − z′ if the last two states z and z′ of a sample are known.
    """

    def __init__(self, samples: int, extrapolated: bool = False) -> None:
        integer("samples", samples)
        self.samples, self.extrapolated = samples, extrapolated
        self.seen = torch.zeros(samples, dtype=torch.uint8)  # how many states of each sample are known
        self.single = True  # whether a state is one tensor, not a tuple
        self.parts: list[Tensor] = []  # of the last states, (N, …) each
        self.before: list[Tensor] = []

    def start(self, rows: Tensor) -> State | None:
        """Where these samples begin: zeros if a sample is not known yet; None if none of them is."""
        rows = self._checked(rows)
        if not self.parts or not bool(self.seen[rows].any()):
            return None
        found = []
        for i, part in enumerate(self.parts):
            at = rows.to(part.device)
            z = part[at]
            if self.extrapolated:
                twice = _columns(self.seen[rows].to(part.device) > 1, z)
                z = torch.where(twice, extrapolate(z, self.before[i][at]), z)
            found.append(z)
        return found[0] if self.single else tuple(found)

    @torch.no_grad()
    def update(self, rows: Tensor, state: State | Solution) -> None:
        """Keep the states of these samples; from a Solution only those that have converged."""
        rows = self._checked(rows)
        good = torch.ones(len(rows), dtype=torch.bool)
        if isinstance(state, Solution):
            good, state = (state.status == Status.converged).cpu(), state.value
        parts = state if isinstance(state, tuple) else (state,)
        if not self.parts:
            self.single = not isinstance(state, tuple)
            self.parts = [p.new_zeros(self.samples, *p.shape[1:]) for p in map(torch.detach, parts)]
            self.before = [torch.zeros_like(p) for p in self.parts] if self.extrapolated else []
        wanted = [(len(rows), *p.shape[1:]) for p in self.parts]
        if [tuple(p.shape) for p in parts] != wanted or isinstance(state, tuple) == self.single:
            raise ValueError(
                f"a state must be {' and '.join(map(str, wanted))} as before, one row for each sample. "
                f"Got {' and '.join(str(tuple(p.shape)) for p in parts)} instead."
            )
        for i, (kept, new) in enumerate(zip(self.parts, parts, strict=True)):
            at, ok = rows.to(kept.device), good.to(kept.device)
            if self.extrapolated:
                self.before[i][at] = kept[at]
            kept[at] = torch.where(_columns(ok, new), new.detach().to(kept), 0.0)
        self.seen[rows] = torch.where(good, (self.seen[rows] + 1).clamp_max(2), 0)

    # -- in a loop whose rows are sound, and whose batches settle as a whole ---------------------------------

    def or_cold(self, rows: Tensor, cold: Tensor) -> Tensor:
        """`start` for states of one tensor, with its own cold start for a sample that is not known yet."""
        if not self.parts:
            return cold
        if self.extrapolated:
            start = self.start(rows)
            z = cold if start is None else start
            assert isinstance(z, Tensor)
        else:
            z = self.parts[0][rows.to(self.parts[0].device)]
        known = self.seen[rows] > 0
        return z if bool(known.all()) else torch.where(_columns(known.to(z.device), z), z, cold)

    @torch.no_grad()
    def put(self, rows: Tensor, state: Tensor) -> None:
        """`update` for states of one tensor that have all been found."""
        if not self.parts or self.extrapolated:
            self.update(rows, state)
            return
        self.parts[0][rows.to(self.parts[0].device)] = state.detach()
        self.seen[rows] = (self.seen[rows] + 1).clamp_max(2)

    def forget(self) -> None:
        """Start every sample cold."""
        self.seen.zero_()
        self.parts, self.before, self.single = [], [], True

    # -- with a checkpoint ---------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """All there is to save."""
        named = {f"last.{i}": p for i, p in enumerate(self.parts)}
        named |= {f"before.{i}": p for i, p in enumerate(self.before)}
        return {"seen": self.seen, "single": torch.tensor([self.single], dtype=torch.uint8), **named}

    def restore(self, tensors: Mapping[str, Tensor], device: torch.device | str = "cpu") -> None:
        """Take back what `tensors` gave."""
        if "seen" not in tensors or len(tensors["seen"]) != self.samples:
            got = len(tensors["seen"]) if "seen" in tensors else "none"
            raise ValueError(f"the states must be of {self.samples} samples. Got {got} instead.")
        self.seen, self.single = tensors["seen"].clone(), bool(tensors["single"])
        count = sum(name.startswith("last.") for name in tensors)
        self.parts = [tensors[f"last.{i}"].to(device, copy=True) for i in range(count)]
        if self.extrapolated and count and "before.0" not in tensors:
            raise ValueError("extrapolated starts need the last two states. Got only the last ones instead.")
        self.before = (
            [tensors[f"before.{i}"].to(device, copy=True) for i in range(count)] if self.extrapolated else []
        )

    def _checked(self, rows: Tensor) -> Tensor:
        if not isinstance(rows, Tensor) or rows.ndim != 1 or rows.dtype != torch.int64:
            got = f"{rows.dtype}, shape {tuple(rows.shape)}" if isinstance(rows, Tensor) else repr(rows)
            raise ValueError(f"rows must be a vector of sample indices (int64). Got {got} instead.")
        rows = rows.cpu()
        if len(rows) and not bool(((rows >= 0) & (rows < self.samples)).all()):
            wrong = int(rows[(rows < 0) | (rows >= self.samples)][0])
            raise ValueError(f"rows must lie in [0, {self.samples}). Got row {wrong} instead.")
        return rows


class WarmStarts:
    """A WarmStart for every layer of a network that takes `start=`, handed over while it is in use.

    `stop`, if given, is the tolerance of their solves meanwhile; `kept` says whether states are kept.
    """

    def __init__(
        self,
        network: nn.Module,
        samples: int,
        extrapolated: bool = False,
        kept: bool = True,
        stop: Stop | None = None,
    ) -> None:
        self.layers, self.stop = dict(startable(network)), stop
        self.states = {name: WarmStart(samples, extrapolated) for name in self.layers if kept}

    @contextmanager
    def using(self, rows: Tensor) -> Iterator[None]:
        """Inside, the first call of each layer starts from the states of these samples and updates them."""
        hooks = [hook for name, layer in self.layers.items() for hook in self._hooks(name, layer, rows)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _hooks(self, name: str, layer: Any, rows: Tensor) -> list[Any]:
        state, stop = self.states.get(name), self.stop
        if state is None and stop is None:
            return []
        calls: list[bool] = []

        def before(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            calls.append(True)
            if stop is not None:
                kwargs = {"stop": stop, **kwargs}
            start = None
            if state is not None and len(calls) == 1 and "start" not in kwargs:
                start = state.start(rows)
            return args, kwargs if start is None else {**kwargs, "start": start}

        def after(*_: Any) -> None:
            if state is not None and len(calls) == 1 and layer.last.forward is not None:
                state.update(rows, layer.last.forward)

        return [
            layer.register_forward_pre_hook(before, with_kwargs=True),
            layer.register_forward_hook(after),
        ]


def startable(network: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules that take `start=` and record their last solve."""
    if hasattr(network, "last") and _takes_start(network):
        yield prefix or "network", network
        return
    for name, child in network.named_children():
        yield from startable(child, f"{prefix}.{name}" if prefix else name)


def _takes_start(module: nn.Module) -> bool:
    takes = inspect.signature(module.forward).parameters
    return "start" in takes or any(p.kind is p.VAR_KEYWORD for p in takes.values())


def _columns(mask: Tensor, like: Tensor) -> Tensor:
    """(n,) as (n, 1, …), to choose among rows."""
    return mask.reshape(-1, *([1] * (like.ndim - 1)))
