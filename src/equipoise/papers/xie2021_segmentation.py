"""z = f_L∘…∘f_1(z) as the backbone of a segmentation, beside an FCN of equal size   [xie2021, Table 2].

Cityscapes cannot be shipped: digits on noisy canvases stand in for it (`data.segmentation.digit_canvases`);
the same functions take a user's folder of images and masks. Adam at the poly learning rate: the paper's SGD
(.01, momentum .9) has learnt little after as few steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.segmentation import IGNORE, SegmentationSet, digit_canvases
from ..models.conv import ConvOptEq, Scores, fcn_like, opteq_segmenter, parameters_of, poly
from ..plots import new_figure
from ..solve import Stop
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
from .page import Page
from .xie2021_images import parameter_groups

MODELS = ("FCN", "OptEq")
STOP = Stop(rtol=1e-3, max_steps=60)
PAPER = {"FCN": (71.47, 79.23, 95.56), "OptEq": (74.47, 81.91, 95.93)}  # Cityscapes: mIoU, mAcc, aAcc
SHOWN = 4  # images drawn


def tensors(dataset: SegmentationSet) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W), each with mean 0 and variance 1, and masks (N, H, W)."""
    x = torch.from_numpy(dataset.x).float() / 255
    x = x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()
    mean, std = x.mean(dim=(1, 2, 3), keepdim=True), x.std(dim=(1, 2, 3), keepdim=True)
    return (x - mean) / std.clamp_min(1e-6), torch.from_numpy(dataset.y)


def build(words: str, inputs: tuple[int, ...], classes: int, size: dict[str, Any], seed: int) -> nn.Module:
    """The OptEq, or the FCN with its extractor, its head and as many parameters."""
    generator = torch.Generator().manual_seed(seed)
    model = opteq_segmenter(
        inputs,
        size["state"],
        size["hidden"],
        classes,
        features=size["features"],
        extractor=size["extractor"],
        reach=3,
        stop=STOP,
        on_failure="accept",
        generator=generator,
    )
    return model if words == "OptEq" else fcn_like(model, generator.manual_seed(seed))


def fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    rate: float,
    seed: int,
    batch: int = 8,
    share: float = 0.1,
    progress: Progress = lambda share: None,
) -> list[float]:
    """Adam with the poly rate; the layers of an OptEq are projected. The losses of the steps."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(parameter_groups(model, rate, share))
    schedule = poly(optimiser, steps)
    if isinstance(model, ConvOptEq):
        model.keep_projected(optimiser, every=4)
    losses = []
    for step in range(steps):
        rows = torch.randint(len(x), (batch,), generator=generator)
        loss = F.cross_entropy(model(x[rows]), y[rows], ignore_index=IGNORE)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
        if step % 50 == 49:
            progress((step + 1) / steps)
    if isinstance(model, ConvOptEq):
        model.project_()
    return losses


@torch.no_grad()
def predict(model: nn.Module, x: Tensor, batch: int = 50) -> Tensor:
    """The class of every pixel, (N, H, W)."""
    return torch.cat([model(part).argmax(dim=1) for part in x.split(batch)])


def _unit(context: Context, words: str, seed: int, size: dict[str, Any]) -> Measured:
    def compute(progress: Progress) -> Measured:
        train = digit_canvases(size["train"], size["canvas"], seed=seed, noise=size["noise"])
        test = digit_canvases(size["test"], size["canvas"], seed=seed, noise=size["noise"], part="test")
        (x, y), (x_test, y_test) = tensors(train), tensors(test)
        classes = len(train.classes)
        model = build(words, tuple(x.shape[1:]), classes, size, seed)
        losses = fit(model, x, y, steps=size["steps"], rate=size["rate"], seed=seed, progress=progress)
        called = predict(model, x_test)
        scores = Scores.of(called, y_test, classes)
        return {
            "parameters": parameters_of(model),
            "loss": float(np.mean(losses[-50:])),
            "mIoU": scores.miou,
            "mAcc": scores.macc,
            "aAcc": scores.aacc,
            "images": test.x[:SHOWN],
            "truth": y_test[:SHOWN],
            "called": called[:SHOWN],
            "classes": classes,
        }

    return context.unit(
        "xie2021.segmentation", f"{words}-seed{seed}", {"seed": seed, "model": words, **size}, compute
    )


@register(
    "xie2021.table2",
    "Table 2: segmentation by OptEq and by an FCN of equal size",
    "With as many parameters, an OptEq segments better than an FCN (Cityscapes: mIoU 74.5 against 71.5).",
    judge=lambda measured: judge_scores(measured),
    draw=lambda measured, page: draw_scores(measured, page),
    minutes=4,
)
def table2(context: Context) -> Measured:
    size = {
        "train": context.pick(tiny=40, small=2000, medium=4000),
        "test": context.pick(tiny=20, small=300, medium=1000),
        "canvas": context.pick(tiny=20, small=32, medium=48),
        "noise": 0.15,
        "steps": context.pick(tiny=4, small=1500, medium=6000, paper=40000),
        "rate": 0.01,
        "state": context.pick(tiny=4, small=16, medium=32),
        "hidden": context.pick(tiny=[4, 4, 4], small=[16, 32, 32], medium=[32, 64, 64]),
        "features": context.pick(tiny=4, small=16, medium=32),
        "extractor": [2],
    }
    context.notes.append("Cityscapes cannot be shipped: digits on noisy canvases stand in for it.")
    seeds = context.seeds(tiny=1, small=3)
    runs: dict[str, list[Measured]] = {words: [] for words in MODELS}
    for seed in seeds:
        for words in MODELS:
            runs[words].append(_unit(context, words, seed, size))
    return {"models": runs}


def _mean(runs: list[Measured], key: str) -> tuple[float, float | None]:
    """The mean and its standard error, in percent."""
    values = [100 * r[key] for r in runs]
    return float(np.mean(values)), standard_error(values)


def judge_scores(measured: Measured) -> list[Judgement]:
    fcn, opteq = (_mean(measured["models"][words], "mIoU") for words in MODELS)
    gain, error = opteq[0] - fcn[0], joint(fcn[1], opteq[1])
    return [
        judged(
            "the OptEq has a higher mIoU than the FCN",
            gain > 0,
            paper="74.47 against 71.47 (Cityscapes)",
            measured=f"{with_error(*opteq)} against {with_error(*fcn)}: {gain:+.1f} ± {error:.1f}",
            tolerance="the mean is higher; the error says how sure that is",
            reason="" if gain > 0 else "not on this task, at this size and length of training",
        )
    ]


def draw_scores(measured: Measured, page: Page) -> None:
    models = measured["models"]
    keys = ("mIoU", "mAcc", "aAcc")
    page.table(
        "scores",
        [
            "network",
            "parameters",
            *(f"{k}, %" for key in keys for k in (key, f"± {key}")),
            "loss",
            "seeds",
            "paper",
        ],
        [
            [
                words,
                runs[0]["parameters"],
                *(value for key in keys for value in _mean(runs, key)),
                float(np.mean([r["loss"] for r in runs])),
                len(runs),
                " / ".join(map(str, PAPER[words])),
            ]
            for words, runs in models.items()
        ],
        "Test canvases: means and standard errors over the seeds. The paper's numbers are for Cityscapes.",
    )
    first = {words: runs[0] for words, runs in models.items()}
    fcn, classes = first["FCN"], first["FCN"]["classes"]
    shown = [("input", fcn["images"]), ("truth", fcn["truth"]), *((w, r["called"]) for w, r in first.items())]
    figure, axes = new_figure(len(shown), len(fcn["images"]), width=1.7, height=1.7)
    for row, (words, pictures) in zip(axes, shown, strict=True):
        for ax, picture in zip(row, pictures, strict=True):
            grey = words == "input"
            ax.imshow(picture, cmap="gray" if grey else "tab20", vmin=0, vmax=255 if grey else classes - 1)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.grid(False)
        row[0].set_ylabel(words)
    page.figure("pictures", figure, "Input, truth and what both networks call, first seed: a colour a class.")
