"""Φ(s, t) = L(θ* + s d₁ + t d₂): a DEQ beside its cell repeated 6, 11 and 18 times    [hieu2022, Figure 4.4].

Flatness is a number here: the share of the slice [−1, 1]² on which the loss is at most LEVEL, half of what
guessing gives. It has an error, from several seeds and pairs of directions.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ..explore import landscape, module_loss, random_directions
from ..models.conv import ImageModel
from ..plots import new_figure
from ..plots.style import LIGHT, label
from ..plots.surfaces import colours
from ..solve import EquilibriumError, Stop
from .experiments import (
    Context,
    Judgement,
    Measured,
    Progress,
    joint,
    judged,
    register,
    standard_error,
    with_error,
)
from .hieu2022_training import RATES, build, fit
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
    """Mean cross-entropy; of a DEQ only where every image's equilibrium is found, warm-started."""

    def loss(model: nn.Module, state: Any) -> Any:
        if not isinstance(model, ImageModel):
            return F.cross_entropy(model(X), y).item()
        value = F.cross_entropy(model(X, start=state), y).item()
        solution = model.last.forward
        assert solution is not None
        if solution.failed_rows:
            raise EquilibriumError("not found", solution)
        return value, solution.value

    return module_loss(loss)


def _unit(context: Context, name: str, words: str, seed: int, size: dict[str, Any]) -> Measured:
    inputs = {"data": context.source(name), "model": words, "seed": seed, **size, "stop": repr(STOP)}

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
    minutes=2,
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
    seeds = context.seeds(tiny=1, small=3)
    return {
        "data": name,
        "models": {words: [_unit(context, name, words, s, size) for s in seeds] for words in MODELS},
    }


def _shares(runs: list[Measured]) -> list[float]:
    return [s["share"] for r in runs for s in r["slices"]]


def judge_basins(measured: Measured) -> list[Judgement]:
    shares = {words: _shares(runs) for words, runs in measured["models"].items()}
    means = [float(np.mean(v)) for v in shares.values()]
    errors = {words: standard_error(v) for words, v in shares.items()}
    scores = zip(errors.items(), means, strict=True)
    shown = ", ".join(f"{words}: {with_error(mean, e, '.3f')}" for (words, e), mean in scores)
    grows = all(b > a for a, b in pairwise(means))
    gain = means[-1] - means[0]
    error = joint(errors["DEQ"], errors["repeat-6"])
    sure = errors["DEQ"] is not None and gain > 2 * error
    known = np.mean([s["known"] for r in measured["models"]["DEQ"] for s in r["slices"]])
    return [
        judged(
            "the region of small loss grows from 6 to 11 to 18 repeats to the DEQ",
            grows,
            paper="expands with the number of repeats",
            measured=f"share of [−1, 1]² with a loss of at most {LEVEL:.2f}: {shown}",
            tolerance="the mean share grows at each step",
            reason="" if grows else "not at this size: see the errors of the shares",
        ),
        judged(
            "the DEQ has a larger region of small loss than repeat-6",
            sure,
            paper="larger",
            measured=f"difference {gain:+.3f} ± {error:.3f}; {known:.0%} of the DEQ's points known",
            tolerance="more than two standard errors, over several seeds and pairs of directions",
            reason=""
            if sure
            else "it is not larger at this size"
            if gain <= 0
            else "the spread over seeds and directions exceeds it, or is not known",
        ),
    ]


def draw_basins(measured: Measured, page: Page) -> None:
    models = measured["models"]
    figure, axes = new_figure(1, len(models), width=3.5, height=3.5, sharey=True)
    top = math.log(10) * 2
    levels = np.linspace(0, top, 17)
    for ax, (words, runs) in zip(axes[0], models.items(), strict=True):
        axis = np.array(runs[0]["axis"])
        values = np.ma.masked_invalid(np.array(runs[0]["slices"][0]["loss"], dtype=float))
        ax.grid(False)
        ax.set_facecolor(LIGHT.masked)
        if values.count():
            ax.contourf(
                axis, axis, values.clip(0, top), levels=levels, cmap=colours(LIGHT), corner_mask=False
            )
            if float(values.min()) < LEVEL < float(values.max()):
                ax.contour(axis, axis, values, levels=[LEVEL], colors=LIGHT.series[1], corner_mask=False)
        S, T = np.meshgrid(axis, axis)
        hidden = np.ma.getmaskarray(values)
        ax.scatter(S[hidden], T[hidden], marker="x", s=8, linewidths=0.7, color=LIGHT.soft)
        label(ax, "first direction", "second direction", words)
    page.figure(
        "landscapes",
        figure,
        f"Loss on a slice, first seed and pair: dark is high (cut at {top:.1f}), the line is at {LEVEL:.2f}, "
        "crosses are points where an image's equilibrium was not found.",
    )
    page.table(
        "flatness",
        [
            "model",
            "slices",
            "share below",
            "standard error",
            "grid error",
            "points known",
            "training loss",
            "accuracy",
        ],
        [
            [
                words,
                len(_shares(runs)),
                float(np.mean(_shares(runs))),
                standard_error(_shares(runs)),
                float(np.mean([s["error"] for r in runs for s in r["slices"]])),
                float(np.mean([s["known"] for r in runs for s in r["slices"]])),
                float(np.mean([r["training_loss"] for r in runs])),
                float(np.mean([r["accuracy"] for r in runs])),
            ]
            for words, runs in models.items()
        ],
        f"{measured['data']}: share of the slice with a loss of at most {LEVEL:.3f}, over seeds and pairs.",
    )
