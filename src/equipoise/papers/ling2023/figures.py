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
from ...plots.curves import BAND, Panel, panels
from ...solve import Stop
from ...train import gradient_descent
from ..framework.experiments import Context, Measured, Progress, register
from ..framework.images import room, two_classes, two_classes_in_words
from ..framework.page import Page, number
from ..framework.seeds import compared, even, spread
from ..framework.small import moments, norm, seeded
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
    """1/λ_max(H) at a start of this width: half of the largest step at which the first steps are stable."""
    size = sizes(context)
    inputs = {"data": _source(context, name, size["n"], size["d"]), "width": width, "sigma_w2": S2}

    def compute(progress: Progress) -> Measured:
        X, _ = instance(context, name, 0, size["n"], size["d"])
        model = GaussianReLU(X.shape[1], width, S2, generator=seeded(0))
        return {"step": 1 / tangent_kernel(model, X).lambda_max}

    return context.unit("ling2023.step", f"{name}-m{width}", inputs, compute)["step"]


def curve(context: Context, name: str, *, width: int, step: float, seed: int) -> Measured:
    """One run: loss at every step; ‖W(τ)‖, λ_τ = λ_min(G(τ)) and ‖G(τ) − G(0)‖_F/‖G(0)‖_F at some."""
    size = sizes(context)
    n, d = size["n"], size["d"]
    run: dict[str, Any] = {"width": width, "step": step, "seed": seed, "steps": size["steps"]}
    compute = lambda progress: _descend(*instance(context, name, seed, n, d), progress, **run)
    inputs = {"data": _source(context, name, n, d), **run, "sigma_w2": S2}
    return context.unit("ling2023.descent", f"{name}-m{width}-step{step:.3g}-seed{seed}", inputs, compute)


def _descend(
    X: Tensor, y: Tensor, progress: Progress, *, width: int, step: float, seed: int, steps: int
) -> Measured:
    model = GaussianReLU(X.shape[1], width, S2, generator=seeded(seed))
    measured_at = moments(steps, MOMENTS)
    found: dict[str, list[float]] = {"at": [], "norm": [], "lambda": [], "moved": []}
    first: list[Tensor] = []

    def look(k: int, loss: float) -> None:
        progress(k / max(steps, 1))
        if k in measured_at and math.isfinite(loss):
            Z = model.solve(X).value
            assert isinstance(Z, Tensor)
            gram = Z @ Z.T
            first.append(gram)
            moved = ((gram - first[0]).norm() / first[0].norm()).item()
            for key, value in zip(found, (k, norm(model.W), _lambda_min(Z), moved), strict=True):
                found[key].append(value)

    stop = Stop(max_steps=2000, patience=200)
    history = gradient_descent(model, X, y, steps, step, measure=0, stop=stop, progress=look)
    return {**found, "loss": history.loss, "stopped": history.stopped.split("\n")[0], "N": len(X)}


def _lambda_min(Z: Tensor) -> float:
    """λ_min(ZZᵀ), which is 0 if the network has fewer units than samples."""
    return 0.0 if Z.shape[0] > Z.shape[1] else torch.linalg.svdvals(Z.double())[-1].item() ** 2


# -- figure 1 ------------------------------------------------------------------------------------------------


def _judge_fig1(measured: Measured) -> list[Judgement]:
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
    """λ at the end over λ₀, if all λ in between are larger than rounding."""
    ratios = [r["lambda"][-1] / r["lambda"][0] for r in runs if min(r["lambda"]) > rounding]
    return float(np.mean(ratios)) if ratios else None


def _finals(runs: Sequence[Measured]) -> list[float]:
    return [r["loss"][-1] / r["N"] if not r["stopped"] else math.inf for r in runs]


