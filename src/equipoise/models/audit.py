"""∂φ/∂θ_i ≈ (φ(θ + h e_i) − φ(θ − h e_i)) / 2h, φ(θ) = ⟨c, z*(θ)⟩: every gradient against finite differences.

The comparison is made on a copy of the layer in float64, solved to rounding level, for one random c. Each
difference is taken with the steps h and h/2. Where the two fit a smooth φ they are combined to order h⁴;
where they do not, φ has a kink near θ (a relu that switches): the coordinate is counted and left out.
"""

from __future__ import annotations

import copy
import inspect
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from ..differentiate.closure import closed_over
from ..differentiate.gradient import Gradient
from ..differentiate.implicit import Implicit
from ..differentiate.method import Method
from ..differentiate.phantom import Phantom
from ..differentiate.reversible import Reversible
from ..differentiate.unrolled import Unrolled
from ..solve import EquilibriumError, Stop
from ..solve.solution import State

_RTOL = 1e-13  # of the equilibria that are compared
_ENOUGH = 1e-10  # a relative residual above this is no equilibrium to differentiate
_STEP = 1e-4  # h, for a tensor whose entries are of size 1 or below
_KINK = 1e-5  # two differences further apart than this share of the largest one do not agree
_NOISE = 10.0  # the error of an equilibrium, in multiples of its residual
_LONG = 200  # steps of the unrolled comparison


@dataclass(frozen=True)
class AuditRow:
    """One gradient of one tensor, on the coordinates that were compared."""

    mode: str
    tensor: str  # the name of a parameter, or "x", "args[0]", "shared[0]"
    shape: tuple[int, ...]
    compared: int
    kinks: int  # coordinates left out, since φ has a kink there
    error: float  # ‖gradient − differences‖ / ‖differences‖; NaN where nothing could be compared
    cosine: float  # of the angle between the two; NaN where both vanish
    resolution: float  # an error below this is that of the differences themselves
    held: bool  # whether `ok` requires it to be right: the layer's own gradient, and each exact mode

    def ok(self, tolerance: float) -> bool:
        """Whether the error is within the tolerance, or within what differences can tell."""
        return self.error <= max(tolerance, self.resolution)


@dataclass(frozen=True)
class Audit:
    """What `audit` found. `print()` shows it as a table, `str()` is the same in plain text."""

    rows: tuple[AuditRow, ...]
    own: str  # the mode of the layer itself
    unseen: tuple[str, ...] = ()  # tensors with a gradient that a cell closes over, and that no row is about
    lost: tuple[str, ...] = ()  # parameters that a forward or backward pass has replaced by something else

    @property
    def worst(self) -> AuditRow:
        """The row of largest error among those held to exactness."""
        held = [row for row in self.rows if row.held]
        return max(held, key=lambda row: math.inf if math.isnan(row.error) else row.error)

    def ok(self, tolerance: float = 1e-5) -> bool:
        """Whether the gradient of the layer, and of every exact mode, is right up to the tolerance.

        A tensor of which no coordinate could be compared is not ok, since nothing is known about it. Nor is a
        layer that no longer holds its parameters afterwards: an optimiser would change tensors nobody reads.
        """
        return not self.lost and all(row.ok(tolerance) for row in self.rows if row.held)

    def print(self, console: Console | None = None) -> None:
        """Show the table in the terminal."""
        (console or Console()).print(self)

    def __str__(self) -> str:
        return plain_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        modes = list(dict.fromkeys(row.mode for row in self.rows))
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("tensor", overflow="fold")
        table.add_column("compared", justify="right")
        for mode in modes:
            name = mode.replace("(", "\n(") + ("\nthe layer's" if mode == self.own else "")
            table.add_column(name, justify="right", no_wrap=True)
        for tensor in dict.fromkeys(row.tensor for row in self.rows):
            rows = {row.mode: row for row in self.rows if row.tensor == tensor}
            first = rows[modes[0]]
            count = f"{first.compared} of {math.prod(first.shape)}"
            count += f"\n{first.kinks} kinks" if first.kinks else ""
            table.add_row(Text(_short(tensor)), count, *(_cell(rows[mode]) for mode in modes))
        yield Text("Gradients against finite differences: relative error and cosine, in float64", "bold")
        yield table
        if any(row.kinks for row in self.rows):
            yield Text("A kink is a coordinate without a derivative: it is left out.", "dim")
        if self.lost:
            yield Text(f"No longer parameters after a backward pass: {', '.join(self.lost)}.", "red")
        if self.unseen:
            yield Text(f"Not audited, since a cell only closes over it: {', '.join(self.unseen)}.")


