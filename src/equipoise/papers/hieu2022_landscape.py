"""Φ(s, t) = L(θ* + s d₁ + t d₂): a DEQ beside its cell repeated 6, 11 and 18 times    [hieu2022, Figure 4.4].

Flatness is a number here: the share of the slice [−1, 1]² on which the loss is at most LEVEL, half of what
guessing gives. Where an image's equilibrium is not found the loss of the DEQ is not known: its share lies
between that with all such points high and that with all low. The models of a seed share their start and the
draws of their directions, so that differences are taken within a seed, and their error over seeds.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.ticker import MaxNLocator
from torch import nn

from ..explore import landscape, module_loss, random_directions
from ..models.conv import ImageModel
from ..plots import new_figure
from ..plots.curves import draw, finish
from ..plots.style import LIGHT, dress, label
from ..plots.surfaces import colours
from ..solve import Stop
from .experiments import (
    Context,
    Judgement,
    Measured,
    Progress,
    judged,
    register,
    standard_error,
    with_error,
)
from .hieu2022_training import FAR, RATES, SEARCH, build, fit
from .page import Page
from .xie2021_images import accuracy, images

LEVEL = math.log(10) / 2
MODELS: dict[str, int | None] = {"repeat-6": 6, "repeat-11": 11, "repeat-18": 18, "DEQ": None}
STOP = Stop(rtol=1e-2, max_steps=100)


def dataset(context: Context) -> str:
    """The first asked for; else CIFAR10, for which the digits stand at the smaller scales."""
    if context.settings.data or context.pick(tiny=False, medium=True):
        return context.datasets("cifar10")[0]
    context.notes.append("At this scale the digits stand for CIFAR10; medium and paper take CIFAR10.")
    return "digits"


def slice_loss(X: torch.Tensor, y: torch.Tensor) -> Any:
    """Mean cross-entropy, from zero states; of a DEQ only where every image's equilibrium is found."""

    def loss(model: nn.Module, state: Any) -> float:
        if not isinstance(model, ImageModel):
            return F.cross_entropy(model(X), y).item()
        solution = model.solve(X, solver=SEARCH, stop=FAR).raise_if_failed()
        return F.cross_entropy(model.readout(solution.value), y).item()

    return module_loss(loss)


def _unit(context: Context, name: str, words: str, seed: int, size: dict[str, Any]) -> Measured:
    inputs = {"data": context.source(name), "model": words, "seed": seed, **size}
    inputs["stops"] = [repr(part) for part in (STOP, FAR, *SEARCH)]

    def compute(progress: Progress) -> Measured:
        dataset = context.load(name)
        X, y, X_test, y_test = images(dataset, size["rows"], 500, seed)
        deq, repeats = build(X, size["channels"], seed, stop=STOP), MODELS[words]
        model: nn.Module = deq if repeats is None else deq.repeated(repeats)
        how = {"seed": seed, "rate": size["rate"], "progress": lambda share: progress(share / 2)}
        losses = fit(model, X, y, size["epochs"], **how)
        axis = np.linspace(-1, 1, size["grid"])
        vectors = [n for n, p in model.named_parameters() if p.ndim < 2]
        some, labels = X[: size["seen"]], y[: size["seen"]]
        slices = []
        for pair in range(size["pairs"]):
            generator = torch.Generator().manual_seed(1000 * seed + pair)
            directions = random_directions(model, 2, generator, ignore=vectors)
            found = landscape(model, slice_loss(some, labels), directions, axis, axis)
            known = float(np.mean(~found.masked))
            share = found.share_below(LEVEL)
            slices.append({"loss": found.to_dict()["loss"], "known": known, "share": share})
            slices[-1]["error"] = found.share_error(LEVEL)
            progress(0.5 + (pair + 1) / size["pairs"] / 2)
        return {
            "axis": axis,
            "slices": slices,
            "training_loss": losses[-1],
            "accuracy": accuracy(model, X_test, y_test),
        }

    return context.unit("hieu2022.landscape", f"{name}-{words}-seed{seed}", inputs, compute)


