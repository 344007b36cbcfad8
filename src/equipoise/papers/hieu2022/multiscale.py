"""Φ(s, t) = L(θ* + s d₁ + t d₂) of a multiscale DEQ, (z_1, …, z_n) = f(z_1, …, z_n; x)    [hieu2022].

Its training adds PENALTY ‖∂f/∂z‖_F²/D, without which the solver loses the equilibria of many images, at the
trained weights and around them. A minimum is counted if every way to a lower point climbs by at least
PROMINENCE of the slice's range, which is more than a grid and 60 images leave open. Its flatness is compared
with that of the same cell repeated 6 times, from the same start and along the same draws of directions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ...explore import landscape
from ...models.zoo import MultiscaleDEQ
from ...plots import surface
from ...solve import Stop
from ..framework.experiments import Context, Measured, Progress, register
from ..framework.images import accuracy, images, images_in_words
from ..framework.page import Page
from ..framework.seeds import gain, mean_error
from ..framework.small import seeded
from ..framework.verdicts import Judgement, impossible, judged
from .landscape import dataset, directions, half, sizes, slice_loss
from .slices import LEVEL, Slice, draw_slices
from .training import FAR, SEARCH, fit

# More than the 4 groups of a scale: a normalised group of one channel has the same mean for every image.
CHANNELS = {"tiny": (8, 8), "small": (16, 32)}
STOP = Stop(rtol=1e-2, max_steps=30)  # of training
PENALTY = 1.0
PROMINENCE = 0.05
REPEATS = 6  # of the weight-tied network beside it
NEAR = 0.25  # of the middle, in either direction: one minimum this near is at the trained weights
KNOWN = 0.85  # share of a slice that must be known: with less, its minima are undecided


def build(X: torch.Tensor, channels: tuple[int, ...], seed: int) -> MultiscaleDEQ:
    """The multiscale DEQ for images like X; large ones are halved by the first convolution."""
    return MultiscaleDEQ(
        tuple(X.shape[1:]),
        channels,
        extractor=(2,) if X.shape[2] > 16 else (1,),
        stop=STOP,
        on_failure="accept",
        generator=seeded(seed),
    )


def _trained(
    context: Context, name: str, seed: int, size: Measured, progress: Progress, repeats: int | None = None
) -> Measured:
    """A slice around the DEQ, or around its cell repeated, which needs no penalty."""
    X, y, X_test, y_test = images(context.load(name), size["rows"], 500, seed)
    deq = build(X, size["channels"], seed)
    model: nn.Module = deq if repeats is None else deq.repeated(repeats)
    how = {"seed": seed, "rate": size["rate"], "penalty": size["penalty"]}
    losses = fit(model, X, y, size["epochs"], **how, after=half(progress, size["epochs"]))
    axis = np.linspace(-1, 1, size["grid"])
    seen = slice_loss(X_test[: size["seen"]], y_test[: size["seen"]])
    share = lambda done: progress(0.5 + done / 2)
    slice = landscape(model, seen, directions(model, 1000 + seed), axis, axis, progress=share)
    return {
        "axis": axis,
        "loss": slice.to_dict()["loss"],
        "known": float(np.mean(~slice.masked)),
        "share": slice.share_below(LEVEL),
        "training_loss": losses[-1],
        "accuracy": accuracy(model, X_test, y_test),
    }


def minima(loss: np.ndarray, prominence: float = PROMINENCE) -> list[tuple[int, int]]:
    """The minima of a grid, the lowest first; from all others every way to a lower point climbs by more than
    `prominence` of the range.

    A step leads to any of eight neighbours, but not to an unknown point. The grid is flooded from below:
    where two basins meet, the shallower one ends. Minima at the edge count.
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