def audit(
    layer: nn.Module,
    x: Any,
    *args: Any,
    shared: Sequence[Any] = (),
    start: State | None = None,
    modes: Sequence[Gradient] | None = None,
    samples: int = 12,
    seed: int = 0,
) -> Audit:
    """Compare the gradients of ⟨c, layer(x)⟩ in every mode with finite differences, tensor by tensor.

    Args:
        layer: an Equilibrium, a network that holds some, or a model whose forward takes `stop=`. It is
            copied, and left as it was with its gradients and its mode; so is the global random state.
        x, args, shared: as in `layer(x, *args, shared=shared)`; those of a floating dtype are audited too.
        start: where to look for the equilibrium, as in `layer(x, start=start)`.
        modes: gradients to compare with the layer's own. By default Implicit(), a long Unrolled and a
            long Reversible, and Phantom with 1 and 5 steps.
        samples: how many coordinates to compare in each tensor, drawn at random; all of a smaller tensor.
        seed: of the coordinates, of c, and of any mask the layer draws.

    Each coordinate costs four solves. Raises an EquilibriumError if x has no equilibrium in float64.
    """
    if samples < 1:
        raise ValueError(f"samples must be ≥ 1. Got {samples} instead.")
    trial = _Trial.of(layer, (x, *args), shared, start, seed)
    chosen = trial.choose(modes)
    tensors, held = dict(trial.tensors()), trial.parameters()
    if not tensors:
        raise ValueError("there is nothing to audit: no parameter and no input of the layer has a gradient.")

    generator = torch.Generator().manual_seed(seed)
    out = trial.solved()
    c = torch.randn(out.shape, generator=generator, dtype=out.dtype).to(out.device)
    noise = _NOISE * _RTOL * float(out.norm())  # of φ
    gradients = {name: trial.gradients(mode, c, list(tensors.values())) for name, mode in chosen.items()}

    @torch.no_grad()
    def phi() -> float:
        return float(c @ trial.output())

    rows: list[AuditRow] = []
    for i, (tensor, value) in enumerate(tensors.items()):
        at = torch.randperm(value.numel(), generator=generator)[:samples].sort().values
        differences = _Differences.of(phi, value, at, noise)
        for name, mode in chosen.items():
            measured = differences.compare(gradients[name][i].cpu().flatten()[at])
            exact = mode is None or mode.exact
            rows.append(AuditRow(name, tensor, tuple(value.shape), *measured, held=exact))
    now = trial.parameters()
    lost = tuple(name for name, p in held.items() if now.get(name) is not p)
    return Audit(tuple(rows), next(iter(chosen)), trial.unseen(), lost)


# -- finite differences ------------------------------------------------------------------------------------


@dataclass
class _Differences:
    value: Tensor  # (k,) of order h⁴
    smooth: Tensor  # (k,) False at a kink
    noise: float  # of each value, at most

    @classmethod
    def of(cls, phi: Callable[[], float], tensor: Tensor, at: Tensor, noise: float) -> _Differences:
        """∂φ/∂θ_i at the flat coordinates `at`: each entry of `tensor` is moved, and put back."""
        h = _STEP * max(1.0, float(tensor.detach().norm()) / tensor.numel() ** 0.5)
        moves = h * torch.tensor([1, -1, 0.5, -0.5], dtype=torch.float64)
        change = torch.stack([_moved(phi, tensor, int(i), moves) for i in at]) - phi()  # (k, 4)
        wide, narrow = ((change[:, j] - change[:, j + 1]) / (2 * abs(moves[j])) for j in (0, 2))
        # If φ is smooth, the differences agree, and second differences fall like h²; at a kink like h.
        bend = (change[:, 0] + change[:, 1] - 4 * (change[:, 2] + change[:, 3])) / h
        allowed = _KINK * narrow.abs().max() + 10 * noise / h
        smooth = ((wide - narrow).abs() <= allowed) & (bend.abs() <= allowed)
        return cls((4 * narrow - wide) / 3, smooth, 3 * noise / h)

    def compare(self, gradient: Tensor) -> tuple[int, int, float, float, float]:
        """Coordinates compared and left out, relative error, cosine and resolution of a gradient there."""
        compared = int(self.smooth.sum())
        counts = compared, len(self.smooth) - compared
        if not compared:
            return *counts, math.nan, math.nan, 0.0
        g, d = gradient[self.smooth], self.value[self.smooth]
        noise, g_norm, d_norm = self.noise * compared**0.5, float(g.norm()), float(d.norm())
        if max(g_norm, d_norm) <= noise:
            return *counts, 0.0, math.nan, 0.0
        # Where the differences vanish, a gradient that does not is measured by itself: its error is 1.
        size = d_norm if d_norm > noise else g_norm
        cosine = min(1.0, float(g @ d) / (g_norm * d_norm)) if g_norm and d_norm else 0.0
        return *counts, float((g - d).norm()) / size, cosine, noise / size


