"""Φ(s, t) = L(θ* + s d₁ + t d₂) of a multiscale DEQ, (z_1, …, z_n) = f(z_1, …, z_n; x)    [hieu2022].

Its training adds PENALTY ‖∂f/∂z‖_F²/D, without which the solver loses the equilibria of many images, at the
trained weights and around them. A minimum is counted if the way to a lower point climbs by PROMINENCE of the
slice's range at least: what a grid and 60 images leave open is less.
"""

from __future__ import annotations

import numpy as np
import torch

from ..explore import landscape, random_directions
from ..models.conv import MultiscaleDEQ
from ..plots import LIGHT, new_figure, surface
from ..solve import Stop
from .experiments import Context, Measured, Progress, register
from .hieu2022_landscape import LEVEL, colour_bar, dataset, draw_slice, slice_loss
from .hieu2022_training import FAR, RATES, SEARCH, fit
from .page import Page
from .verdicts import Judgement, impossible, judged
from .xie2021_images import accuracy, images

# More than the 4 groups of a scale: a normalised group of one channel has the same mean for every image.
CHANNELS = {"tiny": (8, 8), "small": (16, 32)}
STOP = Stop(rtol=1e-2, max_steps=30)  # of training
PENALTY = 1.0
PROMINENCE = 0.05
KNOWN = 0.85  # of a slice: with less, nothing is said of its minima


@register(
    "hieu2022.fig4.5",
    "Figures 3.1 and 4.5: the landscape of a multiscale DEQ",
    "Around a trained multiscale DEQ the loss has one minimum, and it is flat (ImageNet, 1024 test images).",
    judge=lambda measured: judge_multiscale(measured),
    draw=lambda measured, page: draw_multiscale(measured, page),
    minutes=2,
)
def fig4_5(context: Context) -> Measured:
    name = dataset(context)
    size = {
        "rows": context.pick(tiny=100, small=1000, medium=4000),
        "epochs": context.pick(tiny=1, small=8, medium=15, paper=50),
        "channels": context.pick(**CHANNELS),
        "grid": context.pick(tiny=3, small=9, medium=21, paper=51),
        "rate": context.pick(**RATES),
        "seen": context.pick(tiny=20, small=60, medium=200, paper=1024),
        "penalty": PENALTY,
    }
    stops = [repr(part) for part in (STOP, FAR, *SEARCH)]
    found: Measured = {"data": name, "runs": []}
    for seed in context.seeds(tiny=1, small=2):
        inputs = {"data": context.source(name), "seed": seed, **size, "stops": stops}
        compute = lambda progress, seed=seed: _trained(context, name, seed, size, progress)
        found["runs"].append(context.unit("hieu2022.multiscale", f"{name}-seed{seed}", inputs, compute))
    return found


def build(X: torch.Tensor, channels: tuple[int, ...], seed: int) -> MultiscaleDEQ:
    """The multiscale DEQ for images like X; large ones are halved by the first convolution."""
    return MultiscaleDEQ(
        tuple(X.shape[1:]),
        channels,
        extractor=(2,) if X.shape[2] > 16 else (1,),
        stop=STOP,
        on_failure="accept",
        generator=torch.Generator().manual_seed(seed),
    )


def _trained(context: Context, name: str, seed: int, size: Measured, progress: Progress) -> Measured:
    X, y, X_test, y_test = images(context.load(name), size["rows"], 500, seed)
    model = build(X, size["channels"], seed)
    half = lambda share: progress(share / 2)
    how = {"seed": seed, "rate": size["rate"], "penalty": size["penalty"], "progress": half}
    losses = fit(model, X, y, size["epochs"], **how)
    vectors = [n for n, p in model.named_parameters() if p.ndim < 2]
    directions = random_directions(model, 2, torch.Generator().manual_seed(1000 + seed), ignore=vectors)
    axis = np.linspace(-1, 1, size["grid"])
    seen = slice_loss(X_test[: size["seen"]], y_test[: size["seen"]])
    share = lambda done: progress(0.5 + done / 2)
    slice = landscape(model, seen, directions, axis, axis, progress=share)
    return {
        "axis": axis,
        "loss": slice.to_dict()["loss"],
        "known": float(np.mean(~slice.masked)),
        "share": slice.share_below(LEVEL),
        "training_loss": losses[-1],
        "accuracy": accuracy(model, X_test, y_test),
    }


