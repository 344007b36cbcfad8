"""Z = relu(ZWᵀ + XUᵀ), W_ij ~ N(0, 2σ_w²/m): Figure 1 of [ling2023], with W(τ) and G(τ) along the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data import synthetic
from ...kernels import tangent_kernel
from ...models import GaussianReLU
from ...plots import LIGHT, new_figure
from ...plots.curves import BAND, draw_band, finish
from ...solve import Stop
from ...train import gradient_descent
from ..framework.experiments import Context, Measured, Progress, register
from ..framework.images import room, two_classes, two_classes_in_words
from ..framework.page import Page, number, shared_legend
from ..framework.seeds import compared, spread
from ..framework.small import norm
from ..framework.verdicts import FALLING, Judgement, falling, judged

S2 = 0.08  # σ_w²
SYNTHETIC = "synthetic-sphere"
MOMENTS = 21


def sizes(context: Context) -> dict[str, Any]:
    """What a scale means here. The paper's: n = 1000, d = 1000 for the synthetic data."""
    return {
        "n": context.pick(tiny=8, small=100, medium=1000),
        "d": context.pick(tiny=6, small=100, medium=1000),
        "widths": context.pick(
            tiny=(10, 20), small=(25, 50, 100, 200), medium=(500, 1000, 2000), paper=(500, 1000, 2000, 4000)
        ),
        "steps": context.pick(tiny=5, small=200, medium=300, paper=1000),
    }


