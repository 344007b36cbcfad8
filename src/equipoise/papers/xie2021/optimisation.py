"""z = f_L∘…∘f_1(z) minimises a convex function: the optimisation view of [xie2021]."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ...models.proximal import DeepOptEq, OptEq
from ...plots.curves import Panel, panels
from ...solve import SAM, Picard, Stop, fixed_point
from ..framework.experiments import Context, Measured, Progress, register
from ..framework.page import Page, number
from ..framework.small import draw as normal
from ..framework.small import seeded
from ..framework.verdicts import Judgement, judged

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


def _judge_objective(measured: Measured) -> list[Judgement]:
    return [
        judged(
            f"{name}: the equilibrium is the minimiser",
            row["off"] <= 1e-6,
            paper="Theorem 1" if name == "one layer" else "Corollary 1, with the factor α restored",
            measured=f"relative distance to the solution of a quadratic programme {row['off']:.1e}",
            tolerance="at most 10⁻⁶",
        )
        for name, row in measured.items()
    ]


def _draw_objective(measured: Measured, page: Page) -> None:
    lines = {}
    for name, row in measured.items():
        gap = np.array(row["gap"], dtype=float)
        gap = gap[: np.argmax(gap <= 0)] if (gap <= 0).any() else gap
        lines[name] = (np.arange(1, len(gap) + 1), gap)
    panel = Panel(lines, "iteration of z ← T(z)", "objective above its minimum", log_y=True)
    words = "Mean over samples; the minimum comes from a quadratic programme."
    least = min(v for row in measured.values() for v in row["gap"])
    if least <= 0:
        words += f" A curve ends before its first value of 0 or less, where all is rounding ({least:.1e})."
    page.figure("objective", panels(panel), words)
    told = ", ".join(
        f"{name} {row['rises']} times, from {number(row['gap'][0])} to {row['gap'][-1]:.1e}"
        for name, row in measured.items()
    )
    page.note(f"How often the objective of a sample rose by more than 10⁻¹²: {told}.")


@register(
    "xie2021.objective",
    "Theorem 1 and Corollary 1: the objective along the iteration",
    _judge_objective,
    _draw_objective,
    least="tiny",
)
def objective(context: Context) -> Measured:
    """The equilibrium of an OptEq minimises a convex function; two layers minimise a joint one."""
    size, steps = context.pick(tiny=5, small=30), context.pick(tiny=10, small=80)
    context.drawn("synthetic-normal", f"10 samples x ~ N(0, I) in R^{size}, seed 0")

    def compute(progress: Progress) -> Measured:
        X, own = normal(0, 10, size), lambda: seeded(0)
        one = OptEq(size, size, size + 2, dtype=torch.float64, generator=own())
        two = DeepOptEq(size, size, [size + 2, size], 0.5, dtype=torch.float64, generator=own())
        return {"one layer": _descent(one, X, steps), "two layers, α = .5": _descent(two, X, steps)}

    return context.unit("xie2021.objective", f"m{size}", {"size": size, "steps": steps}, compute)


def _judge_theorem3(measured: Measured) -> list[Judgement]:
    alphas, off = measured["alphas"], measured["off"]
    x, y = (np.log(np.array(values, dtype=float)) for values in (alphas, off))
    slope = float(np.polynomial.polynomial.polyfit(x[-3:], y[-3:], 1)[1])
    return [
        judged(
            "the equilibrium tends to that of the wide network as α → 0",
            bool((np.diff(y) < 0).all()) and off[-1] <= 0.01,
            paper="Theorem 3",
            measured=f"relative distance {number(off[0])} at α = {alphas[0]:g}, {number(off[-1])} at α = "
            f"{alphas[-1]:g}; at the three smallest α it falls as α to the power {slope:.3f}",
            tolerance="smaller at each smaller α, and at most .01 at the smallest",
        )
    ]


def _draw_theorem3(measured: Measured, page: Page) -> None:
    alphas, off = measured["alphas"], measured["off"]
    lines = {"deep against wide": (alphas, off), "∝ α": (alphas, [off[-1] * a / alphas[-1] for a in alphas])}
    panel = Panel(lines, "α", "relative distance of the equilibria", log_x=True, log_y=True)
    page.figure("limit", panels(panel), "Three layers; the wide network is their average.")


@register(
    "xie2021.theorem3",
    "Theorem 3: the limit α → 0 is a wide OptEq",
    _judge_theorem3,
    _draw_theorem3,
    least="tiny",
)
def theorem3(context: Context) -> Measured:
    """As α → 0 the equilibrium of the deep network tends to that of the wide one."""
    size, alphas = context.pick(tiny=4, small=20), [0.3, 0.1, 0.03, 0.01, 0.003]
    context.drawn("synthetic-normal", f"8 samples x ~ N(0, I) in R^{size}, seed 1")

    def compute(progress: Progress) -> Measured:
        X, off = normal(1, 8, size), []
        stop = Stop(rtol=1e-12, max_steps=100_000, patience=10_000)
        for alpha in alphas:
            hidden, own = [size, size + 1, size], seeded(0)
            deep = DeepOptEq(size, size, hidden, alpha, dtype=torch.float64, generator=own)
            limit = deep.wide().equilibrium(X, stop=stop)
            off.append(((deep.equilibrium(X, stop=stop) - limit).norm() / limit.norm()).item())
        return {"alphas": alphas, "off": off}

    return context.unit("xie2021.theorem3", f"m{size}", {"size": size, "alphas": alphas}, compute)


# -- SAM -----------------------------------------------------------------------------------------------------


def _judge_sam(measured: Measured) -> list[Judgement]:
    plain, off, counts = measured["plain"][-1], measured["SAM"], measured["counts"]
    return [
        judged(
            "SAM comes ever nearer to the preferred fixed point, plain iteration does not",
            all(a > b for a, b in pairwise(off)) and off[-1] < 0.5 * plain,
            paper="Theorem 4: the sequence converges to it",
            measured=f"distance {number(off[0])} after {counts[0]} steps, {number(off[-1])} after "
            f"{counts[-1]}; plain iteration {number(plain)}",
            tolerance="nearer at each larger number of steps, and at most half as far as plain at the end",
        )
    ]


def _draw_sam(measured: Measured, page: Page) -> None:
    lines = {name: (measured["counts"], measured[name]) for name in ("SAM", "plain")}
    panel = Panel(lines, "steps", "distance to the preferred one", log_x=True, log_y=True)
    caption = "f projects on a hyperplane; R = ½‖z‖² prefers its point of least norm."
    page.figure("sam", panels(panel), caption)
    away = dict(zip(measured["counts"], measured["SAM"], strict=True))
    steps, off = (np.log([part[-2], part[-1]]) for part in (measured["counts"], measured["SAM"]))
    page.note(
        "The paper takes the K-th iterate for an approximation, K = 20 in its experiments (§4.2 and §5), "
        f"and does not say how good: here it is {number(away[20])} away after 20 steps, from a point of norm "
        f"1, and this falls as the steps to the power {float((off[1] - off[0]) / (steps[1] - steps[0])):.2f}."
    )


@register(
    "xie2021.sam",
    "Theorem 4: SAM against plain iteration, where fixed points are many",
    _judge_sam,
    _draw_sam,
    least="tiny",
)
def sam(context: Context) -> Measured:
    """SAM converges to the fixed point that the regulariser prefers."""
    counts = context.pick(tiny=[20, 100], small=[1, 5, 20, 100, 1000, 10_000, 30_000])
    plane = "aᵀz = 1 in R^10, a uniform of norm 1, seed 3; the start 3·N(0, I), seed 4"
    context.drawn("synthetic-hyperplane", plane)

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
