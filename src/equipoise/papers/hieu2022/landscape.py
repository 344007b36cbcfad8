"""Φ(s, t) = L(θ* + s d₁ + t d₂): a DEQ beside its cell repeated 6, 11 and 18 times    [hieu2022, Figure 4.4].

Flatness is a number here: the share of the slice [−1, 1]² on which the loss is at most LEVEL, half of what
guessing gives. If an image's equilibrium is not found, the loss of the DEQ at that point is not known, and it
is open unless the other images alone put it above LEVEL. The share lies between those with all open points
counted as high and as low. The models of a seed share their start and the draws of their directions, so that
differences are taken within a seed, and their error over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ...explore import landscape, module_loss, random_directions
from ...models.images import ImageModel
from ...plots import LIGHT, new_figure
from ...plots.curves import draw, finish
from ...solve import Stop
from ..framework.experiments import Context, Measured, Progress, register
from ..framework.images import accuracy, images, images_in_words
from ..framework.page import Page
from ..framework.seeds import gain, mean_error
from ..framework.small import seeded
from ..framework.verdicts import BELOW, FALLING, Judgement, below, falling, judged, standard_error
from .slices import LEVEL, Slice, draw_slices
from .training import FAR, RATES, SEARCH, build, fit

MODELS: dict[str, int | None] = {"repeat-6": 6, "repeat-11": 11, "repeat-18": 18, "DEQ": None}
STOP = Stop(rtol=1e-2, max_steps=100)
OPEN = "the same verdict whether points that are open count as high or as low"


def dataset(context: Context) -> str:
    """The first data set asked for, or else CIFAR10, which the digits replace at the smaller scales."""
    if context.settings.data or context.pick(tiny=False, medium=True):
        return context.datasets("cifar10")[0]
    context.notes.append("At this scale the digits stand for CIFAR10; medium and paper take CIFAR10.")
    return "digits"


def sizes(context: Context) -> dict[str, Any]:
    """How many images and epochs a network is trained with, and how fine its slice is."""
    return {
        "rows": context.pick(tiny=100, small=1000, medium=4000),
        "epochs": context.pick(tiny=1, small=8, medium=15, paper=50),
        "grid": context.pick(tiny=3, small=13, medium=21, paper=51),
        "rate": context.pick(**RATES),
    }


def directions(model: nn.Module, seed: int) -> list[dict[str, torch.Tensor]]:
    """Two random directions of the weights; biases and other vectors stay as they are."""
    vectors = [n for n, p in model.named_parameters() if p.ndim < 2]
    return random_directions(model, 2, seeded(seed), ignore=vectors)


def half(progress: Progress, epochs: int) -> Callable[[int], None]:
    """Reports each epoch of a training that is the first half of a unit."""
    return lambda epoch: progress(epoch / epochs / 2)


def slice_loss(X: torch.Tensor, y: torch.Tensor, floors: list[float] | None = None) -> Any:
    """Mean cross-entropy, from zero states; for a DEQ only where every image's equilibrium is found.

    Elsewhere a lower bound of the mean is appended to `floors`, since no image's loss is below 0.
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
    inputs = {"data": context.source(name, part), "model": words, "seed": seed, **size, "level": LEVEL}
    inputs["stops"] = [repr(part) for part in (STOP, FAR, *SEARCH)]

    def compute(progress: Progress) -> Measured:
        X, y, X_test, y_test = images(context.load(name), size["rows"], 500, seed)
        deq, repeats = build(X, size["channels"], seed, stop=STOP), MODELS[words]
        model: nn.Module = deq if repeats is None else deq.repeated(repeats)
        epochs = size["epochs"]
        losses = fit(model, X, y, epochs, seed=seed, rate=size["rate"], after=half(progress, epochs))
        axis, slices = np.linspace(-1, 1, size["grid"]), []
        some, labels = X[: size["seen"]], y[: size["seen"]]
        for pair in range(size["pairs"]):
            floors: list[float] = []
            loss = slice_loss(some, labels, floors)
            found = landscape(model, loss, directions(model, 1000 * seed + pair), axis, axis)
            known = float(np.mean(~found.masked))
            high = sum(floor > LEVEL for floor in floors) / found.loss.size
            row = {"loss": found.to_dict()["loss"], "known": known, "share": found.share_below(LEVEL)}
            slices.append(row | {"open": 1 - known - high, "error": found.share_error(LEVEL)})
            progress(0.5 + (pair + 1) / size["pairs"] / 2)
        end = {"training_loss": losses[-1], "accuracy": accuracy(model, X_test, y_test)}
        return {"axis": axis, "slices": slices, **end}

    return context.unit("hieu2022.landscape", f"{name}-{words}-seed{seed}", inputs, compute)


def _mean(runs: list[Measured], key: str) -> list[float]:
    """The mean of each seed over its slices."""
    return [float(np.mean([s[key] for s in r["slices"]])) for r in runs]


def _among(runs: list[Measured]) -> list[float]:
    """The share of small loss among the known points, for each seed."""
    pairs = zip(_mean(runs, "share"), _mean(runs, "known"), strict=True)
    return [share / known if known else 0.0 for share, known in pairs]