def _moved(phi: Callable[[], float], tensor: Tensor, i: int, moves: Tensor) -> Tensor:
    """φ with the i-th entry moved by each of `moves`."""
    where = torch.unravel_index(torch.tensor(i), tensor.shape)
    with torch.no_grad():
        before = tensor[where].clone()
        values = []
        for move in moves:
            tensor[where] = before + move
            values.append(phi())
        tensor[where] = before
    return torch.tensor(values, dtype=torch.float64)


# -- the copy that is tried --------------------------------------------------------------------------------


@dataclass
class _Trial:
    """A copy of a layer and its inputs in float64, solved to rounding level by the solvers it has."""

    module: nn.Module
    layers: list[Any]  # the parts of it that have a `gradient` and a `method`
    own: list[Gradient]
    inputs: list[Any]
    shared: list[Any]
    options: dict[str, Any]
    start: dict[str, Any]
    seed: int

    @classmethod
    def of(
        cls, layer: nn.Module, inputs: Sequence[Any], shared: Sequence[Any], start: State | None, seed: int
    ) -> _Trial:
        if not isinstance(layer, nn.Module):
            raise TypeError(f"layer must be an nn.Module. Got {type(layer).__name__} instead.")
        module = copy.deepcopy(layer).double()
        layers: list[Any] = list(_equilibria(module))
        takes_stop = "stop" in inspect.signature(module.forward).parameters
        if not layers and not takes_stop:
            raise TypeError(
                f"audit takes an equilibrium layer, a network that holds one, or a model whose forward has "
                f"stop=. Got {type(layer).__name__} instead."
            )
        own = [part.gradient for part in layers]
        for held in module.modules():  # a power iteration that goes on would change the map each time
            if isinstance(held, ParametrizationList):
                held.eval()
        for part in layers:
            _refuse_single_precision(getattr(part, "cell", None))
            steps = max(2000, part.method.stop.max_steps)
            how = {"stop": _finest(steps), "gradient": Implicit(), "on_failure": "accept"}
            part.method = Method(solver=part.method.solver).changed(**how)
        options = {"stop": _finest(2000)} if takes_stop else {}
        doubles = [_double(a) for a in inputs], [_double(a) for a in shared]
        near = tuple(_double(p) for p in start) if isinstance(start, tuple) else _double(start)
        return cls(module, layers, own, *doubles, options, {} if start is None else {"start": near}, seed)

    def parameters(self) -> dict[str, Tensor]:
        """Every parameter, by each of its names."""
        return dict(self.module.named_parameters(remove_duplicate=False))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Everything a gradient may be asked of, by name."""
        yield from ((name, p) for name, p in self.module.named_parameters() if p.requires_grad and p.numel())
        names = ["x", *(f"args[{i}]" for i in range(len(self.inputs) - 1))]
        names += [f"shared[{i}]" for i in range(len(self.shared))]
        for name, value in zip(names, [*self.inputs, *self.shared], strict=True):
            if isinstance(value, Tensor) and value.requires_grad and value.numel():
                yield name, value

    def unseen(self) -> tuple[str, ...]:
        cells = [getattr(part, "cell", None) for part in self.layers]
        names = [name for cell in cells for name in closed_over(cell, lambda t: t.requires_grad)]
        return tuple(dict.fromkeys(names))

    def choose(self, modes: Sequence[Gradient] | None) -> dict[str, Gradient | None]:
        """The modes to compare by name: first the layer's own (None: whatever each part has), then others."""
        if modes is not None and not self.layers:
            raise ValueError(f"{type(self.module).__name__} has one gradient only: modes= must be left out.")
        if modes is None:
            back = () if self.unseen() else (Reversible(80),)  # it reaches no tensor that is closed over
            modes = (Implicit(), Unrolled(_LONG), *back, Phantom(1), Phantom(5)) if self.layers else ()
        own = dict.fromkeys(_name(mode) for mode in self.own)
        chosen: dict[str, Gradient | None] = {" and ".join(own) or "its own": None}
        for mode in modes:
            if not isinstance(mode, Gradient):
                raise TypeError(f"modes must be gradients such as Implicit(). Got {mode!r} instead.")
            if any(mode != mine for mine in self.own):
                name = _name(mode)
                chosen[name if name not in chosen else repr(mode)] = mode
        return chosen

    def output(self, afresh: bool = False) -> Tensor:
        """The layer's output as one vector, with the same masks each time; `afresh` without a start."""
        options = {**self.options, **({} if afresh else self.start)}
        if self.shared:
            options["shared"] = self.shared
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(self.seed)
            out = self.module(*self.inputs, **options)
        parts = out if isinstance(out, tuple) else (out,)
        return torch.cat([part.flatten() for part in parts])

    def solved(self) -> Tensor:
        """The output, verified to come from equilibria."""
        with torch.no_grad():
            out = self.output()
        for part in self.layers:
            found = part.last.forward
            if not bool((found.converged | (found.relative_residual <= _ENOUGH)).all()):
                raise EquilibriumError(f"audit in float64: {found.explain_failure()}", found)
            if part is self.module:  # a network around its layers has no start to hand on
                self.start = {"start": found}
        return out

    def gradients(self, mode: Gradient | None, c: Tensor, tensors: list[Tensor]) -> Sequence[Tensor]:
        chosen = self.own if mode is None else [mode] * len(self.layers)
        for part, gradient in zip(self.layers, chosen, strict=True):
            part.gradient = gradient
        with torch.enable_grad():
            steps = any(isinstance(g, Unrolled | Reversible) or (g and g.recycles) for g in chosen)
            phi = c @ self.output(afresh=steps)
        found = torch.autograd.grad(phi, tensors, materialize_grads=True)
        for part in self.layers:
            part.gradient = Implicit()
        return found


