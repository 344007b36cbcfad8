"""Φ(s, t) = L(θ* + s d₁ + t d₂): a DEQ beside its cell repeated 6, 11 and 18 times    [hieu2022, Figure 4.4].

Flatness is a number here: the share of the slice [−1, 1]² on which the loss is at most LEVEL, half of what
guessing gives. Where an image's equilibrium is not found the loss of the DEQ is not known, and the point open
unless the other images alone are above LEVEL: the share lies between that with all open points high and that
with all low. The models of a seed share their start and the draws of their directions, so that differences
are taken within a seed, and their error over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.ticker import MaxNLocator
from torch import nn

from ...explore import landscape, module_loss, random_directions
from ...models.images import ImageModel
from ...plots import new_figure
from ...plots.curves import draw, finish
from ...plots.style import LIGHT, dress, label
from ...plots.surfaces import colours
from ...solve import Stop
from ..framework.experiments import Context, Measured, Progress, register
from ..framework.images import accuracy, images, images_in_words
from ..framework.page import Page
from ..framework.verdicts import BELOW, FALLING, Judgement, below, falling, judged, standard_error, with_error
from .training import FAR, RATES, SEARCH, build, fit

LEVEL = math.log(10) / 2
MODELS: dict[str, int | None] = {"repeat-6": 6, "repeat-11": 11, "repeat-18": 18, "DEQ": None}
STOP = Stop(rtol=1e-2, max_steps=100)


def dataset(context: Context) -> str:
    """The first asked for; else CIFAR10, for which the digits stand at the smaller scales."""
    if context.settings.data or context.pick(tiny=False, medium=True):
        return context.datasets("cifar10")[0]
    context.notes.append("At this scale the digits stand for CIFAR10; medium and paper take CIFAR10.")
    return "digits"


def slice_loss(X: torch.Tensor, y: torch.Tensor, floors: list[float] | None = None) -> Any:
    """Mean cross-entropy, from zero states; of a DEQ only where every image's equilibrium is found.

    Of a point where one is not, `floors` is given what the mean is at least: no image's loss is below 0.
    """

    def loss(model: nn.Module, state: Any) -> float:
        if not isinstance(model, ImageModel):
            return F.cross_entropy(model(X), y).item()
        solution = model.solve(X, solver=SEARCH, stop=FAR)
        losses = F.cross_entropy(model.readout(solution.value), y, reduction="none")
        if solution.failed_rows and floors is not None:
            floors.append(losses[solution.converged].sum().item() / len(y))
        solution.raise_if_failed()
        return losses.mean().item()

    return module_loss(loss)


def _unit(context: Context, name: str, words: str, seed: int, size: dict[str, Any]) -> Measured:
    part = images_in_words(context.load(name), size["rows"], 500)
    inputs = {"data": context.source(name, part), "model": words, "seed": seed, **size}
    inputs["level"] = LEVEL
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
            floors: list[float] = []
            found = landscape(model, slice_loss(some, labels, floors), directions, axis, axis)
            known = float(np.mean(~found.masked))
            share = found.share_below(LEVEL)
            high = sum(floor > LEVEL for floor in floors) / found.loss.size
            row = {"loss": found.to_dict()["loss"], "known": known, "share": share, "open": 1 - known - high}
            slices.append(row | {"error": found.share_error(LEVEL)})
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
    least="small",
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


def gain(more: Sequence[float], less: Sequence[float]) -> tuple[float, float | None]:
    """The mean over seeds of more − less, and its standard error."""
    gains = [a - b for a, b in zip(more, less, strict=True)]
    return float(np.mean(gains)), standard_error(gains)


def signed(gain: float, error: float | None, form: str = ".3f") -> str:
    return f"{'+' if gain >= 0 else '−'}{with_error(abs(gain), error, form)}"


def bracketed(low: bool | None, high: bool | None) -> bool | None:
    """The verdict if it is the same with all open points high and with all low."""
    return low if low is high else None


OPEN = "the same verdict whether points that are open count as high or as low"


def judge_basins(measured: Measured) -> list[Judgement]:
    models = measured["models"]
    shares = {words: _mean(runs, "share") for words, runs in models.items()}
    shown = ", ".join(
        f"{w}: {with_error(float(np.mean(v)), standard_error(v), '.3f')}" for w, v in shares.items()
    )
    opens, known = (_mean(models["DEQ"], key) for key in ("open", "known"))
    least, most = shares["DEQ"], [s + o for s, o in zip(shares["DEQ"], opens, strict=True)]
    tied = [v for words, v in shares.items() if words != "DEQ"]
    grows = bracketed(*(falling([deq, *reversed(tied)]) for deq in (least, most)))
    larger = bracketed(*(below(shares["repeat-6"], deq) for deq in (least, most)))
    steps = ", ".join(signed(*gain(b, a)) for a, b in pairwise(shares.values()))
    return [
        judged(
            "the region of small loss grows from 6 to 11 to 18 repeats to the DEQ",
            grows,
            paper="§4.2.1, Figure 4.4: expands as the number of repetitions increases",
            measured=f"share of [−1, 1]² with a loss of at most {LEVEL:.2f}: {shown}; steps {steps}",
            tolerance=f"from the DEQ down to repeat-6: {FALLING}; {OPEN}",
        ),
        judged(
            "the DEQ has a larger region of small loss than repeat-6",
            larger,
            paper="§4.2.1, Figure 4.4: this suggests the superiority of training DEQs",
            measured=f"difference {signed(*gain(least, shares['repeat-6']))} with open points as high, "
            f"{signed(*gain(most, shares['repeat-6']))} as low; "
            f"{signed(*gain(_among(models['DEQ']), shares['repeat-6']))} among those known; "
            f"{np.mean(known):.0%} of the DEQ's points known, {np.mean(opens):.0%} open",
            tolerance=f"{BELOW}; {OPEN}",
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
    pairs, top = len(models["DEQ"][0]["slices"]), math.log(10) * 2
    figure, axes = new_figure(pairs, len(models), width=3.3, height=3.5, sharex=True, sharey=True)
    filled = None
    for (words, runs), column in zip(models.items(), axes.T, strict=True):
        for ax, one in zip(column, runs[0]["slices"], strict=True):
            title = f"{words}: {one['share']:.0%} low"
            title += f", {one['known']:.0%} known" if words == "DEQ" else ""
            loss = np.array(one["loss"], dtype=float)
            filled = draw_slice(ax, np.array(runs[0]["axis"]), loss, top, title) or filled
    for ax in axes.flat:
        ax.label_outer()
    if filled is not None:
        colour_bar(figure, axes, filled)
    page.figure(
        "landscapes",
        figure,
        f"Loss around the trained weights (+) of the first seed, a row a pair of directions, cut at "
        f"{top:.1f}. The line is at {LEVEL:.2f}; crosses on grey: an image's equilibrium was not found.",
    )
    figure, axes = new_figure(1, 1, width=5.6)
    ax, places = axes[0, 0], np.arange(len(models))
    lows, opens = _mean(models["DEQ"], "share"), _mean(models["DEQ"], "open")
    for at, (share, more) in enumerate(zip(lows, opens, strict=True)):
        draw(ax, (places, [_mean(runs, "share")[at] for runs in models.values()]), f"seed {at}", at=at)
        ax.plot([places[-1]] * 2, [share, share + more], color=LIGHT.colour(at), linewidth=5, alpha=0.4)
    ax.set_xlim(-0.3, len(models) + 0.2)  # room for the legend
    finish(figure, ax, x="", y=f"share with a loss ≤ {LEVEL:.2f}", title=measured["data"])
    ax.set_xticks(places, list(models))
    page.figure(
        "shares",
        figure,
        "The share of small loss by model, a line a seed. Bars: up to where every open point were low.",
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