def _panels(name: str, row: Measured) -> list[Panel]:
    """Losses at one η and at η ∝ 1/m, ‖W(τ)‖ and λ_min(G(τ)), which is left out where it is rounding."""

    def along(runs: Sequence[Measured], key: str) -> tuple[list[int], np.ndarray]:
        values = even([r[key] for r in runs])
        return runs[0]["at"][: values.shape[1]], values

    losses = lambda runs: even([r["loss"] for r in runs]) / [[r["N"]] for r in runs]
    by_width = row["same"].items()
    same, scaled = ({label: losses(runs) for label, runs in row[key].items()} for key in ("same", "scaled"))
    size = {label: along(runs, "norm") for label, runs in by_width}
    least = {label: along(runs, "lambda") for label, runs in by_width}
    known = {label: one if np.min(one[1]) > _rounding(row) else None for label, one in least.items()}
    return [
        Panel(same, "step", "loss / N", f"{name}: one η for all", log_y=True),
        Panel(scaled, "step", "loss / N", f"{name}: η ∝ 1/m", log_y=True),
        Panel(size, "step", "‖W(τ)‖", name, rules={"": 1.0}),
        Panel(known, "step", "λₘᵢₙ(G(τ))", name, log_y=True),
    ]


def _row(name: str, label: str, row: Measured) -> Measured:
    """What the runs of one width came to, with one η for all and with η ∝ 1/m."""
    same, scaled = row["same"][label], row["scaled"][label]
    cells: Measured = {"data": name, "width": label, "η": row["step"], "seeds": len(same)}
    kinds = {"one η for all": same, "η ∝ 1/m": scaled}
    for words, runs in kinds.items():
        cells[f"loss / N, {words}"], cells[f"± sd, {words}"] = spread(_finals(runs))
    cells |= {f"lost, {words}": sum(bool(r["stopped"]) for r in runs) for words, runs in kinds.items()}
    return cells | {
        "largest ‖W‖": max(v for r in same for v in r["norm"]),
        "λ at the end / λ₀": _kept(same, _rounding(row)),
        "‖G − G(0)‖/‖G(0)‖ at most": max(v for r in same for v in r["moved"]),
    }


def _draw_fig1(measured: Measured, page: Page) -> None:
    rows = measured["data"]
    words = f"{BAND} λₘᵢₙ(G) is left out where it is 0, up to rounding, as for m < n."
    for name, row in rows.items():
        page.figure(f"curves-{name}", panels(*_panels(name, row), one_legend=True), words)
    page.table(
        "final",
        [_row(name, label, row) for name, row in rows.items() for label in row["same"]],
        "After the last step: mean and standard deviation over the seeds that came to it. No η is given: "
        "ours is 1/λ_max(H) of the widest start.",
    )
    advantages = "; ".join(f"{name} {_advantage(row)}" for name, row in rows.items())
    page.note(
        "H grows as m, so at one η a wider network moves further a step, which may be the reason, too. "
        f"Final loss of the narrowest over that of the widest: {advantages}."
    )


@register("ling2023.fig1", "Figure 1: width, on synthetic data, MNIST and CIFAR10", _judge_fig1, _draw_fig1)
def fig1(context: Context) -> Measured:
    """Wider networks converge faster to a smaller training loss, as the authors believe because Gram matrices
    become more stable; ‖W(τ)‖ stays below 1 throughout."""
    widths = sizes(context)["widths"]
    seeds = context.seeds(tiny=1, small=3, medium=1, paper=5)
    images = context.datasets("mnist", "cifar10")
    found: Measured = {"data": {}}
    for name in images if context.settings.data else [SYNTHETIC, *images]:
        step = stable_step(context, name, widths[-1])
        row: Measured = {"step": step, "widths": widths}
        for key, power in (("same", 0), ("scaled", 1)):
            steps = {m: step * (widths[-1] / m) ** power for m in widths}
            row[key] = {
                f"m = {m}": [curve(context, name, width=m, step=steps[m], seed=s) for s in seeds]
                for m in widths
            }
        found["data"][name] = row
    return found