def _equilibria(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules that have a gradient and a method: what is inside one of them is its cell."""
    if _has_modes(module):
        yield module
        return
    for child in module.children():
        yield from _equilibria(child)


def _has_modes(module: nn.Module) -> bool:
    gradient, method = getattr(module, "gradient", None), getattr(module, "method", None)
    return isinstance(gradient, Gradient) and isinstance(method, Method)


def _refuse_single_precision(cell: Any) -> None:
    """What a function closes over is not part of the layer, so no copy of it in float64 can be made."""
    held = closed_over(cell, lambda t: t.is_floating_point() and t.dtype != torch.float64)
    if held:
        raise TypeError(
            f"audit works in float64, and the cell closes over {', '.join(held)} of a lower precision. Make "
            f"it a parameter of an nn.Module cell, pass it to the layer as shared=, or give it in float64."
        )


def _finest(steps: int) -> Stop:
    return Stop(rtol=_RTOL, max_steps=steps)


def _double(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().to(torch.float64, copy=True, memory_format=torch.contiguous_format).requires_grad_()


# -- words and tables --------------------------------------------------------------------------------------


def _name(mode: Gradient) -> str:
    steps = getattr(mode, "steps", None)
    return type(mode).__name__ + (f"({steps})" if steps is not None else "")


def _short(tensor: str) -> str:
    """`a.weight` for `a.parametrizations.weight.original`."""
    return re.sub(r"\bparametrizations\.(\w+)\.original$", r"\1", tensor)


def _cell(row: AuditRow) -> Text:
    if not row.compared:
        return Text("not known", "yellow")
    if math.isnan(row.cosine):
        return Text("both 0", "green")
    style = "green" if row.ok(1e-5) else ("red" if row.held else "yellow")
    return Text(f"{row.error:.1e}", style).append(f"\n{row.cosine:.4f}", "dim")


def plain_text(renderable: RenderableType, width: int = 110) -> str:
    """What a renderable of rich looks like without colour."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    console.print(renderable)
    text = console.file
    assert isinstance(text, io.StringIO)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
