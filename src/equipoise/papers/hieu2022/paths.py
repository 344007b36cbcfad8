"""z^[0], z^[1], … → z*: the solver's path, by start and over training    [hieu2022, Figures 4.1-4.3]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...explore import Paths, equilibria_plane, solver_paths
from ...models.zoo import ResidualConv
from ...plots import LIGHT
from ...plots.curves import BAND, Panel, panels
from ...plots.plane import draw_path
from ...plots.style import MARKERS, in_pairs, linear, shared_legend
from ...solve import Stop
from ..framework.experiments import Context, Measured, Progress, register
from ..framework.images import accuracy, images, images_in_words
from ..framework.page import Page
from ..framework.seeds import gain, mean_error
from ..framework.verdicts import BELOW, Judgement, below, judged
from .training import FAR, RATES, SEARCH, build, fit

STARTS = {"std 1": 1.0, "std 0.1": 0.1, "std 0.01": 0.01}
SHOWN = 12  # trajectories in a picture
SEEN = 400  # images whose equilibria are compared; of the first 100 the paths are measured


@torch.no_grad()
def paths(model: ResidualConv, X: Tensor, steps: int, rtol: float = 2e-6) -> Paths:
    """The solver's iterates from zero for the images X, each for at most `steps` steps."""
    (features,) = model.injection(X)
    stop = Stop(rtol=rtol, max_steps=steps, patience=steps, growth=1e12)
    return solver_paths(model.cell, torch.zeros_like(features), (features,), stop=stop)


def _shape(states: Sequence[np.ndarray]) -> dict[str, float]:
    """How a path goes: the share of its length in the first step, and length over distance."""
    moves = [np.linalg.norm(np.diff(z, axis=0), axis=1) for z in states if len(z) > 1]
    first = np.mean([m[0] / max(m.sum(), 1e-300) for m in moves])
    ends = [np.linalg.norm(z[-1] - z[0]) for z in states if len(z) > 1]
    wander = np.mean([m.sum() / max(e, 1e-300) for m, e in zip(moves, ends, strict=True)])
    return {"first": float(first), "wander": float(wander)}


# -- figures 4.1 and 4.2: the start --------------------------------------------------------------------------


def _starts(context: Context) -> Measured:
    (name,) = context.datasets("mnist")[:1]
    rows, steps = context.pick(tiny=4, small=32, medium=128), context.pick(tiny=10, small=100)
    size = {"rows": rows, "steps": steps, "channels": context.pick(tiny=4, small=16, medium=32)}
    source = context.source(name, images_in_words(context.load(name), 200, rows))
    found: Measured = {"data": name, "steps": steps, "starts": {}}

    def unit(std: float, seed: int) -> Measured:
        def compute(progress: Progress) -> Measured:
            _, _, X, _ = images(context.load(name), 200, rows, seed)
            found = paths(build(X, size["channels"], seed, std=std), X, steps)
            plane = found.plane()
            return {
                "residual": found.mean_residual(steps),
                "paths": [plane.coordinates(z) for z in found.states[:SHOWN]],
                "shares": plane.shares,
                **_shape(found.states),
            }

        inputs = {"data": source, **size, "std": std, "seed": seed}
        return context.unit("hieu2022.start", f"{name}-std{std:g}-seed{seed}", inputs, compute)

    for words, std in STARTS.items():
        found["starts"][words] = [unit(std, seed) for seed in context.seeds(tiny=1, small=3, medium=5)]
    return found


def _judge_residuals(measured: Measured) -> list[Judgement]:
    finite = lambda value: math.inf if value is None else value
    last = {w: [finite(r["residual"][-1]) for r in runs] for w, runs in measured["starts"].items()}
    written = lambda v: f"{v:.1e}" if math.isfinite(v) else "not finite"
    shown = {w: f"{written(min(v))} to {written(max(v))}" for w, v in last.items()}
    return [
        judged(
            "from N(0, 1) weights the iteration does not settle",
            min(last["std 1"]) >= 1e-2,
            paper="§4.1.1, Figure 4.1: more chaotic in the normal initialization",
            measured=f"relative residual after {measured['steps']} Anderson steps {shown['std 1']}, by seed",
            tolerance="at least 10⁻² for every seed",
        ),
        judged(
            "from small weights it converges",
            max(last["std 0.01"]) <= 1e-4,
            paper="§4.1.1, Figure 4.1: weights need smaller values, N(0, 0.01)",
            measured=f"standard deviation .01: {shown['std 0.01']}; variance .01: {shown['std 0.1']}",
            tolerance="at most 10⁻⁴ for every seed, with .01 read as the standard deviation",
        ),
    ]


def _draw_residuals(measured: Measured, page: Page) -> None:
    residuals = lambda runs: np.maximum(np.array([r["residual"] for r in runs], dtype=float), 1e-12)
    lines = {f"weights of {words}": residuals(runs) for words, runs in measured["starts"].items()}
    panel = Panel(lines, "solver step", "‖f(z) − z‖ / ‖z‖", measured["data"], log_y=True)
    page.figure("residuals", panels(panel), f"Mean over images. {BAND}")


