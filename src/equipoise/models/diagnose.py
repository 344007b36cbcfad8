"""Why a layer converges, or does not: ‖f(z) − z‖, q, ρ(J), ‖J‖ and every solver, on the user's own batch.

These are measurements, not proofs. The contraction factor comes from a trace, the spectral radius and the
norm from a few products with the Jacobian J = ∂f/∂z, the stretch from random pairs of states. All tend to be
too small.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from ..solve import EquilibriumError, Newton, Solution, Solver
from .advice import advise
from .audit import Audit, audit, plain_text
from .base import EquilibriumModel
from .choice import Trial
from .trials import LayerProblem

_PROBED = 16  # rows at which the Jacobian is estimated
_AUDITED = 8  # rows on which the gradient is audited


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found. `print()` shows it as tables, `str()` is the same in plain text.

    The fields that end in `_estimate` prove nothing; they are None if there was nothing to measure.
    """

    layer: str
    rows: int
    width: int
    dtype: torch.dtype
    trials: tuple[Trial, ...] = field(repr=False)  # the layer's own solver first
    at_equilibrium: bool  # whether J was estimated at equilibria, and not at the last iterates
    contraction_estimate: float | None  # of a Picard step, the worst of the rows traced
    spectral_radius_estimate: float | None  # ρ(J), the largest of the rows probed
    jacobian_norm_estimate: float | None  # ‖J‖₂, likewise
    stretch_estimate: float | None  # largest ‖f(a) − f(b)‖ / ‖a − b‖ of random pairs
    audit: Audit | None
    no_audit: str  # why there is none
    advice: tuple[str, ...]

    @property
    def solution(self) -> Solution:
        """What the layer's own solver found."""
        return self.trials[0].solution

    @property
    def residual(self) -> Tensor:
        """The relative residual of every sample, (N,)."""
        return self.solution.relative_residual

    @property
    def ok(self) -> bool:
        """Whether every sample converged and the layer's gradient passed its audit."""
        return self.trials[0].solves_all and self.audit is not None and self.audit.ok()

    def print(self, console: Console | None = None) -> None:
        """Show what was found in the terminal."""
        (console or Console()).print(self)

    def __str__(self) -> str:
        return plain_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kind = str(self.dtype).removeprefix("torch.")
        what = f"{self.rows} samples, a state of {self.width} numbers each, {kind}"
        yield Text(f"Diagnosis of {self.layer}: {what}", "bold")
        yield self._measurements()
        yield Text("\nSolvers, from the same start to the same tolerance", "bold")
        yield self._solvers()
        if self.audit is not None:
            yield self.audit
        yield Text("Advice", "bold")
        for line in self.advice:
            yield _item(line)

    def _measurements(self) -> Table:
        table = Table(box=None, show_header=False, padding=(0, 1))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column()
        own, where = self.trials[0], "at the equilibrium" if self.at_equilibrium else "at the last iterate"
        count = f"{own.converged} of {self.rows}"
        table.add_row("converged", Text(count, _tone(own.solves_all)), own.failures)
        if self.rows:
            residual = self.residual.nan_to_num(nan=math.inf)
            row, rtol = int(residual.argmax()), self.solution.stop.rtol
            remark = f"row {row}; median {float(residual.median()):.1e}; asked for {rtol:.0e}"
            table.add_row("largest residual", f"{float(residual[row]):.1e}", remark)
        for name, value, what in (
            ("contraction", self.contraction_estimate, "estimate, of a Picard step; below 1 it converges"),
            ("spectral radius", self.spectral_radius_estimate, f"estimate, of J = ∂f/∂z {where}"),
            ("norm of J", self.jacobian_norm_estimate, f"estimate, {where}"),
            ("stretch", self.stretch_estimate, "estimate, ‖f(a) − f(b)‖ / ‖a − b‖ at random"),
        ):
            shown = Text("unknown", "dim") if value is None else Text(f"{value:.3f}", _tone(value < 1))
            table.add_row(name, shown, what)
        return table

    def _solvers(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("solver", no_wrap=True)
        for name in ("converged", "steps", "f(z)", "J v", "time"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("remarks")
        for one in self.trials:
            remarks = [*(["the layer's"] if one.own else []), *([one.failures] if one.failures else [])]
            table.add_row(
                Text(one.name),
                Text(f"{one.converged} of {self.rows}", _tone(one.solves_all)),
                str(int(one.solution.steps.max()) if self.rows else 0),
                str(one.solution.counts.evaluations),
                str(one.solution.counts.jvps),
                f"{1e3 * one.seconds:.0f} ms",
                "; ".join(remarks),
            )
        return table


@torch.no_grad()
def diagnose(
    layer: nn.Module, x: Any, *args: Any, shared: Sequence[Any] = (), samples: int = 4, seed: int = 0
) -> Diagnosis:
    """Look at a layer on a batch: residuals, contraction, the Jacobian, every solver, the gradient, advice.

    It is made for layers that do not converge, too: samples without an equilibrium raise no error. The layer
    (an Equilibrium or a model) is left as it was. `samples` is the number of coordinates of each tensor that
    the gradient audit compares, on a few rows; 0 leaves the audit out. `seed` fixes all random choices.
    """
    name = type(layer).__name__
    if callable(as_equilibrium := getattr(layer, "as_equilibrium", None)):
        layer = as_equilibrium()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        problem = LayerProblem.of(layer, (x, *args), shared)
        generator = torch.Generator(problem.start.device).manual_seed(seed)
        trials = problem.trials()
        best = max(trials, key=lambda one: one.converged)  # not the fastest, since times vary
        rows, at_equilibrium = _where_to_look(best.solution)
        near = problem.take(rows[:_PROBED])
        radius, norm, stretch = near.estimates(_flat(best.solution)[rows[:_PROBED]], generator)
        worst = trials[0].solution.relative_residual.nan_to_num(nan=math.inf).argsort(descending=True)
        contraction = problem.take(worst[:_PROBED]).contraction()
    found, why = _audit(cast(EquilibriumModel, layer), (x, *args), shared, problem, best, samples, seed)
    diagnosis = Diagnosis(
        layer=name,
        rows=len(problem.start),
        width=problem.start.shape[1],
        dtype=problem.start.dtype,
        trials=trials,
        at_equilibrium=at_equilibrium,
        contraction_estimate=contraction,
        spectral_radius_estimate=radius,
        jacobian_norm_estimate=norm,
        stretch_estimate=stretch,
        audit=found,
        no_audit=why,
        advice=(),
    )
    return replace(diagnosis, advice=tuple(advise(diagnosis, _not_finite(layer, (x, *args, *shared)))))


def _flat(solution: Solution) -> Tensor:
    assert isinstance(solution.value, Tensor)
    return solution.value


def _where_to_look(solution: Solution) -> tuple[Tensor, bool]:
    """The rows that have an equilibrium; else those whose last iterate is finite at least."""
    converged = torch.nonzero(solution.converged).flatten()
    finite = torch.isfinite(_flat(solution)).all(dim=1) & torch.isfinite(solution.residual)
    return (converged, True) if len(converged) else (torch.nonzero(finite).flatten(), False)


def _audit(
    layer: EquilibriumModel,
    inputs: Sequence[Any],
    shared: Sequence[Any],
    problem: LayerProblem,
    best: Trial,
    samples: int,
    seed: int,
) -> tuple[Audit | None, str]:
    """The audit on a few rows that have an equilibrium, started there; or None, and why there is none."""
    rows = torch.nonzero(best.solution.converged).flatten()[:_AUDITED]
    if samples == 0:
        return None, "it was not asked for"
    if layer.any_cell:
        layer, method = copy.copy(layer), layer.method
        chain = (best.solver,) if isinstance(best.solver, Solver) else tuple(best.solver)
        near = (Newton(),) if problem.jacobian(problem.start) is not None else ()
        layer.method = replace(method, solver=(*near, *chain))
    while len(rows):
        some = [a[rows] if isinstance(a, Tensor) else a for a in inputs]
        start = problem.layout.unflat(_flat(best.solution)[rows])
        try:
            return audit(layer, *some, shared=shared, start=start, samples=samples, seed=seed), ""
        except EquilibriumError as error:  # rows that have one in the layer's precision only
            rows = rows[error.solution.converged]
        except (TypeError, ValueError) as error:
            return None, str(error).removesuffix(".")
    return None, "no sample has an equilibrium to differentiate"


def _not_finite(layer: nn.Module, inputs: Sequence[Any]) -> list[str]:
    """What holds NaN or infinity before anything is solved."""
    bad = [f"parameter `{name}`" for name, p in layer.named_parameters() if not bool(torch.isfinite(p).all())]
    for i, value in enumerate(inputs):
        if isinstance(value, Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all()):
            rows = torch.nonzero(~torch.isfinite(value).reshape(len(value), -1).all(dim=1)).flatten().tolist()
            bad.append(f"{'x' if i == 0 else f'input {i}'} in row {', '.join(map(str, rows[:5]))}")
    return bad


def _tone(good: bool) -> str:
    return "green" if good else "red"


def _item(line: str) -> Table:
    """A line of a list, its further lines indented."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(" •", Text(line))
    return grid