def instance(context: Context, name: str, seed: int, n: int, d: int) -> tuple[Tensor, Tensor]:
    """X with rows of norm √d, and y."""
    if name == SYNTHETIC:
        X, y = synthetic.sphere(n, d, seed)
        return torch.from_numpy(X).float(), torch.from_numpy(y).float()
    per_class, _ = room(context.load(name), n // 2)
    split = two_classes(context.load(name), per_class, seed, norm="sqrt_d")
    return split.X, split.y


def _source(context: Context, name: str, n: int, d: int) -> dict[str, Any]:
    if name == SYNTHETIC:
        words = f"{n} samples, x uniform on the sphere of radius √{d} in R^{d}, y ~ N(0, 1)"
        context.drawn(name, f"{words}, by the seed of the run")
        return {"n": n, "d": d, "name": name}
    words = two_classes_in_words(context.load(name), n // 2, norm="sqrt_d", test=False)
    return {"n": n, **context.source(name, words)}


def stable_step(context: Context, name: str, width: int) -> float:
    """1/λ_max(H) at a start of this width: half of what the first steps bear."""
    size = sizes(context)
    inputs = {"data": _source(context, name, size["n"], size["d"]), "width": width, "sigma_w2": S2}

    def compute(progress: Progress) -> Measured:
        X, _ = instance(context, name, 0, size["n"], size["d"])
        model = GaussianReLU(X.shape[1], width, S2, generator=torch.Generator().manual_seed(0))
        return {"step": 1 / tangent_kernel(model, X).lambda_max}

    return context.unit("ling2023.step", f"{name}-m{width}", inputs, compute)["step"]


def curve(context: Context, name: str, *, width: int, step: float, seed: int) -> Measured:
    """One run: loss at every step; ‖W(τ)‖, λ_τ = λ_min(G(τ)) and ‖G(τ) − G(0)‖_F/‖G(0)‖_F at some."""
    size = sizes(context)
    inputs = {
        "data": _source(context, name, size["n"], size["d"]),
        "width": width,
        "step": step,
        "seed": seed,
        "steps": size["steps"],
        "sigma_w2": S2,
    }
    compute = lambda progress: _descend(
        *instance(context, name, seed, size["n"], size["d"]), width, step, seed, size["steps"], progress
    )
    return context.unit("ling2023.descent", f"{name}-m{width}-step{step:.3g}-seed{seed}", inputs, compute)


def _descend(
    X: Tensor, y: Tensor, width: int, step: float, seed: int, steps: int, progress: Progress
) -> Measured:
    model = GaussianReLU(X.shape[1], width, S2, generator=torch.Generator().manual_seed(seed))
    moments = set(np.linspace(0, steps, min(MOMENTS, steps + 1)).round().astype(int).tolist())
    found: dict[str, list[float]] = {"at": [], "norm": [], "lambda": [], "moved": []}
    first: list[Tensor] = []

    def look(k: int, loss: float) -> None:
        progress(k / max(steps, 1))
        if k in moments and math.isfinite(loss):
            Z = model.solve(X).value
            assert isinstance(Z, Tensor)
            found["at"].append(k)
            found["norm"].append(norm(model.W))
            found["lambda"].append(_lambda_min(Z))
            gram = Z @ Z.T
            first.append(gram)
            found["moved"].append(((gram - first[0]).norm() / first[0].norm()).item())

    stop = Stop(max_steps=2000, patience=200)
    history = gradient_descent(model, X, y, steps, step, measure=0, stop=stop, progress=look)
    return {**found, "loss": history.loss, "stopped": history.stopped.split("\n")[0], "N": len(X)}


def _lambda_min(Z: Tensor) -> float:
    """λ_min(ZZᵀ): 0 of a network narrower than it has samples."""
    return 0.0 if Z.shape[0] > Z.shape[1] else torch.linalg.svdvals(Z.double())[-1].item() ** 2


# -- figure 1 ------------------------------------------------------------------------------------------------


@register(
    "ling2023.fig1",
    "Figure 1: width, on synthetic data, MNIST and CIFAR10",
    "Wider networks converge faster to a smaller training loss, as the authors believe because Gram matrices "
    "become more stable; ‖W(τ)‖ stays below 1 throughout.",
    judge=lambda measured: judge_fig1(measured),
    draw=lambda measured, page: draw_fig1(measured, page),
    least="small",
)
def fig1(context: Context) -> Measured:
    widths = sizes(context)["widths"]
    seeds = context.seeds(tiny=1, small=3, medium=1, paper=5)
    images = context.datasets("mnist", "cifar10")
    names = images if context.settings.data else [SYNTHETIC, *images]
    found: Measured = {"data": {}}
    for name in names:
        step = stable_step(context, name, widths[-1])
        common = {
            f"m = {m}": [curve(context, name, width=m, step=step, seed=s) for s in seeds] for m in widths
        }
        scaled = {
            f"m = {m}": [curve(context, name, width=m, step=step * widths[-1] / m, seed=s) for s in seeds]
            for m in widths
        }
        found["data"][name] = {"step": step, "widths": widths, "same": common, "scaled": scaled}
    return found


def judge_fig1(measured: Measured) -> list[Judgement]:
    found = []
    for name, row in measured["data"].items():
        by_width = {width: _finals(runs) for width, runs in row["same"].items()}
        runs = [r for some in row["same"].values() for r in some]
        largest = max(v for r in runs for v in r["norm"])
        moved = {width: [max(r["moved"]) for r in some] for width, some in row["same"].items()}
        found += [
            judged(
                f"{name}: wider networks reach a smaller training loss",
                falling(list(by_width.values())),
                paper="§5, Figure 1: faster as m increases, and the final training loss becomes smaller",
                measured=f"loss / N after the last step: {compared(by_width)}",
                tolerance=f"one η for all; {FALLING}",
            ),
            judged(
                f"{name}: ‖W(τ)‖ < 1 throughout",
                largest < 1 and not any(r["stopped"] for r in runs),
                paper="§5: smaller than 1 throughout the training",
                measured=f"at most {largest:.3f}",
                tolerance="below 1 at every step measured, every width and seed, and no run lost",
            ),
            judged(
                f"{name}: Gram matrices become more stable as m increases",
                falling(list(moved.values())),
                paper="§5: believed, as the reason why wider networks train faster",
                measured=f"largest ‖G(τ) − G(0)‖/‖G(0)‖ of a run: {compared(moved)}",
                tolerance=f"one η for all; {FALLING}; that it is the reason is not judged",
            ),
        ]
    return found


def _advantage(row: Measured) -> str:
    """Loss of the narrowest over that of the widest, at one η and at η ∝ 1/m: geometric means over seeds."""
    ratios = []
    for key in ("same", "scaled"):
        losses = [_finals(runs) for runs in row[key].values()]
        kept = np.isfinite([losses[0], losses[-1]]).all()
        ratio = float(np.exp(np.mean(np.log(np.divide(losses[0], losses[-1]))))) if kept else None
        ratios.append("lost" if ratio is None else number(ratio))
    return f"{ratios[0]} with one η for all, {ratios[1]} with η ∝ 1/m"


def _rounding(row: Measured) -> float:
    """ε²λ_max(H) of float32: below it λ_min(G) = σ_min(Z)² is rounding, for σ_min(Z) is known to ε‖Z‖."""
    return torch.finfo(torch.float32).eps ** 2 / row["step"]


def _kept(runs: Sequence[Measured], rounding: float) -> float | None:
    """λ at the end over λ₀, where all λ on the way are more than rounding."""
    ratios = [r["lambda"][-1] / r["lambda"][0] for r in runs if min(r["lambda"]) > rounding]
    return float(np.mean(ratios)) if ratios else None


def _finals(runs: Sequence[Measured]) -> list[float]:
    return [r["loss"][-1] / r["N"] if not r["stopped"] else math.inf for r in runs]


def draw_fig1(measured: Measured, page: Page) -> None:
    rows = measured["data"]
    figure, axes = new_figure(len(rows), 4, width=3.9, height=3.0)
    for (name, row), panels in zip(rows.items(), axes, strict=True):
        for at, label in enumerate(row["same"]):
            for panel, key in ((panels[0], "same"), (panels[1], "scaled")):
                loss = [np.array(r["loss"], dtype=float) / r["N"] for r in row[key][label]]
                k = min(map(len, loss))
                draw_band(panel, [v[:k] for v in loss], label, at=at, log=True)
            runs = row["same"][label]
            k = min(len(r["at"]) for r in runs)
            for panel, key in ((panels[2], "norm"), (panels[3], "lambda")):
                values = [r[key][:k] for r in runs]
                steps = runs[0]["at"][:k]
                if key == "norm":
                    draw_band(panel, values, label, x=steps, at=at)
                elif np.min(values) > _rounding(row):
                    draw_band(panel, values, label, x=steps, at=at, log=True)
        finish(figure, panels[0], x="step", y="loss / N", title=f"{name}: one η for all", log_y=True)
        finish(figure, panels[1], x="step", y="loss / N", title=f"{name}: η ∝ 1/m", log_y=True)
        panels[2].axhline(1.0, color=LIGHT.soft, linewidth=0.8)
        finish(figure, panels[2], x="step", y="‖W(τ)‖", title=name)
        finish(figure, panels[3], x="step", y="λₘᵢₙ(G(τ))", title=name, log_y=True)
    shared_legend(figure, axes[0])
    page.figure(
        "curves",
        figure,
        f"{BAND} λₘᵢₙ(G) is left out where it is 0, up to rounding, as for m < n.",
    )
    page.table(
        "final",
        [
            "data",
            "width",
            "η",
            "seeds",
            "loss / N, one η for all",
            "± sd, one η for all",
            "loss / N, η ∝ 1/m",
            "± sd, η ∝ 1/m",
            "lost, one η for all",
            "lost, η ∝ 1/m",
            "largest ‖W‖",
            "λ at the end / λ₀",
            "‖G − G(0)‖/‖G(0)‖ at most",
        ],
        [
            [
                name,
                label,
                row["step"],
                len(runs),
                *spread(_finals(runs)),
                *spread(_finals(row["scaled"][label])),
                *(sum(bool(r["stopped"]) for r in some) for some in (runs, row["scaled"][label])),
                max(v for r in runs for v in r["norm"]),
                _kept(runs, _rounding(row)),
                max(v for r in runs for v in r["moved"]),
            ]
            for name, row in rows.items()
            for label, runs in row["same"].items()
        ],
        "After the last step: mean and standard deviation over the seeds that came to it. No η is given: "
        "ours is 1/λ_max(H) of the widest start.",
    )
    page.note(
        "H grows as m, so at one η a wider network moves further a step, which may be the reason, too. "
        "Final loss of the narrowest over that of the widest: "
        + "; ".join(f"{name} {_advantage(row)}" for name, row in rows.items())
        + "."
    )
