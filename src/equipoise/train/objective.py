"""ℓ(ŷ_i, y_i) of each sample: the loss that a Trainer minimises, and the scores that it reports with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..losses import Loss, SmoothedHinge, as_loss
from ..theory.shards import Shard, total
from ..theory.streams import Input
from .safeguarded import accuracy

IGNORED = 255  # the label of a pixel that counts for nothing


class Anywhere:
    """A loss that outputs and targets decide, wherever the inputs are and however far training has come."""

    def near(self, x: Tensor, share: float) -> Self:
        """The loss at inputs x, (N, …), when this share of all steps is done."""
        return self


@dataclass(frozen=True)
class CrossEntropy(Anywhere):
    """ℓ = −Σ_c p_c log softmax(q)_c,  p the class of a label (N,) of integers, or probabilities (N, k).

    For outputs (N, k, H, W) and labels (N, H, W) it is the mean over an image's pixels; 255 leaves one out.
    """

    name = "cross_entropy"

    def each(self, yhat: Tensor, y: Tensor) -> Tensor:
        """ℓ of each sample, (N,)."""
        if yhat.ndim not in (2, 4):
            raise ValueError(
                f"the cross entropy needs one output for each class, (N, k) or (N, k, H, W). Got shape "
                f"{tuple(yhat.shape)} instead."
            )
        pixels = tuple(yhat.shape[2:])
        if y.is_floating_point():
            if y.shape != yhat.shape:
                raise ValueError(
                    f"y must be labels {(len(yhat), *pixels)} of integers, or probabilities "
                    f"{tuple(yhat.shape)}. Got {y.dtype}, shape {tuple(y.shape)} instead."
                )
            return nn.functional.cross_entropy(yhat, y, reduction="none").reshape(len(y), -1).mean(dim=1)
        if y.shape != (len(yhat), *pixels):
            what = "one label for each pixel" if pixels else "one label for each row"
            raise ValueError(f"y must be {(len(yhat), *pixels)}, {what}. Got shape {tuple(y.shape)} instead.")
        k, used = yhat.shape[1], self.used(yhat, y)
        wrong = torch.nonzero(used & ((y < 0) | (y >= k)))
        if len(wrong):
            at = tuple(wrong[0].tolist())
            where = f"row {at[0]}" + (f", pixel {at[1:]}" if pixels else "")
            raise ValueError(
                f"y must lie in 0…{k - 1}, one of the network's {k} outputs. "
                f"Got {int(y[at])} in {where} instead."
            )
        found = nn.functional.cross_entropy(yhat, torch.where(used, y, 0).long(), reduction="none")
        if not pixels:
            return found
        return (found * used).flatten(1).sum(dim=1) / used.flatten(1).sum(dim=1).clamp_min(1)

    def right(self, yhat: Tensor, y: Tensor) -> float:
        """The share of samples, or pixels that count, whose class is right."""
        classes = y if not y.is_floating_point() else y.argmax(dim=1)
        used = self.used(yhat, classes)
        return float((yhat.argmax(dim=1) == classes)[used].double().mean())

    @staticmethod
    def used(yhat: Tensor, classes: Tensor) -> Tensor:
        """Which labels count: all labels of rows, and those of pixels that are not IGNORED."""
        return torch.ones_like(classes, dtype=torch.bool) if yhat.ndim == 2 else classes != IGNORED


@dataclass(frozen=True)
class Entrywise(Anywhere):
    """A Loss of `equipoise.losses`, summed over the outputs of a sample."""

    loss: Loss

    @property
    def name(self) -> str:
        """The name of the loss."""
        return self.loss.name

    def each(self, yhat: Tensor, y: Tensor) -> Tensor:
        """ℓ of each sample, (N,)."""
        values = self.loss.value(yhat, self.loss.check(yhat, y))
        return values.flatten(1).sum(dim=1) if values.ndim > 1 else values


@dataclass(frozen=True)
class Custom(Anywhere):
    """A function of (ŷ, y) that returns ℓ of each sample, (N,)."""

    function: Callable[[Tensor, Tensor], Tensor]

    @property
    def name(self) -> str:
        """The name of the function, or of its class."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def each(self, yhat: Tensor, y: Tensor) -> Tensor:
        """ℓ of each sample, (N,), as the function returns it."""
        values = self.function(yhat, y)
        if not isinstance(values, Tensor) or values.shape != yhat.shape[:1]:
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"a loss must return ({len(yhat)},), one number for each sample: reduction='none'. "
                f"Got {got} instead."
            )
        return values


Objective = CrossEntropy | Entrywise | Custom


def as_objective(which: Any, model: nn.Module, y: Tensor) -> Objective:
    """From a name, a Loss or a function; by default the cross entropy of integers y, else the family's."""
    if which is None:
        if not y.is_floating_point():
            return CrossEntropy()
        which = getattr(model, "natural_loss", "half_square")
    if isinstance(which, CrossEntropy | Entrywise | Custom):
        return which
    if which == "cross_entropy":
        return CrossEntropy()
    if which == "hinge":
        return Entrywise(SmoothedHinge())
    if callable(which) and not isinstance(which, Loss | str):
        return Custom(which)
    try:
        return Entrywise(as_loss(which))
    except ValueError as error:
        known = str(error).replace("one of", "one of 'cross_entropy', 'hinge',")
        raise ValueError(
            f"{known} A function of (ŷ, y) that returns one number for each sample will do too."
        ) from None


@torch.no_grad()
def scores(objective: Objective, yhat: Tensor, y: Tensor) -> dict[str, float]:
    """The share of samples classified right, if y are classes; R², if the loss is a square."""
    found: dict[str, float] = {}
    if isinstance(objective, CrossEntropy):
        found["accuracy"] = objective.right(yhat, y)
    elif objective.name in ("logistic", "smoothed_hinge"):
        share = accuracy(yhat, y) if y.ndim == 2 and y.shape[1] > 1 else None
        middle = 0.5 if objective.name == "logistic" else 0.0
        found["accuracy"] = float(((yhat > 0) == (y > middle)).double().mean()) if share is None else share
    elif objective.name in ("square", "half_square"):
        if (share := accuracy(yhat, y)) is not None:
            found["accuracy"] = share
        spread = float((y - y.mean(dim=0)).square().sum())
        if spread > 0:
            found["r2"] = 1 - float((yhat - y).square().sum()) / spread
    return found


def weights_of(sample_weight: Tensor | None, X: Input) -> Tensor:
    """The weights of the samples, (N,), with a mean of 1."""
    if sample_weight is None:
        rows = X.rows if isinstance(X, Shard) else X
        return torch.ones(len(X), dtype=rows.dtype if rows.is_floating_point() else torch.float64)
    w = sample_weight.detach().cpu().double()
    if w.shape != (len(X),) or not bool((torch.isfinite(w) & (w >= 0)).all()) or not bool(w.any()):
        raise ValueError(
            f"sample_weight must be ({len(X)},), finite, ≥ 0 and not all zero. Got shape {tuple(w.shape)}, "
            f"{float(w.min()) if w.numel() else math.nan:g} to {float(w.max()) if w.numel() else math.nan:g}."
        )
    return w / (total(w.sum())[0] / X.whole if isinstance(X, Shard) else w.mean())