@register(
    "hieu2022.fig4.4",
    "Figure 4.4: the landscape of a DEQ and of weight-tied networks",
    "Around the minimiser the region of small loss grows with the number of repeats, up to the DEQ.",
    judge=lambda measured: judge_basins(measured),
    draw=lambda measured, page: draw_basins(measured, page),
    minutes=3,
)
def fig4_4(context: Context) -> Measured:
    name = dataset(context)
    size = {
        "rows": context.pick(tiny=100, small=1000, medium=4000),
        "epochs": context.pick(tiny=1, small=8, medium=15, paper=50),
        "channels": context.pick(tiny=4, small=8, medium=16, paper=32),
        "grid": context.pick(tiny=3, small=9, medium=21, paper=51),
        "rate": context.pick(**RATES),
        "pairs": context.pick(tiny=1, small=2, medium=3),
        "seen": context.pick(tiny=20, small=60, medium=200),
    }
    seeds = context.seeds(tiny=1, small=4)
    return {
        "data": name,
        "models": {words: [_unit(context, name, words, s, size) for s in seeds] for words in MODELS},
    }


def _mean(runs: list[Measured], key: str) -> list[float]:
    """Of each seed, over its slices."""
    return [float(np.mean([s[key] for s in r["slices"]])) for r in runs]


def _among(runs: list[Measured]) -> list[float]:
    """Of each seed, the share of small loss among the points known."""
    pairs = zip(_mean(runs, "share"), _mean(runs, "known"), strict=True)
    return [share / known if known else 0.0 for share, known in pairs]


def _gain(more: list[float], less: list[float]) -> tuple[float, float | None]:
    """The mean over seeds of more − less, and its standard error."""
    gains = [a - b for a, b in zip(more, less, strict=True)]
    return float(np.mean(gains)), standard_error(gains)


def judge_basins(measured: Measured) -> list[Judgement]:
    models = measured["models"]
    shares = {words: _mean(runs, "share") for words, runs in models.items()}
    shown = ", ".join(
        f"{w}: {with_error(float(np.mean(v)), standard_error(v), '.3f')}" for w, v in shares.items()
    )
    steps = [_gain(b, a) for a, b in pairwise(shares.values())]
    grows = all(error is not None and gain > 2 * error for gain, error in steps)
    known = float(np.mean(_mean(models["DEQ"], "known")))
    low, error = _gain(shares["DEQ"], shares["repeat-6"])
    high = low + 1 - known
    gain, spread = _gain(_among(models["DEQ"]), shares["repeat-6"])
    sure = error is not None and low > 2 * error
    if sure:
        reason = ""
    elif error is None:
        reason = "one seed has no error"
    elif high <= 2 * error:
        reason = "it is not larger at this size, even if every point that is not known were low"
    else:
        reason = "it is not larger at this size among the points known; those not known leave it open"
    return [
        judged(
            "the region of small loss grows from 6 to 11 to 18 repeats to the DEQ",
            grows,
            paper="expands with the number of repeats",
            measured=f"share of [−1, 1]² with a loss of at most {LEVEL:.2f}: {shown}; steps "
            f"{', '.join(with_error(g, e, '+.3f') for g, e in steps)}",
            tolerance="each step up by more than two standard errors of its differences within seeds; points "
            "not known count as high",
            reason="" if grows else "not at this size: see the errors of the steps",
        ),
        judged(
            "the DEQ has a larger region of small loss than repeat-6",
            sure,
            paper="larger",
            measured=f"difference {with_error(low, error, '+.3f')} with points not known as high, "
            f"{high:+.3f} as low, {with_error(gain, spread, '+.3f')} among those known; "
            f"{known:.0%} of the DEQ's points known",
            tolerance="more than two standard errors over seeds, with points not known counted as high",
            reason=reason,
        ),
    ]


