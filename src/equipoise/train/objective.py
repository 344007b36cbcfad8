"""ℓ(ŷ_i, y_i) of each sample: what a Trainer makes small, and the scores that it reports beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..losses import Loss, SmoothedHinge, as_loss
from ..models.affine import AffineFamily
from .descent import default_loss
from .safeguarded import accuracy


@dataclass(frozen=True)
class CrossEntropy:
    """ℓ = −Σ_c p_c log softmax(q)_c,  p the class of a label (N,) of integers, or probabilities (N, k)."""

    name = "cross_entropy"

    def each(self, yhat: Tensor, y: Tensor) -> Tensor:
        """(N,)"""
        if yhat.ndim != 2:
            raise ValueError(
                f"the cross entropy needs an output a class, (N, k). Got shape {tuple(yhat.shape)} instead."
            )
        if y.is_floating_point():
            if y.shape != yhat.shape:
                raise ValueError(
                    f"y must be labels ({len(yhat)},) of integers, or probabilities {tuple(yhat.shape)}. "
                    f"Got {y.dtype}, shape {tuple(y.shape)} instead."
                )
        elif y.shape != yhat.shape[:1]:
            raise ValueError(f"y must be ({len(yhat)},), a label a row. Got shape {tuple(y.shape)} instead.")
        else:
            wrong = torch.nonzero((y < 0) | (y >= yhat.shape[1])).flatten()
            if len(wrong):
                row = int(wrong[0])
                raise ValueError(
                    f"y must lie in 0…{yhat.shape[1] - 1}, one of the network's {yhat.shape[1]} outputs. "
                    f"Got {int(y[row])} in row {row} instead."
                )
        target = y if y.is_floating_point() else y.long()
        return nn.functional.cross_entropy(yhat, target, reduction="none")


@dataclass(frozen=True)
class Entrywise:
    """A Loss of `equipoise.losses`, summed over the outputs of a sample."""

    loss: Loss

    @property
    def name(self) -> str:
        return self.loss.name

    def each(self, yhat: Tensor, y: Tensor) -> Tensor:
        """(N,)"""
        values = self.loss.value(yhat, self.loss.check(yhat, y))
        return values.flatten(1).sum(dim=1) if values.ndim > 1 else values


@dataclass(frozen=True)
class Custom:
    """A function of (ŷ, y) that returns ℓ of each sample, (N,)."""

    function: Callable[[Tensor, Tensor], Tensor]

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def each(self, yhat: Tensor, y: Tensor) -> Tensor:
        values = self.function(yhat, y)
        if not isinstance(values, Tensor) or values.shape != yhat.shape[:1]:
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"a loss must return ({len(yhat)},), a number a sample: reduction='none'. Got {got} instead."
            )
        return values


Objective = CrossEntropy | Entrywise | Custom


def as_objective(which: Any, model: nn.Module, y: Tensor) -> Objective:
    """By name, a Loss, or a function; by default the family's, or the cross entropy where y are integers."""
    if which is None:
        if not y.is_floating_point():
            return CrossEntropy()
        which = default_loss(model) if isinstance(model, AffineFamily) else "half_square"
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
            f"{known} A function of (ŷ, y) that returns a number a sample will do too."
        ) from None


@torch.no_grad()
def scores(objective: Objective, yhat: Tensor, y: Tensor) -> dict[str, float]:
    """The share of samples classified right, where y are classes; R², where the loss is a square."""
    found: dict[str, float] = {}
    if isinstance(objective, CrossEntropy):
        classes = y if not y.is_floating_point() else y.argmax(dim=1)
        found["accuracy"] = float((yhat.argmax(dim=1) == classes).double().mean())
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