@register(
    "hieu2022.fig4.1", "Figure 4.1: residuals by the size of the start", _judge_residuals, _draw_residuals
)
def fig4_1(context: Context) -> Measured:
    """The solver does not settle from weights N(0, 1), and converges quickly from small ones."""
    return _starts(context)


def _judge_paths(measured: Measured) -> list[Judgement]:
    of = lambda words, key: [r[key] for r in measured["starts"][words]]
    first, straight, erratic = of("std 0.01", "first"), of("std 0.01", "wander"), of("std 1", "wander")
    left = np.mean(np.array([r[:4] for r in of("std 0.01", "residual")], dtype=float), axis=0)[1:]
    return [
        judged(
            "from small weights the state is steady after the first step",
            below([0.9] * len(first), first),
            paper="§4.1.1, Figure 4.2: quite steady after the first step",
            measured=f"{mean_error([100 * f for f in first])} % of the way is the first step",
            tolerance=f"more than 90 %, mean over images, {BELOW}",
            because=lambda: (
                "the cell is no constant, however small its weights, and the steps after the first are short "
                f"but not nothing: ‖f(z) − z‖/‖z‖ is {', '.join(f'{v:.1%}' for v in left)} after them"
            ),
        ),
        judged(
            "from N(0, 1) weights the way is erratic",
            below([3 * w for w in straight], erratic),
            paper="§4.1.1, Figure 4.2: more chaotic in the normal initialization",
            measured=f"length over distance {mean_error(erratic, '.2f')} against "
            f"{mean_error(straight, '.2f')}",
            tolerance=f"more than three times as long, relative to the distance between its ends, {BELOW}",
        ),
    ]


def _draw_paths(measured: Measured, page: Page) -> None:
    figure, axes = in_pairs(len(measured["starts"]), height=3.8)
    for ax, (words, runs) in zip(axes, measured["starts"].items(), strict=True):
        run = runs[0]
        for at, path in enumerate(run["paths"][: len(LIGHT.series)]):
            draw_path(ax, path, at=at)
        _frame(ax, run["shares"], f"weights of {words}")
    words = "Solver paths of images of one network, one colour for each image, from the ring to the dots"
    page.figure("paths", figure, f"{words}, in the plane of all their iterates.")


def _frame(ax: Any, shares: Sequence[float], title: str) -> None:
    linear(ax, f"first component ({shares[0]:.0%})", f"second component ({shares[1]:.0%})", title)


@register("hieu2022.fig4.2", "Figure 4.2: trajectories by the size of the start", _judge_paths, _draw_paths)
def fig4_2(context: Context) -> Measured:
    """In the plane of principal components the path is erratic from N(0, 1), and one leap from small
    weights."""
    return _starts(context)


# -- figure 4.3: over training -------------------------------------------------------------------------------


