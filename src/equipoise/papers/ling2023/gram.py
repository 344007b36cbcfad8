"""‖G/m − K‖_F ~ m^(−½), λ₀ ≥ mλ*/2: Theorems 2, 4 and 5 of [ling2023] on drawn networks, and Condition 1."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from ...data import synthetic
from ...kernels.width import width_convergence
from ...models import GaussianReLU
from ...plots import LIGHT, new_figure
from ...plots.curves import BAND, draw, draw_band, finish
from ...plots.style import legend, scale_axis
from ...theory import certify
from ...train import gradient_descent
from ..framework.experiments import Context, Measured, Progress, register
from ..framework.page import Page, number
from ..framework.verdicts import Judgement, judged
from .figures import S2

LAYERS = 8
DRAWS = BAND.replace("seed", "draw")


# -- theorems 2, 4 and 5 -------------------------------------------------------------------------------------


def _study(context: Context) -> Measured:
    n, d = context.pick(tiny=3, small=5, medium=20), context.pick(tiny=10, small=50, medium=100)
    widths = context.pick(tiny=(20, 40), small=(50, 100, 200, 400, 800), medium=(100, 300, 1000, 3000))
    draws = context.pick(tiny=3, small=20, medium=20)
    inputs = {"n": n, "d": d, "widths": widths, "draws": draws, "layers": LAYERS, "sigma_w2": S2}
    words = f"{n} samples, x uniform on the sphere of radius √{d} in R^{d}, seed 0"
    context.drawn("synthetic-sphere", words)

    def compute(progress: Progress) -> Measured:
        X = torch.from_numpy(synthetic.sphere(n, d, 0)[0])
        generator = torch.Generator().manual_seed(0)
        study = width_convergence(X, S2, widths, draws, generator, layers=LAYERS)
        return {**asdict(study), "slope": study.slope, "decay": study.decay, "theorem_2": study.theorem_2}

    return {**context.unit("ling2023.gram", f"n{n}-m{widths[-1]}", inputs, compute), **inputs}


def judge_theorem2(measured: Measured) -> list[Judgement]:
    share = measured["theorem_2"][-1]
    shown = ", ".join(
        f"m = {m}: {s:.0%}" for m, s in zip(measured["widths"], measured["theorem_2"], strict=True)
    )
    return [
        judged(
            "λ₀ ≥ mλ*/2 with high probability at a large width",
            share >= 0.9,
            paper="Theorem 2: with probability 1 − t, for m = Ω(n²/λ*² · log(n/(λ*t)))",
            measured=f"share of {measured['draws']} draws: {shown}; λ* = {number(measured['lambda_star'])}",
            tolerance="at least 90 % of the draws at the largest width",
        )
    ]


def draw_theorem2(measured: Measured, page: Page) -> None:
    figure, axes = new_figure(1, 1)
    ax, widths = axes[0, 0], measured["widths"]
    values = np.array(measured["lambda_0"]).T / np.array(widths)  # (draws, widths)
    draw_band(ax, values, "λ₀/m", x=widths, at=0)
    draw(ax, (widths, [measured["lambda_star"]] * len(widths)), "λ*", at=1)
    draw(ax, (widths, [measured["lambda_star"] / 2] * len(widths)), "λ*/2, the bound", at=2)
    finish(figure, ax, x="width m", y="λₘᵢₙ(G)/m", title=f"n = {measured['n']}", log_x=True)
    page.figure("lambda", figure, f"λₘᵢₙ of the Gram matrix at the start. {DRAWS}")


@register(
    "ling2023.theorem2",
    "Theorem 2: the least eigenvalue of the Gram matrix at the start",
    "λ₀ = λ_min(ZZᵀ) is at least mλ*/2 with high probability once the network is wide.",
    judge=judge_theorem2,
    draw=draw_theorem2,
    least="small",
)
def theorem2(context: Context) -> Measured:
    return _study(context)


def judge_theorem4(measured: Measured) -> list[Judgement]:
    edge = 2 * math.sqrt(2 * S2)
    return [
        judged(
            "‖G − G^(l)‖_F/m falls by a factor 2√2σ_w a layer or faster",
            measured["decay"] <= edge,
            paper=f"Theorem 4: O(n(2√2σ_w)^l), {edge:.3f} a layer",
            measured=f"{measured['decay']:.3f} a layer",
            tolerance="the factor fitted to the mean over draws is at most 2√2σ_w",
        )
    ]


def draw_theorem4(measured: Measured, page: Page) -> None:
    gaps = np.array(measured["layer_gaps"])  # (widths, draws, layers)
    layers = np.arange(1, gaps.shape[2] + 1)
    figure, axes = new_figure(1, 1)
    for at, (m, some) in enumerate(zip(measured["widths"], gaps, strict=True)):
        draw_band(axes[0, 0], some, f"m = {m}", x=layers, at=at, log=True)
    edge = 2 * math.sqrt(2 * S2)
    bound = gaps.mean(axis=(0, 1))[0] * edge ** (layers - 1)
    draw(axes[0, 0], (layers, bound), f"∝ {edge:.3g}ˡ, of the theorem", at=len(gaps))
    finish(figure, axes[0, 0], x="layer l", y="‖G − G⁽ˡ⁾‖ / m", log_y=True)
    scale_axis(axes[0, 0], "x", log=False, integers=True)
    page.figure(
        "layers",
        figure,
        f"Distance of the Gram matrix of layer l from that of the equilibrium, Frobenius norm. {DRAWS}",
    )


@register(
    "ling2023.theorem4",
    "Theorem 4: from finite depth to the equilibrium",
    "‖G − G^(l)‖_F/m falls geometrically in the depth l, by 2√2σ_w a layer.",
    judge=judge_theorem4,
    draw=draw_theorem4,
)
def theorem4(context: Context) -> Measured:
    return _study(context)


def judge_theorem5(measured: Measured) -> list[Judgement]:
    errors = np.array(measured["layer_errors"])  # (widths, draws, layers)
    layers = errors.shape[2]
    promised = measured["n"] * (2 * math.sqrt(2 * S2)) ** np.arange(1, layers + 1)
    within = (errors <= promised).all(axis=2).mean(axis=1)  # of the draws, by width
    shares = zip(measured["widths"], within, strict=True)
    return [
        judged(
            f"‖G^(l)/m − K^(l)‖_F ≤ n(2√2σ_w)^l with high probability at a large width, l ≤ {layers}",
            within[-1] >= 0.9,
            paper="Theorem 5: with probability 1 − n² exp(−Ω(m 8^l σ_w^2l) + O(l²))",
            measured=f"share of {measured['draws']} draws: "
            + ", ".join(f"m = {m}: {share:.0%}" for m, share in shares)
            + f"; at l = {layers} the bound is {promised[-1]:.2g}, the mean error "
            f"{errors[-1, :, -1].mean():.2g}",
            tolerance="at every one of these layers, in at least 90 % of the draws at the largest width",
        )
    ]


def draw_theorem5(measured: Measured, page: Page) -> None:
    widths = measured["widths"]
    errors = np.array(measured["layer_errors"])  # (widths, draws, layers)
    layers = np.arange(1, errors.shape[2] + 1)
    figure, axes = new_figure(1, 2)
    left, right = axes[0]
    whole = np.array(measured["gram_errors"]).T  # (draws, widths)
    draw_band(left, whole, "‖G/m − K‖", x=widths, at=0, log=True)
    ideal = whole.mean(axis=0)[0] * (np.array(widths) / widths[0]) ** -0.5
    draw(left, (widths, ideal), "∝ 1/√m", at=1)
    finish(figure, left, x="width m", y="‖G/m − K‖", log_x=True, log_y=True)
    for at, (m, some) in enumerate(zip(widths, errors, strict=True)):
        draw_band(right, some, f"m = {m}", x=layers, at=at, log=True)
    finish(figure, right, x="layer l", y="‖G⁽ˡ⁾/m − K⁽ˡ⁾‖", log_y=True)
    legend(right, above=True)
    scale_axis(right, "x", log=False, integers=True)
    page.figure(
        "population",
        figure,
        f"Distance from the infinitely wide network, by width and by depth, Frobenius norm. {DRAWS}",
    )
    page.note(
        f"‖G/m − K‖_F falls as m to the power {measured['slope']:.3f}. At a fixed width the error does not "
        "fall with the depth: it is that of sampling, and for a large l the probability of Theorem 5 says "
        "nothing."
    )


@register(
    "ling2023.theorem5",
    "Theorem 5: from finite width to the population Gram matrix",
    "‖G^(l)/m − K^(l)‖_F is at most n(2√2σ_w)^l for wide networks.",
    judge=judge_theorem5,
    draw=draw_theorem5,
    least="small",
)
def theorem5(context: Context) -> Measured:
    return _study(context)


# -- condition 1 ---------------------------------------------------------------------------------------------

FEASIBLE: dict[str, Any] = {"n": 2, "d": 10, "size": 0.05, "sigma_w2": 0.001, "delta": 0.078}


def judge_condition1(measured: Measured) -> list[Judgement]:
    rows = measured["assumption1"]
    held = sum(r["proved"] for r in rows)
    worst = max(r["margins"]["(9)"] for r in rows)
    fixed = measured["zero_readout"]
    proved = [r for r in fixed if r["proved"]]
    return [
        judged(
            "Condition 1 holds with high probability under Assumption 1",
            held >= 0.9 * len(rows),
            paper="§3.2: with probability 1 − t, for m = Ω(n³/λ*² · log(n/(λ*t)))",
            measured=f"in {held} of {len(rows)} draws; left over right side of (9) at most {worst:.2g}",
            tolerance="in at least 90 % of the draws",
            reason=""
            if worst >= 1
            else "(9) asks ‖a(0)‖ + δ ≤ (1 − ρ_w)/(2√n), where a ~ N(0, 1/m) has norm 1, whatever m is",
        ),
        judged(
            "where it holds, L(τ) ≤ (1 − ηλ₀/2)^τ L(0)",
            not any(r["violations"] for r in proved) if proved else None,
            paper="Theorem 1 (iii)",
            measured=f"{sum(r['violations'] for r in proved)} violations in {len(proved)} runs of "
            f"{measured['steps']} steps from a(0) = 0, where it is proved in {len(proved)} of {len(fixed)} "
            f"draws (n = {FEASIBLE['n']}, m = {measured['width']})",
            tolerance="no step of any proved run above the bound",
        ),
    ]


def draw_condition1(measured: Measured, page: Page) -> None:
    page.table(
        "draws",
        ["start", "n", "m", "draw", "(7)", "(8)", "(9)", "proved"],
        [
            [start, r["n"], r["m"], i, *(r["margins"][c] for c in ("(7)", "(8)", "(9)")), r["proved"]]
            for start in ("assumption1", "zero_readout")
            for i, r in enumerate(measured[start])
        ],
        "Left over right side of each inequality (1 or more is needed).",
    )
    figure, axes = new_figure(1, 1)
    kinds = {"assumption1": "Assumption 1", "zero_readout": "a(0) = 0"}
    series: dict[str, list[float]] = {}
    for start, words in kinds.items():
        for r in measured[start]:
            series.setdefault(f"{words}, n = {r['n']}", []).append(min(r["margins"].values()))
    for at, (label, margins) in enumerate(series.items()):
        draw(axes[0, 0], (np.arange(len(margins)), margins), label, at=at, dash="none", log=True)
    axes[0, 0].axhline(1.0, color=LIGHT.soft, linewidth=0.8)
    finish(figure, axes[0, 0], x="draw", y="least margin of (7)-(9)", log_y=True)
    scale_axis(axes[0, 0], "x", log=False, integers=True)
    legend(axes[0, 0], above=True)
    page.figure(
        "margins",
        figure,
        "Condition 1 needs a margin of 1 or more, the line; with a(0) = 0 targets are small.",
    )


@register(
    "ling2023.condition1",
    "Condition 1 and Theorem 1 on drawn networks",
    "Wide networks of Assumption 1 satisfy Condition 1 with high probability, and then converge linearly.",
    judge=judge_condition1,
    draw=draw_condition1,
    least="small",
)
def condition1(context: Context) -> Measured:
    width, steps = context.pick(tiny=200, small=400), context.pick(tiny=5, small=150)
    draws = context.pick(tiny=2, small=10)
    inputs = {**FEASIBLE, "width": width, "steps": steps, "draws": draws, "s2": S2}
    for n, d, y in ((2, 10, f"y ~ N(0, 1) or ±{FEASIBLE['size']}"), (20, 50, "y ~ N(0, 1)")):
        words = f"{n} orthogonal x of norm √{d} in R^{d}, {y}, by the number of the draw"
        context.drawn("synthetic-orthogonal", words)

    def compute(progress: Progress) -> Measured:
        found: Measured = {"assumption1": [], "zero_readout": []}
        for seed in range(draws):
            progress(seed / draws)
            for n, d in ((2, 10), (20, 50)):
                found["assumption1"].append(_certified(seed, n, d, width, S2, "assumption1"))
            found["zero_readout"].append(
                _certified(seed, 2, 10, width, FEASIBLE["sigma_w2"], "zero_readout", FEASIBLE["delta"], steps)
            )
        return found

    return {
        **context.unit("ling2023.condition1", f"m{width}", inputs, compute),
        "width": width,
        "steps": steps,
    }


def _certified(
    seed: int, n: int, d: int, m: int, s2: float, start: str, delta: float | None = None, steps: int = 0
) -> Measured:
    X, y = (torch.from_numpy(a) for a in synthetic.orthogonal(n, d, seed))
    if start == "zero_readout":
        y = FEASIBLE["size"] * torch.sign(y)
    generator = torch.Generator().manual_seed(seed)
    model = GaussianReLU(d, m, s2, start=start, dtype=torch.float64, generator=generator)
    proof = certify(model, X, y, theorem="ling2023", delta=delta)
    violations = 0
    if steps and proof.proved:
        violations = len(gradient_descent(model, X, y, steps, proof).violations())
    margins = {c.name: c.margin for c in proof.claims if c.name in ("(7)", "(8)", "(9)")}
    return {"n": n, "m": m, "margins": margins, "proved": proof.proved, "violations": violations}
