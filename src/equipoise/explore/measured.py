"""The loss that a run logs, of any outputs: its rows, its name, and whether it is a sum or a mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..recipe import Kind
from ..tasks.fitted import Fitted
from ..train.objective import Objective, as_objective


@dataclass(frozen=True)
class Measured:
    """Σ_i ℓ(ŷ_i, y_i), or its mean over the rows, as the run's own numbers are taken."""

    X: Tensor  # (n, d) of the network's inputs
    y: Tensor
    of: int  # rows trained on, of which these are n
    name: str  # the name of ℓ in `fit`
    mean: bool
    logged: str  # the name of this series in the run
    objective: Objective

    def __call__(self, yhat: Tensor, y: Tensor) -> Tensor:
        each = self.objective.each(yhat, y)
        return each.mean() if self.mean else each.sum()

    @property
    def words(self) -> str:
        """What is measured, as a figure calls it: "mean cross entropy"."""
        return f"{'mean' if self.mean else 'summed'} {self.name.replace('_', ' ')}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: what is measured and on how many rows, without the rows."""
        return {
            "loss_name": self.name,
            "reduction": "mean" if self.mean else "sum",
            "logged_as": self.logged,
            "rows": len(self.X),
            "rows_trained_on": self.of,
        }


def loss_name(fitted: Fitted) -> str:
    """The name of the loss of one row, as `fit` has it."""
    return fitted.history.loss_name.removeprefix("mean ").replace("smoothed_hinge", "hinge")


def measured(fitted: Fitted, X: Any, y: Any, kind: Kind, most: int, weights: Any = None) -> Measured:
    """The loss that a training logged, on at most so many of its raw rows (X, y), evenly spread over them.

    Safeguarded training takes the sum over all different rows, of the predictions alone (`plain_loss`, if the
    promise is about a loss with slack). In batches it is the mean over the rows that patience left.
    """
    recipe, name, logged = fitted.recipe, loss_name(fitted), "loss"
    X, y = fitted.training(X, y, weights)
    if fitted.history.plain_loss is not None:
        logged = "plain_loss"
    at = torch.linspace(0, len(X) - 1, min(most, len(X)), dtype=torch.float64).round().long()
    objective = as_objective(name, fitted.model, y)
    return Measured(X[at], y[at], len(X), name, recipe.path != "safeguarded", logged, objective)
