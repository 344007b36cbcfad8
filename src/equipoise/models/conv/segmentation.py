"""mIoU = mean_c n_cc/(Σ_j n_cj + Σ_i n_ic − n_cc): segmentation by OptEq and by an FCN, and its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .cnn import PlainCNN, cnn_of_size
from .conv_opteq import ConvOptEq
from .parts import parameters_of


def opteq_segmenter(
    inputs: Sequence[int], state: int, hidden: Sequence[int], classes: int, **options: Any
) -> ConvOptEq:
    """A deep OptEq as backbone, then a 1×1 convolution, bilinear to the image    [xie2021, §5.3]."""
    return ConvOptEq(inputs, state, hidden, classes, task="segmentation", **options)


def fcn_like(model: ConvOptEq, generator: torch.Generator | None = None) -> PlainCNN:
    """A plain network with the extractor, the task, the pooling and about the parameters of an OptEq.

    It has L + 1 convolutions of its own for the L layers, each used once.
    """
    config = model.config()
    options = {key: config[key] for key in ("features", "extractor", "pool", "task")}
    like = next(model.parameters())
    options |= {"dtype": like.dtype, "device": like.device, "generator": generator}
    layers = len(config["hidden"]) + 1
    return cnn_of_size(parameters_of(model), layers, model.inputs, model.outputs, **options)


def poly(
    optimiser: torch.optim.Optimizer, total: int, power: float = 0.9
) -> torch.optim.lr_scheduler.LambdaLR:
    """The learning rate times (1 − i/total)^power after i steps    [xie2021, §5.3]."""
    if not isinstance(total, int) or total < 1:
        raise ValueError(f"total must be an integer ≥ 1. Got {total!r} instead.")
    return torch.optim.lr_scheduler.LambdaLR(optimiser, lambda i: max(0.0, 1 - i / total) ** power)


@dataclass(frozen=True)
class Scores:
    """What n_ij, the pixels of class i that were called j, say. Absent classes count for nothing."""

    confusion: Tensor  # (k, k) int64, rows are the truth

    @classmethod
    def of(cls, predicted: Tensor, truth: Tensor, classes: int, ignore: int | None = 255) -> Scores:
        """From class images (N, H, W); pixels whose truth is `ignore` are left out."""
        if predicted.shape != truth.shape:
            raise ValueError(
                f"predicted must be {tuple(truth.shape)} like the truth. Got {tuple(predicted.shape)}."
            )
        keep = torch.ones_like(truth, dtype=torch.bool) if ignore is None else truth != ignore
        t, p = truth[keep].long(), predicted[keep].long()
        for name, values in (("truth", t), ("predicted", p)):
            if values.numel() and not (0 <= int(values.min()) and int(values.max()) < classes):
                least, most = int(values.min()), int(values.max())
                raise ValueError(f"{name} must hold classes 0 … {classes - 1}. Got {least} … {most}.")
        return cls(torch.bincount(t * classes + p, minlength=classes**2).reshape(classes, classes))

    def __add__(self, other: Scores) -> Scores:
        return Scores(self.confusion + other.confusion)

    @property
    def iou(self) -> Tensor:
        """n_ii / (Σ_j n_ij + Σ_j n_ji − n_ii) of every class, NaN where there is none of it."""
        n = self.confusion.double()
        return n.diagonal() / (n.sum(0) + n.sum(1) - n.diagonal())

    @property
    def miou(self) -> float:
        """The mean of `iou`."""
        return float(self.iou.nanmean())

    @property
    def macc(self) -> float:
        """The mean over classes that occur of n_ii / Σ_j n_ij."""
        n = self.confusion.double()
        return float((n.diagonal() / n.sum(1)).nanmean())

    @property
    def aacc(self) -> float:
        """Σ_i n_ii / Σ_ij n_ij: the share of pixels that are right."""
        return float(self.confusion.diagonal().sum().double() / self.confusion.sum())