def _trained(context: Context, name: str, size: Measured, seed: int, progress: Progress) -> Measured:
    rows, epochs = size["rows"], size["epochs"]
    X, y, X_test, y_test = images(context.load(name), rows, min(500, rows), seed)
    model = build(X, size["channels"], seed)
    moments: list[Measured] = []
    kept = sorted({0, 1, epochs // 3, epochs})

    def look(epoch: int) -> None:
        progress(epoch / epochs)
        found = paths(model, X[:100], 100, rtol=1e-3)
        solution = model.solve(X[:SEEN], solver=SEARCH, stop=FAR)
        assert isinstance(solution.value, Tensor)
        there = solution.converged
        row = {
            "epoch": epoch,
            "steps": found.solution.steps.double().mean(),
            "unsettled": len(found.solution.failed_rows) / len(found.states),
            "unknown": float((~there).double().mean()),
            **_classes(solution.value[there].flatten(1), y[:SEEN][there]),
            **_shape(found.states),
        }
        if epoch in kept:
            plane = equilibria_plane(np.concatenate(found.states))
            row["paths"] = [plane.coordinates(z) for z in found.states[:60]]
            row["shares"] = plane.shares
        moments.append(row)

    losses = fit(model, X, y, epochs, seed=seed, rate=size["rate"], after=look)
    end = {"loss": losses, "accuracy": accuracy(model, X_test, y_test)}
    return {"moments": moments, "labels": y[:60], **end}


def _classes(points: Tensor, labels: Tensor) -> dict[str, float]:
    """tr S_B / tr S_T, the share of variance that lies between classes; and that of points whose nearest
    other point has their class."""
    centred = (points - points.mean(dim=0)).double()
    own = torch.zeros_like(centred)
    for kind in labels.unique():
        own[labels == kind] = centred[labels == kind].mean(dim=0)
    gaps = torch.cdist(centred, centred).fill_diagonal_(torch.inf)
    return {
        "between": (own.square().sum() / centred.square().sum().clamp_min(1e-300)).item(),
        "neighbour": (labels[gaps.argmin(dim=1)] == labels).double().mean().item(),
    }


def _judge_training(measured: Measured) -> list[Judgement]:
    runs = [r["moments"] for r in measured["runs"]]
    by_seed = lambda key, at: [float(moments[at][key]) for moments in runs]
    of = lambda key, at: float(np.mean(by_seed(key, at)))
    change = lambda key, at: gain(by_seed(key, at), by_seed(key, 0))
    at_three = lambda key: f"{of(key, 0):.0%}, {of(key, 1):.0%}, {of(key, -1):.0%}"
    return [
        judged(
            "the solver needs more steps as training goes on",
            below([1.2 * steps for steps in by_seed("steps", 0)], by_seed("steps", -1)),
            paper="§4.1.2, Figure 4.3: the dynamics become more complex",
            measured=f"{of('steps', 0):.1f} → {of('steps', -1):.1f} steps to 10⁻³ ({change('steps', -1)}), "
            f"those not there after 100 ({of('unsettled', -1):.0%}) counted as 100; test accuracy "
            f"{np.mean([r['accuracy'] for r in measured['runs']]):.1%}",
            tolerance=f"more than 1.2 times those of the start, {BELOW}",
        ),
        judged(
            "the path is less of a single leap",
            below(by_seed("first", -1), by_seed("first", 0)),
            paper="§4.1.2, Figure 4.3: a single leap at initialization, orbits near the fixed points later",
            measured=f"share of the first step {of('first', 0):.0%} → {of('first', -1):.0%} "
            f"({change('first', -1)}); length over distance {of('wander', 0):.2f} → {of('wander', -1):.2f}",
            tolerance=f"a smaller share at the end, {BELOW}",
        ),
        judged(
            "classes are in different regions after the first epoch",
            below(by_seed("between", 0), by_seed("between", 1)),
            paper="§4.1.2, Figure 4.3: moved to a different region after the first epoch",
            measured=f"variance of equilibria between classes: {of('between', 0):.0%} before, "
            f"{of('between', 1):.0%} after one epoch ({change('between', 1)}), {of('between', -1):.0%} at "
            f"the end; nearest neighbour of the same class: {at_three('neighbour')}; not found at the end: "
            f"{of('unknown', -1):.1%}",
            tolerance=f"a larger share of the variance after one epoch than before, {BELOW}; of the "
            "equilibria of training images that are found, to 10⁻²",
        ),
    ]


def _draw_training(measured: Measured, page: Page) -> None:
    run = measured["runs"][0]
    shown = [m for m in run["moments"] if "paths" in m]
    figure, axes = in_pairs(len(shown), height=3.8)
    for ax, moment in zip(axes, shown, strict=True):
        for kind, path in sorted(zip(run["labels"], moment["paths"], strict=False), key=lambda pair: pair[0]):
            line, colour = np.array(path, dtype=float), LIGHT.colour(kind)
            ax.plot(line[:, 0], line[:, 1], linewidth=0.6, alpha=0.35, color=colour)
            mark: Any = {"marker": MARKERS[kind % len(MARKERS)], "markersize": 5, "linestyle": "none"}
            ax.plot(*line[-1], color=colour, alpha=0.85, label=str(kind), **mark)
        words = f"after epoch {moment['epoch']}" if moment["epoch"] else "before training"
        _frame(ax, moment["shares"], words)
    shared_legend(figure, axes)
    words = f"Solver paths of {measured['data']} images from zero; each ends in the mark of its class."
    page.figure("paths", figure, words)
    what = {
        "steps": "solver steps to 10⁻³ (≤ 100)",
        "first": "share of the first step",
        "between": "variance between classes",
        "neighbour": "nearest neighbour of same class",
    }
    along = lambda moments, key: ([m["epoch"] for m in moments], [m[key] for m in moments])
    of = lambda key: {f"seed {i}": along(r["moments"], key) for i, r in enumerate(measured["runs"])}
    figure = panels(*(Panel(of(key), "epoch", words) for key, words in what.items()))
    page.figure("training", figure, "Over training, by seed: how the solver goes, and how classes part.")
    ends = [
        {"seed": i, "training loss": r["loss"][-1], "test accuracy": r["accuracy"]}
        for i, r in enumerate(measured["runs"])
    ]
    page.table("final", ends, "At the end.")


@register(
    "hieu2022.fig4.3", "Figure 4.3: trajectories over training", _judge_training, _draw_training, minutes=1.5
)
def fig4_3(context: Context) -> Measured:
    """Over training the classes move apart within an epoch, and the solver's path gets more complex."""
    (name,) = context.datasets("mnist")[:1]
    rows = context.pick(tiny=100, small=1500, medium=5000)
    size = {
        "rows": rows,
        "epochs": context.pick(tiny=1, small=3, medium=40),
        "channels": context.pick(tiny=4, small=8, medium=32),
        "rate": context.pick(**RATES),
    }
    source = context.source(name, images_in_words(context.load(name), rows, min(500, rows)))
    stops = [repr(part) for part in (FAR, *SEARCH)]
    found: Measured = {"data": name, "runs": []}
    for seed in context.seeds(tiny=1, small=3):
        inputs = {"data": source, **size, "seed": seed, "seen": SEEN, "stops": stops}
        compute = lambda progress, seed=seed: _trained(context, name, size, seed, progress)
        found["runs"].append(context.unit("hieu2022.training", f"{name}-seed{seed}", inputs, compute))
    return found
