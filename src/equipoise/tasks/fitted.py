"""A trained network with all that it needs to answer raw rows, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.file_rows import FileRows
from ..history import History
from ..models.base import EquilibriumModel
from ..recipe import Kind, Recipe
from ..solve import Stop
from ..theory import Certificate
from ..theory.streams import Stream, parts
from .arrays import Array
from .conformal import Conformal
from .preparation import Preparation, Prepared
from .raw import Rows, calibrating, held_out
from .robust import Perturbation
from .robust_sets import robust_intervals, robust_sets

BATCH, IMAGES = 4096, 256  # rows, and images, predicted at a time: more of them leave the processor's cache
PRECISE = 1e-10  # the tolerance of answers that are solved for in float64
GATHERED = 5_000_000  # equal rows are looked for in tables of up to this many numbers


@dataclass
class Fitted:
    """A trained network, what it needs to answer raw rows, and what is known of it."""

    model: EquilibriumModel
    preparation: Preparation
    certificate: Certificate | None  # of the training, made at its start; None if it was not certified
    wellposed: Certificate  # of the final weights
    history: History
    recipe: Recipe  # with every choice filled in
    validation: dict[str, Any] = field(default_factory=dict)  # what the choices rest on
    stopped: str = ""  # why training ended early, if it did
    advice: str = ""  # what to try if it failed
    conformal: Conformal | None = None  # scores of the calibration rows, if a coverage was asked for
    kept: Rows | None = None  # the calibration rows, only in the process that fitted it
    origin: EquilibriumModel | None = None  # where training began, if not at what its recipe builds
    perturbation: Perturbation | None = None  # of robust training, only in the process that fitted it

    def training(self, X: Any, y: Any, sample_weight: Any = None) -> tuple[Tensor, Tensor]:
        """The tensors that `certificate` is about, of the rows trained on.

        For safeguarded training they are (√w x̃, √w y) of every distinct row; for training in batches they
        are x̃ and y of the rows that were not held out.
        """
        kind: Kind = "regression" if self.preparation.classes is None else "classification"
        rows = Rows.of(X, y, kind, sample_weight, self.preparation.encoding)
        if self.recipe.coverage is not None:
            rows = calibrating(rows, self.recipe.coverage, self.recipe.seed)[0]
        rows = rows.balanced() if self.recipe.class_weight else rows
        if self.recipe.path == "safeguarded":
            return training_tensors(self.model, self.preparation, rows.gathered())
        rows = rows.gathered() if self.recipe.certified and rows.X.size <= GATHERED else rows
        rows = rows if self.recipe.patience is None else held_out(rows, self.recipe.seed)[0]
        return tensors(self.model, self.preparation, rows)

    def start(self) -> EquilibriumModel:
        """The network as it was before the first step."""
        if self.origin is not None:
            return deepcopy(self.origin)
        return self.recipe.build(self.preparation.inputs, self.preparation.outputs)

    def decide(self, X: Any) -> Tensor:
        """The network's outputs, (N,) or (N, k), before they become labels or numbers in the units of y."""
        rows, network = inputs(self.preparation, X), self._answering()
        with torch.no_grad():
            found = torch.cat([network(p) for p in parts(rows, IMAGES if rows.ndim == 4 else BATCH)])
        return found[:, 0] if found.ndim == 2 and self.preparation.outputs == 1 else found

    @property
    def answers_in(self) -> torch.dtype:
        """The dtype of `decide`: float64 for a network of float32 with plain weights, which is solved in it.

        In float32 the other rows of its batch decide whether a row stops an iteration earlier or later:
        scores of 34 differed by 0.01 between batches. Solved in float64 they agree to 1e-8.
        """
        own = self.preparation.dtype
        return torch.float64 if own == torch.float32 and getattr(self.model, "structured", False) else own

    def _answering(self) -> Callable[[Tensor], Tensor]:
        """The network as it answers, in `answers_in`."""
        if self.answers_in == self.preparation.dtype:
            return self.model
        wide = deepcopy(self.model).double()
        return lambda rows: wide(rows.double(), stop=Stop(rtol=PRECISE))

    def predict(self, X: Any) -> Array:
        """Labels, or numbers in the units of the targets."""
        return self.preparation.answers(self.decide(X))

    def predict_proba(self, X: Any) -> Array:
        """softmax(s·ŷ), (N, C), with the sharpness s that makes rows left out of training most likely.

        s is 1 if the loss is a likelihood ("logistic", "cross_entropy"). Safeguarded training fits it to the
        leave-one-out predictions from the features of the start. With another loss it is fitted to the rows
        that patience held out or else to the training rows, which makes the probabilities overconfident.
        """
        return self.preparation.probabilities(self.decide(X))

    def predict_set(self, X: Any, epsilon: float = 0.0, norm: str = "l2") -> Array:
        """(N, C): which classes each row's set holds: the right one as often as the recipe's coverage says.

        The promise is about new rows like those of `fit`, on average over such rows and over the data of
        `fit`. With ε > 0 it holds even if X was moved from such rows by up to ε in the norm "l2" or "linf":
        these sets are larger, and follow from proved bounds of how far the outputs move.
        """
        conformal, coverage = self._calibrated()
        if epsilon != 0:
            return robust_sets(self, X, epsilon, norm)
        return conformal.sets(self.predict_proba(X), coverage)

    def predict_interval(self, X: Any, epsilon: float = 0.0, norm: str = "l2") -> Array:
        """(N, 2), or (N, k, 2): intervals with the promise of `predict_set`, for each target by itself."""
        conformal, coverage = self._calibrated()
        if epsilon != 0:
            return robust_intervals(self, X, epsilon, norm)
        return conformal.intervals(self.predict(X), coverage)

    def _calibrated(self) -> tuple[Conformal, float]:
        if self.conformal is None or self.recipe.coverage is None:
            raise ValueError("sets and intervals need rows that are kept for them: fit(X, y, coverage=0.9).")
        return self.conformal, self.recipe.coverage


def training_tensors(model: Any, preparation: Preparation, data: Rows) -> tuple[Tensor, Tensor]:
    """The (√w x̃, √w y) that a certificate is about."""
    A, B = tensors(model, preparation, data)
    root = torch.from_numpy(np.sqrt(data.weights)).to(preparation.dtype)
    return root[:, None] * A, (root if B.ndim == 1 else root[:, None]) * B


def tensors(model: Any, preparation: Preparation, data: Rows) -> tuple[Any, Tensor]:
    """x̃ and the targets, shaped as the model's outputs are."""
    B = preparation.targets(data.y)
    return inputs(preparation, data.X), B.reshape(model.output_shape(len(B)))


def inputs(preparation: Preparation, X: Any) -> Any:
    """x̃: a tensor, or of rows in a file a Stream of what is read and prepared when it is asked for."""
    return Stream(Prepared(X, preparation)) if isinstance(X, FileRows) else preparation.apply(X)
