"""Φ(s, t) = L(θ* + s d₁ + t d₂) of a multiscale DEQ, (z_1, …, z_n) = f(z_1, …, z_n; x)    [hieu2022]."""

from __future__ import annotations

import numpy as np
import torch

from ..explore import landscape, random_directions
from ..models.conv import MultiscaleDEQ
from ..plots import contours, surface
from .experiments import Context, Judgement, Measured, Progress, impossible, judged, register
from .hieu2022_landscape import LEVEL, STOP, dataset, slice_loss
from .hieu2022_training import RATES, fit
from .page import Page
from .xie2021_images import accuracy, images

# More than the 4 groups of a scale: a normalised group of one channel has the same mean for every image.
CHANNELS = {"tiny": (8, 8), "medium": (16, 32)}


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
        "grid": context.pick(tiny=3, small=11, medium=21, paper=51),
        "rate": context.pick(**RATES),
        "seen": context.pick(tiny=20, small=60, medium=200, paper=1024),
    }
    found: Measured = {"data": name, "runs": []}
    for seed in context.seeds(tiny=1, small=2):
        inputs = {"data": context.source(name), "seed": seed, **size, "stop": repr(STOP)}
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
    how = {"seed": seed, "rate": size["rate"], "progress": lambda share: progress(share / 2)}
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


def minima(loss: np.ndarray) -> list[tuple[int, int]]:
    """The grid points that are lower than every known neighbour; those at the edge have fewer."""
    known = np.pad(np.where(np.isfinite(loss), loss, np.inf), 1, constant_values=np.inf)
    found = []
    for i, j in np.ndindex(loss.shape):
        around = known[i : i + 3, j : j + 3].copy()
        around[1, 1] = np.inf
        if known[i + 1, j + 1] < around.min():
            found.append((i, j))
    return found


def judge_multiscale(measured: Measured) -> list[Judgement]:
    places = [minima(np.array(r["loss"], dtype=float)) for r in measured["runs"]]
    middle = len(measured["runs"][0]["axis"]) // 2
    near = [all(max(abs(i - middle), abs(j - middle)) <= 1 for i, j in p) for p in places]
    known = float(np.mean([r["known"] for r in measured["runs"]]))
    return [
        impossible(
            "the landscape of the multiscale DEQ of ImageNet",
            paper="one flat minimum",
            reason="neither ImageNet nor the pretrained weights can be had here; the same is done on "
            f"{measured['data']}, trained from scratch",
        ),
        judged(
            f"{measured['data']}: the slice has one minimum, at the trained weights",
            all(len(p) == 1 for p in places) and all(near),
            paper="only one minimum",
            measured=f"minima by seed: {', '.join(str(len(p)) for p in places)}; {known:.0%} of points known",
            tolerance="one grid point, the edge included, below its known neighbours; within one step of the "
            "middle; every seed",
            reason="" if known > 0.5 else "at most points the equilibrium of some image was not found",
        ),
    ]


def draw_multiscale(measured: Measured, page: Page) -> None:
    run = measured["runs"][0]
    loss = np.array(run["loss"], dtype=float)
    axis, title = run["axis"], f"{measured['data']}, seed 0"
    page.figure("contours", contours(axis, axis, loss, title=title), "The slice from above.")
    page.figure("surface", surface(axis, axis, loss, title=title), "The same slice as a surface.")
    page.table(
        "slices",
        ["seed", f"share with a loss ≤ {LEVEL:.2f}", "known", "training loss", "test accuracy"],
        [
            [i, r["share"], r["known"], r["training_loss"], r["accuracy"]]
            for i, r in enumerate(measured["runs"])
        ],
        "By seed: filter-normalised random directions on [−1, 1]².",
    )