def minima(loss: np.ndarray, prominence: float = PROMINENCE) -> list[tuple[int, int]]:
    """The minima of a grid, the lowest first: from another, every way to a lower point climbs by more than
    `prominence` of the range.

    Steps lead to all eight neighbours, none through what is not known. The grid is flooded from below: where
    two basins meet, the shallower ends. Those at the edge count.
    """
    known = np.isfinite(loss)
    if not known.any():
        return []
    least = prominence * float(np.ptp(loss[known]))
    basin: dict[tuple[int, int], tuple[int, int]] = {}  # of each flooded point, its minimum
    for point in sorted(zip(*np.nonzero(known), strict=True), key=lambda at: loss[at]):
        i, j = int(point[0]), int(point[1])
        around = {basin[a, b] for a in (i - 1, i, i + 1) for b in (j - 1, j, j + 1) if (a, b) in basin}
        deepest = min(around, key=lambda at: loss[at], default=(i, j))
        ended = {low for low in around - {deepest} if loss[i, j] - loss[low] <= least}
        basin = {at: deepest if low in ended else low for at, low in basin.items()}
        basin[i, j] = deepest
    return sorted(set(basin.values()), key=lambda at: loss[at])


def judge_multiscale(measured: Measured) -> list[Judgement]:
    runs = measured["runs"]
    places = [minima(np.array(r["loss"], dtype=float)) for r in runs]
    middle = len(runs[0]["axis"]) // 2
    near = [all(max(abs(i - middle), abs(j - middle)) <= 1 for i, j in p) for p in places]
    known = min(r["known"] for r in runs)
    shown = ", ".join(f"{r['known']:.0%}" for r in runs)
    return [
        impossible(
            "the landscape of the multiscale DEQ of ImageNet",
            paper="one flat minimum",
            reason="neither ImageNet nor the pretrained weights can be had here; the same is done on "
            f"{measured['data']}, trained from scratch",
        ),
        judged(
            f"{measured['data']}: the slice has one minimum, at the trained weights",
            all(len(p) == 1 for p in places) and all(near) and known >= KNOWN,
            paper="only one minimum",
            measured=f"minima by seed: {', '.join(str(len(p)) for p in places)}; points known: {shown}",
            tolerance=f"every seed: one minimum, the edge included, deeper than {PROMINENCE:.0%} of the "
            f"slice's range, within one step of the middle; at least {KNOWN:.0%} of the points known",
            reason="" if known >= KNOWN else "at many points the equilibrium of some image was not found",
        ),
    ]


def draw_multiscale(measured: Measured, page: Page) -> None:
    runs = measured["runs"]
    losses = [np.array(r["loss"], dtype=float) for r in runs]
    top = max((float(np.nanmax(loss)) for loss in losses if np.isfinite(loss).any()), default=1.0)
    figure, axes = new_figure(1, len(runs), width=4.2, height=3.8, sharey=True)
    for i, (ax, run, loss) in enumerate(zip(axes[0], runs, losses, strict=True)):
        axis = np.array(run["axis"])
        filled = draw_slice(ax, axis, loss, top, f"seed {i}: {run['known']:.0%} known")
        for row, column in minima(loss):
            ax.plot(axis[column], axis[row], "*", color=LIGHT.series[1], markersize=12)
    if filled is not None:
        colour_bar(figure, axes, filled)
    page.figure(
        "contours",
        figure,
        f"Loss of {measured['data']} test images on a slice around the trained weights (+), a line at "
        f"{LEVEL:.2f}. Stars are minima, crosses on grey points where an image's equilibrium was not found.",
    )
    drawn = surface(runs[0]["axis"], runs[0]["axis"], losses[0], title=f"{measured['data']}, seed 0")
    page.figure("surface", drawn, "The slice of seed 0 as a surface; what is not known is a hole.")
    page.table(
        "slices",
        ["seed", "minima", f"share with a loss ≤ {LEVEL:.2f}", "known", "training loss", "test accuracy"],
        [
            [i, len(minima(loss)), r["share"], r["known"], r["training_loss"], r["accuracy"]]
            for i, (r, loss) in enumerate(zip(runs, losses, strict=True))
        ],
        f"By seed: filter-normalised random directions on [−1, 1]², Jacobian penalty {PENALTY:g}.",
    )