def draw_slice(ax: Any, axis: np.ndarray, loss: np.ndarray, top: float, title: str) -> Any:
    """A slice from above, light is low: a line at LEVEL, + in the middle, crosses on what is not known."""
    values = np.ma.masked_invalid(loss)
    hidden = np.ma.getmaskarray(values)
    ax.grid(False)
    ax.set_facecolor(LIGHT.masked)
    filled = None
    if not hidden.all():
        levels = np.linspace(0, top, 17)
        how = {"corner_mask": False}
        filled = ax.contourf(axis, axis, values.clip(0, top), levels=levels, cmap=colours(LIGHT), **how)
        if float(values.min()) < LEVEL < float(values.max()):
            ax.contour(axis, axis, values, levels=[LEVEL], colors=LIGHT.series[1], **how)
    S, T = np.meshgrid(axis, axis)
    ax.scatter(S[hidden], T[hidden], marker="x", s=16, linewidths=1.0, color=LIGHT.ink, clip_on=False)
    ax.plot(0, 0, "+", color=LIGHT.ink, markersize=9)
    ax.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1), aspect="equal")
    label(ax, "first direction", "second direction", title)
    return filled


def colour_bar(figure: Any, axes: np.ndarray, filled: Any) -> None:
    bar = figure.colorbar(filled, ax=list(axes.flat), pad=0.02, aspect=24, ticks=MaxNLocator(5))
    bar.outline.set_visible(False)
    dress(bar.ax)
    bar.ax.grid(False)
    bar.ax.yaxis.label.set(text="loss")


def draw_basins(measured: Measured, page: Page) -> None:
    models = measured["models"]
    figure, axes = new_figure(1, len(models), width=3.3, height=3.6, sharey=True)
    top = math.log(10) * 2
    for ax, (words, runs) in zip(axes[0], models.items(), strict=True):
        first = runs[0]["slices"][0]
        title = f"{words}: {first['share']:.0%} low" + (
            f", {first['known']:.0%} known" if words == "DEQ" else ""
        )
        loss = np.array(first["loss"], dtype=float)
        filled = draw_slice(ax, np.array(runs[0]["axis"]), loss, top, title)
    if filled is not None:
        colour_bar(figure, axes, filled)
    page.figure(
        "landscapes",
        figure,
        f"Loss on a slice around the trained weights (+), first seed and pair, cut at {top:.1f}. The line is "
        f"at {LEVEL:.2f}; crosses on grey are points where an image's equilibrium was not found.",
    )
    figure, axes = new_figure(1, 1, width=5.6)
    places = np.arange(len(models))
    for at in range(len(models["DEQ"])):
        draw(
            axes[0, 0], (places, [_mean(runs, "share")[at] for runs in models.values()]), f"seed {at}", at=at
        )
    lows, knowns = _mean(models["DEQ"], "share"), _mean(models["DEQ"], "known")
    for at, (share, known) in enumerate(zip(lows, knowns, strict=True)):
        axes[0, 0].plot(
            [places[-1]] * 2, [share, share + 1 - known], color=LIGHT.colour(at), linewidth=4, alpha=0.4
        )
    finish(figure, axes[0, 0], x="", y=f"share with a loss ≤ {LEVEL:.2f}", title=measured["data"])
    axes[0, 0].set_xticks(places, list(models))
    page.figure(
        "shares",
        figure,
        "The share of small loss by model, a line a seed. Bars: what it is if points not known were low.",
    )
    page.table(
        "flatness",
        [
            "model",
            "seeds",
            "share low",
            "standard error",
            "among known",
            "grid error",
            "known",
            "loss",
            "accuracy",
        ],
        [
            [
                words,
                len(runs),
                float(np.mean(_mean(runs, "share"))),
                standard_error(_mean(runs, "share")),
                float(np.mean(_among(runs))),
                float(np.mean(_mean(runs, "error"))),
                float(np.mean(_mean(runs, "known"))),
                float(np.mean([r["training_loss"] for r in runs])),
                float(np.mean([r["accuracy"] for r in runs])),
            ]
            for words, runs in models.items()
        ],
        f"{measured['data']}: share of the slice with a loss of at most {LEVEL:.3f}, of all its points and "
        "of those known; training loss, test accuracy. Means over seeds, and over directions within each.",
    )