def _bracketed(low: bool | None, high: bool | None) -> bool | None:
    """The verdict if it is the same with all open points high and with all low."""
    return low if low is high else None


def _judge_basins(measured: Measured) -> list[Judgement]:
    models = measured["models"]
    shares = {words: _mean(runs, "share") for words, runs in models.items()}
    shown = ", ".join(f"{words}: {mean_error(values, '.3f')}" for words, values in shares.items())
    opens, known = (_mean(models["DEQ"], key) for key in ("open", "known"))
    *tied, least = shares.values()
    most, six = np.add(least, opens).tolist(), shares["repeat-6"]
    steps = ", ".join(gain(b, a, ".3f") for a, b in pairwise(shares.values()))
    return [
        judged(
            "the region of small loss grows from 6 to 11 to 18 repeats to the DEQ",
            _bracketed(*(falling([deq, *reversed(tied)]) for deq in (least, most))),
            paper="§4.2.1, Figure 4.4: expands as the number of repetitions increases",
            measured=f"share of [−1, 1]² with a loss of at most {LEVEL:.2f}: {shown}; steps {steps}",
            tolerance=f"from the DEQ down to repeat-6: {FALLING}; {OPEN}",
        ),
        judged(
            "the DEQ has a larger region of small loss than repeat-6",
            _bracketed(*(below(six, deq) for deq in (least, most))),
            paper="§4.2.1, Figure 4.4: this suggests the superiority of training DEQs",
            measured=f"difference {gain(least, six, '.3f')} with open points as high, "
            f"{gain(most, six, '.3f')} as low; {gain(_among(models['DEQ']), six, '.3f')} among those known; "
            f"{np.mean(known):.0%} of the DEQ's points known, {np.mean(opens):.0%} open",
            tolerance=f"{BELOW}; {OPEN}",
        ),
    ]


def _draw_basins(measured: Measured, page: Page) -> None:
    models, top = measured["models"], math.log(10) * 2
    rows = []
    for words, runs in models.items():
        title = lambda one, words=words: (
            f"{words}: {one['share']:.0%} low" + (f", {one['known']:.0%} known" if words == "DEQ" else "")
        )
        rows.append([Slice(title(one), runs[0]["axis"], one["loss"]) for one in runs[0]["slices"]])
    page.figure(
        "landscapes",
        draw_slices(rows, top),
        "Loss around the trained weights (+) of the first seed, one column for each pair of directions, cut "
        f"at {top:.1f}. The line is at {LEVEL:.2f}; crosses on grey: an image's equilibrium was not found.",
    )
    _draw_shares(measured, page)
    page.table(
        "flatness",
        [
            {
                "model": words,
                "seeds": len(runs),
                "share low": float(np.mean(_mean(runs, "share"))),
                "standard error": standard_error(_mean(runs, "share")),
                "among known": float(np.mean(_among(runs))),
                "grid error": float(np.mean(_mean(runs, "error"))),
                "known": float(np.mean(_mean(runs, "known"))),
                "loss": float(np.mean([r["training_loss"] for r in runs])),
                "accuracy": float(np.mean([r["accuracy"] for r in runs])),
            }
            for words, runs in models.items()
        ],
        f"{measured['data']}: share of the slice with a loss of at most {LEVEL:.3f}, of all its points and "
        "of those known; training loss, test accuracy. Means over seeds, and over directions within each.",
    )


def _draw_shares(measured: Measured, page: Page) -> None:
    models = measured["models"]
    figure, axes = new_figure(1, 1, width=5.6)
    ax, places = axes[0, 0], np.arange(len(models))
    lows, opens = _mean(models["DEQ"], "share"), _mean(models["DEQ"], "open")
    for at, (share, more) in enumerate(zip(lows, opens, strict=True)):
        draw(ax, (places, [_mean(runs, "share")[at] for runs in models.values()]), f"seed {at}", at=at)
        ax.plot([places[-1]] * 2, [share, share + more], color=LIGHT.colour(at), linewidth=5, alpha=0.4)
    ax.set_xlim(-0.3, len(models) + 0.2)  # room for the legend
    finish(figure, ax, y=f"share with a loss ≤ {LEVEL:.2f}", title=measured["data"])
    ax.set_xticks(places, list(models))
    words = "The share of small loss by model, one line for each seed."
    bars = "A bar ends where the share would be if every open point were low."
    page.figure("shares", figure, f"{words} {bars}")


@register(
    "hieu2022.fig4.4",
    "Figure 4.4: the landscape of a DEQ and of weight-tied networks",
    _judge_basins,
    _draw_basins,
    minutes=6,
)
def fig4_4(context: Context) -> Measured:
    """Around the minimiser the region of small loss grows with the number of repeats, up to the DEQ."""
    name = dataset(context)
    size = {
        **sizes(context),
        "channels": context.pick(tiny=4, small=8, medium=16, paper=32),
        "pairs": context.pick(tiny=1, small=2, medium=3),
        "seen": context.pick(tiny=20, small=60, medium=200),
    }
    seeds = context.seeds(tiny=1, small=4)
    runs = {words: [_unit(context, name, words, s, size) for s in seeds] for words in MODELS}
    return {"data": name, "models": runs}