def _judge_multiscale(measured: Measured) -> list[Judgement]:
    runs = measured["runs"]
    places = [minima(np.array(r["loss"], dtype=float)) for r in runs]
    axis = runs[0]["axis"]
    near = [all(max(abs(axis[i]), abs(axis[j])) <= NEAR for i, j in p) for p in places]
    known = min(r["known"] for r in runs)
    shown = ", ".join(f"{r['known']:.0%}" for r in runs)
    return [
        impossible(
            "the landscape of the multiscale DEQ of ImageNet",
            paper="§3.1, Figures 3.1 and 4.5: only one minimum, and it is flat",
            reason="neither ImageNet nor the pretrained weights can be had here; the same is done on "
            f"{measured['data']}, trained from scratch",
        ),
        judged(
            f"{measured['data']}: the slice has one minimum, at the trained weights",
            all(len(p) == 1 for p in places) and all(near) if known >= KNOWN else None,
            paper="§3.1, Figures 3.1 and 4.5: only one minimum (ImageNet)",
            measured=f"minima by seed: {', '.join(str(len(p)) for p in places)}; points known: {shown}",
            tolerance=f"every seed: one minimum, the edge included, deeper than {PROMINENCE:.0%} of the "
            f"slice's range, at most {NEAR} from the middle; undecided with less than {KNOWN:.0%} known",
            reason="" if known >= KNOWN else "At many points the equilibrium of some image was not found.",
        ),
    ]


def _draw_multiscale(measured: Measured, page: Page) -> None:
    rows = {"multiscale DEQ": measured["runs"], f"repeated {REPEATS} times": measured["tied"]}
    of = lambda run: np.array(run["loss"], dtype=float)
    every = [loss for runs in rows.values() for loss in map(of, runs) if np.isfinite(loss).any()]
    top = max((float(np.nanmax(loss)) for loss in every), default=1.0)
    grid = [
        [
            Slice(f"{words}, seed {i}: {r['share']:.0%} low", r["axis"], r["loss"], minima(of(r)))
            for i, r in enumerate(runs)
        ]
        for words, runs in rows.items()
    ]
    page.figure(
        "contours",
        draw_slices(grid, top),
        f"Loss of {measured['data']} test images on a slice around the trained weights (+), a line at "
        f"{LEVEL:.2f}. Stars are minima, crosses on grey points where an image's equilibrium was not found.",
    )
    first = measured["runs"][0]
    drawn = surface(first["axis"], first["axis"], of(first), title=f"{measured['data']}, seed 0")
    page.figure("surface", drawn, "The slice of seed 0 as a surface; what is not known is a hole.")
    page.table(
        "slices",
        [
            {
                "network": words,
                "seed": i,
                "minima": len(minima(of(r))),
                f"share with a loss ≤ {LEVEL:.2f}": r["share"],
                "known": r["known"],
                "training loss": r["training_loss"],
                "test accuracy": r["accuracy"],
            }
            for words, runs in rows.items()
            for i, r in enumerate(runs)
        ],
        "By seed: filter-normalised random directions on [−1, 1]²; the DEQ is trained with a Jacobian "
        f"penalty of {PENALTY:g}.",
    )
    deq, tied = ([r["share"] for r in measured[key]] for key in ("runs", "tied"))
    page.note(
        "How flat a minimum must be to be called flat the thesis does not say. Beside the cell repeated "
        f"{REPEATS} times, the share of [−1, 1]² with a loss of at most {LEVEL:.2f} is "
        f"{mean_error(deq, '.3f')} against {mean_error(tied, '.3f')}, {gain(deq, tied, '.3f')}."
    )


@register(
    "hieu2022.fig4.5",
    "Figures 3.1 and 4.5: the landscape of a multiscale DEQ",
    _judge_multiscale,
    _draw_multiscale,
    minutes=3,
)
def fig4_5(context: Context) -> Measured:
    """Around a trained multiscale DEQ the loss has one minimum, and it is flat (ImageNet, 1024 test
    images)."""
    name = dataset(context)
    size = {
        **sizes(context),
        "channels": context.pick(**CHANNELS),
        "seen": context.pick(tiny=20, small=60, medium=200, paper=1024),
        "penalty": PENALTY,
    }
    found: Measured = {"data": name, "runs": [], "tied": []}
    source = context.source(name, images_in_words(context.load(name), size["rows"], 500))
    stops = {"stops": [repr(part) for part in (STOP, FAR, *SEARCH)]}
    for seed in context.seeds(tiny=1, small=2):
        for key, label, repeats in (("runs", "", None), ("tied", "-tied", REPEATS)):
            inputs = {"data": source, "seed": seed, **size, **({"repeats": repeats} if repeats else stops)}
            trained = lambda progress, seed=seed, repeats=repeats: _trained(
                context, name, seed, size, progress, repeats
            )
            unit = context.unit("hieu2022.multiscale", f"{name}{label}-seed{seed}", inputs, trained)
            found[key].append(unit)
    return found
