"""z = f_L∘…∘f_1(z) minimises a convex function: the optimisation view of [xie2021], and a grid on digits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..models.opteq import DeepOptEq, OptEq
from ..plots import new_figure
from ..plots.curves import draw, finish
from ..solve import SAM, Picard, Stop, fixed_point
from .experiments import Context, Measured, Progress, register
from .page import Page, number
from .small import draw as normal
from .verdicts import Judgement, judged, standard_error, with_error
from .xie2021_digits import ALPHAS, COLUMNS, run

CIFAR10 = {0.01: 58.4, 0.1: 56.8, 0.4: 86.9, 0.8: 87.4, 1.0: 87.2}  # Table 3, without a regulariser
FAR = 5.0  # points of accuracy


# -- tables 1a and 3, on digits ------------------------------------------------------------------------------


@register(
    "xie2021.table3",
    "Tables 1a and 3: α × regularisation, dense networks on digits",
    "α ≥ .4 is safe, α = .01 and .1 fall far behind; regularising the features improves the accuracy.",
    judge=lambda measured: judge_table3(measured),
    draw=lambda measured, page: draw_table3(measured, page),
    minutes=2,
)
def table3(context: Context) -> Measured:
    seeds = len(context.seeds(tiny=1, small=3))
    alphas = context.pick(tiny=(0.1, 1.0), small=ALPHAS)
    columns = list(COLUMNS)[: context.pick(tiny=2, small=len(COLUMNS))]
    found: Measured = {"cells": {}}
    for alpha in alphas:
        for column in columns:
            inputs = {"alpha": alpha, "column": column, "seeds": seeds, "scale": context.settings.scale}
            compute = lambda progress, a=alpha, c=column: asdict(
                run(context.settings.scale, seeds, [a], [c])[0]
            )
            unit = context.unit("xie2021.digits", f"alpha{alpha:g}-{columns.index(column)}", inputs, compute)
            found["cells"].setdefault(f"{alpha:g}", {})[column] = unit
    return found


def _score(cell: Measured) -> tuple[float, float | None]:
    """Mean accuracy in percent and its standard error."""
    values = [100 * a for a in cell["accuracies"]]
    return float(np.mean(values)), standard_error(values)


def _sizes(measured: Measured) -> str:
    plain = {a: row["none"].get("norm") for a, row in measured["cells"].items()}
    return ", ".join(f"{number(norm)} at α = {a}" for a, norm in plain.items())


def judge_table3(measured: Measured) -> list[Judgement]:
    plain = {float(a): _score(row["none"])[0] for a, row in measured["cells"].items()}
    best = max(plain.values())
    shown = ", ".join(f"α = {a:g}: {v:.1f}" for a, v in plain.items())
    safe = [v for a, v in plain.items() if a >= 0.4]
    small = {a: v - plain[1.0] for a, v in plain.items() if a < 0.4}
    gains = [
        _score(cell)[0] - _score(row["none"])[0]
        for row in measured["cells"].values()
        for column, cell in row.items()
        if column != "none"
    ]
    better = sum(g > 0 for g in gains)
    return [
        judged(
            "α ≥ .4 is a safe choice",
            min(safe) >= best - FAR,
            paper=", ".join(f"α = {a:g}: {v:g}" for a, v in CIFAR10.items()) + " % (CIFAR10)",
            measured=f"{shown} % (digits)",
            tolerance=f"each within {FAR:g} points of the best",
        ),
        judged(
            "small α collapses: far behind α = 1",
            max(small.values()) < -FAR,
            paper="−28.8 points at α = .01, −30.4 at α = .1",
            measured=", ".join(f"α = {a:g}: {v:+.1f}" for a, v in small.items()) + " points",
            tolerance=f"each more than {FAR:g} points behind",
            reason=""
            if max(small.values()) < -FAR
            else f"mean ‖z‖ that the unrolled steps arrive at: {_sizes(measured)}. What is far behind "
            "is a state that they do not reach",
        ),
        judged(
            "regularising the features improves the accuracy",
            better > len(gains) / 2,
            paper="in 19 of the 25 cells of Table 3",
            measured=f"in {better} of {len(gains)} cells, {np.mean(gains):+.1f} points on average",
            tolerance="in more than half of the cells, mean over seeds",
            reason="" if better > len(gains) / 2 else "20 steps of SAM shrink the state and select nothing",
        ),
    ]


def draw_table3(measured: Measured, page: Page) -> None:
    cells = measured["cells"]
    columns = list(next(iter(cells.values())))
    figure, axes = new_figure(1, 1, width=6.4, height=3.8)
    for at, column in enumerate(columns):
        scores = [_score(row[column])[0] for row in cells.values()]
        draw(axes[0, 0], ([float(a) for a in cells], scores), column, at=at)
    finish(figure, axes[0, 0], x="α", y="test accuracy, %", log_x=True)
    page.figure("accuracy", figure, "Digits, mean over seeds.")
    shown = lambda cell: with_error(*_score(cell))
    rows = [[f"α = {a}", *(shown(row[c]) for c in columns)] for a, row in cells.items()]
    page.table("accuracy", ["", *columns], rows, "Test accuracy in %, ± standard error over seeds.")


# -- the optimisation view -----------------------------------------------------------------------------------


def _descent(model: OptEq | DeepOptEq, X: Tensor, steps: int) -> Measured:
    """The objective above its minimum along z ← T(z), the minimum found without the network."""
    Z, values = torch.zeros(len(X), model.state, dtype=X.dtype), []
    injections, weights = model.injections(X), model.weights()
    least = model.minimise(X)
    with torch.no_grad():
        for _ in range(steps):
            Z = model.T(Z, injections, weights)
            values.append(model.objective(Z, X))
    gap = torch.stack(values) - least.value  # (steps, N)
    off = (model.equilibrium(X, stop=Stop(rtol=1e-12, max_steps=5000)) - least.z).norm() / least.z.norm()
    return {"gap": gap.mean(dim=1), "rises": int((gap[1:] > gap[:-1] + 1e-12).sum()), "off": off.item()}


@register(
    "xie2021.objective",
    "Theorem 1 and Corollary 1: the objective along the iteration",
    "The equilibrium of an OptEq minimises a convex function; two layers minimise a joint one.",
    judge=lambda measured: judge_objective(measured),
    draw=lambda measured, page: draw_objective(measured, page),
)
def objective(context: Context) -> Measured:
    size = context.pick(tiny=5, small=30)
    steps = context.pick(tiny=10, small=80)
    inputs = {"size": size, "steps": steps}

    def compute(progress: Progress) -> Measured:
        X = normal(0, 10, size)
        how: dict[str, Any] = {"dtype": torch.float64}
        make = lambda: torch.Generator().manual_seed(0)
        one = OptEq(size, size, size + 2, generator=make(), **how)
        two = DeepOptEq(size, size, [size + 2, size], 0.5, generator=make(), **how)
        return {"one layer": _descent(one, X, steps), "two layers, α = .5": _descent(two, X, steps)}

    return context.unit("xie2021.objective", f"m{size}", inputs, compute)


def judge_objective(measured: Measured) -> list[Judgement]:
    found = []
    for name, row in measured.items():
        found += [
            judged(
                f"{name}: the equilibrium is the minimiser",
                row["off"] <= 1e-6,
                paper="Theorem 1" if name == "one layer" else "Corollary 1, with the factor α restored",
                measured=f"relative distance to the solution of a quadratic programme {row['off']:.1e}",
                tolerance="at most 10⁻⁶",
            ),
            judged(
                f"{name}: the objective falls at every iteration",
                row["rises"] == 0,
                paper="proximal steps",
                measured=f"{row['rises']} rises; from {number(row['gap'][0])} to {row['gap'][-1]:.1e}",
                tolerance="no sample rises by more than 10⁻¹²",
            ),
        ]
    return found


def draw_objective(measured: Measured, page: Page) -> None:
    figure, axes = new_figure(1, 1)
    for at, (name, row) in enumerate(measured.items()):
        gap = np.array(row["gap"], dtype=float)
        draw(axes[0, 0], (np.arange(1, len(gap) + 1), np.maximum(gap, 1e-15)), name, at=at, log=True)
    finish(figure, axes[0, 0], x="iteration of z ← T(z)", y="objective above its minimum", log_y=True)
    page.figure("objective", figure, "Mean over samples; the minimum comes from a quadratic programme.")


@register(
    "xie2021.theorem3",
    "Theorem 3: the limit α → 0 is a wide OptEq",
    "As α → 0 the equilibrium of the deep network tends to that of the wide one, with an error O(α).",
    judge=lambda measured: judge_theorem3(measured),
    draw=lambda measured, page: draw_theorem3(measured, page),
)
def theorem3(context: Context) -> Measured:
    size = context.pick(tiny=4, small=20)
    alphas = [0.3, 0.1, 0.03, 0.01, 0.003]

    def compute(progress: Progress) -> Measured:
        X, off = normal(1, 8, size), []
        for alpha in alphas:
            generator = torch.Generator().manual_seed(0)
            deep = DeepOptEq(
                size, size, [size, size + 1, size], alpha, dtype=torch.float64, generator=generator
            )
            stop = Stop(rtol=1e-12, max_steps=100_000, patience=10_000)
            limit = deep.wide().equilibrium(X, stop=stop)
            off.append(((deep.equilibrium(X, stop=stop) - limit).norm() / limit.norm()).item())
        return {"alphas": alphas, "off": off}

    return context.unit("xie2021.theorem3", f"m{size}", {"size": size, "alphas": alphas}, compute)


def judge_theorem3(measured: Measured) -> list[Judgement]:
    alphas, off = (np.log(np.array(measured[k], dtype=float)) for k in ("alphas", "off"))
    slope = float(np.polynomial.polynomial.polyfit(alphas[-3:], off[-3:], 1)[1])
    return [
        judged(
            "the distance to the wide network falls as α",
            abs(slope - 1) <= 0.1,
            paper="error O(α)",
            measured=f"exponent {slope:.3f}; {number(measured['off'][-1])} at α = {measured['alphas'][-1]:g}",
            tolerance="exponent of the three smallest α within .1 of 1",
        )
    ]


def draw_theorem3(measured: Measured, page: Page) -> None:
    figure, axes = new_figure(1, 1)
    draw(axes[0, 0], (measured["alphas"], measured["off"]), "deep against wide", at=0, log=True)
    ideal = [measured["off"][-1] * a / measured["alphas"][-1] for a in measured["alphas"]]
    draw(axes[0, 0], (measured["alphas"], ideal), "∝ α", at=1, log=True)
    finish(figure, axes[0, 0], x="α", y="relative distance of the equilibria", log_x=True, log_y=True)
    page.figure("limit", figure, "Three layers; the wide network is their average.")


# -- SAM -----------------------------------------------------------------------------------------------------


@register(
    "xie2021.sam",
    "Theorem 4: SAM against plain iteration, where fixed points are many",
    "SAM tends to the fixed point that the regulariser prefers; K = 20 steps are used in training.",
    judge=lambda measured: judge_sam(measured),
    draw=lambda measured, page: draw_sam(measured, page),
)
def sam(context: Context) -> Measured:
    counts = context.pick(tiny=[20, 100], small=[1, 5, 20, 100, 1000, 10_000, 30_000])

    def compute(progress: Progress) -> Measured:
        a = normal(3, 10)
        a = a / a.norm()
        f = lambda z: z - (z @ a - 1)[:, None] * a  # the projection on aᵀz = 1: the least norm is at a
        start = 3 * normal(4, 1, 10)
        off: dict[str, list[float]] = {"SAM": [], "plain": []}
        for k in counts:
            stop = Stop(rtol=1e-14, atol=1e-300, max_steps=k, patience=k)
            for name, solver in (("SAM", SAM()), ("plain", Picard())):
                z = fixed_point(f, start, solver=solver, stop=stop).value
                assert isinstance(z, Tensor)
                off[name].append((z[0] - a).norm().item())
        return {"counts": counts, **off}

    return context.unit("xie2021.sam", f"{counts[-1]}", {"counts": counts}, compute)


def judge_sam(measured: Measured) -> list[Judgement]:
    at = dict(zip(measured["counts"], measured["SAM"], strict=True))
    plain = measured["plain"][-1]
    return [
        judged(
            "SAM comes nearer to the preferred fixed point than plain iteration",
            measured["SAM"][-1] < 0.5 * plain,
            paper="Theorem 4: it tends to it",
            measured=f"distance {number(measured['SAM'][-1])} after {measured['counts'][-1]} steps, "
            f"plain iteration {number(plain)}",
            tolerance="at most half as far at the end",
        ),
        judged(
            "K = 20 steps select it",
            at[20] <= 0.1,
            paper="K = 20 in every experiment",
            measured=f"distance {number(at[20])} after 20 steps, of a fixed point of norm 1",
            tolerance="at most .1",
            reason="its error falls as a power of the steps: 20 of them shrink the state and select nothing",
        ),
    ]


def draw_sam(measured: Measured, page: Page) -> None:
    figure, axes = new_figure(1, 1)
    for at, name in enumerate(("SAM", "plain")):
        draw(axes[0, 0], (measured["counts"], measured[name]), name, at=at, log=True)
    finish(figure, axes[0, 0], x="steps", y="distance to the preferred one", log_x=True, log_y=True)
    page.figure("sam", figure, "f projects on a hyperplane; R = ½‖z‖² prefers its point of least norm.")
