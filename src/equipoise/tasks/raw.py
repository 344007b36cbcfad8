"""Raw rows to train on: checked, weighted, and some of them held out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from ..data.encoding import Encoding
from ..data.errors import DataError
from ..data.file_rows import chosen
from ..recipe import Kind
from .arrays import Array, as_labels, as_numbers, as_rows, gathered
from .splitting import draw

HELD_OUT = "a fifth of the rows, not trained on, said when to stop; test_loss and test_accuracy are theirs"


def held_out(data: Rows, seed: int) -> tuple[Rows, Rows]:
    """Four fifths to train on and a fifth to stop by, drawn within each class; none of weight 0."""
    data = data.take(data.weights > 0)
    labels = data.y if data.kind == "classification" else None
    out = draw(labels, len(data.y), lambda n: n // 5, seed)
    if not out.any():
        raise DataError(
            f"patience needs rows to hold out: five or more of a class, or in all. Got {len(data.y)} rows: "
            f"leave patience out."
        )
    return data.take(~out), data.take(out)


def calibrates(weights: Array, seed: int) -> Array:
    """(N,): a mask of a quarter of the rows of weight > 0, drawn at random."""
    used, kept = np.flatnonzero(weights > 0), np.zeros(len(weights), dtype=bool)
    kept[used[np.random.default_rng(seed).permutation(len(used))[: -(-len(used) // 4)]]] = True
    return kept


def calibrating(data: Rows, coverage: float, seed: int) -> tuple[Rows, Rows]:
    """Split the rows of weight > 0: three quarters to train on, and one to calibrate a promise of coverage.

    The quarter is drawn at random from all of them, so that a new row is like any of its rows. How columns
    are encoded is decided without it.
    """
    data = data.take(data.weights > 0)
    n = len(data.y)
    kept = calibrates(data.weights, seed)
    c = Fraction(repr(float(coverage)))
    if math.ceil((kept.sum() + 1) * c) > kept.sum():
        least = math.ceil(c / (1 - c))
        raise DataError(
            f"a coverage of {coverage} needs {least} rows or more to calibrate it, a quarter of all. Got "
            f"{n} rows: give {4 * least - 3} or more, or ask for less."
        )
    train = data.take(~kept)
    if data.encoding is not None:
        made = Encoding.of(train.X, data.encoding.columns, data.encoding.dropped)
        train = replace(train, encoding=made)
    return train, data.take(kept)


@dataclass(frozen=True)
class Rows:
    """Raw rows, checked: X (N, d) float64, y labels (N,) or numbers (N,) or (N, k), weights (N,) ≥ 0."""

    X: Array
    y: Array
    weights: Array
    kind: Kind
    encoding: Encoding | None = None
    image: tuple[int, ...] = ()  # the shape of a row that is an image, whose numbers are all in one unit

    @classmethod
    def of(
        cls, X: Any, y: Any, kind: Kind, sample_weight: Any = None, encoding: Encoding | None = None
    ) -> Rows:
        """Check raw rows, targets and weights; whatever is wrong with them is a DataError that says so."""
        if kind not in ("classification", "regression"):
            raise ValueError(f"kind must be 'classification' or 'regression'. Got {kind!r} instead.")
        rows = as_rows(X, encoding)
        targets = as_labels(y) if kind == "classification" else as_numbers(y)
        if len(targets) != len(rows):
            raise DataError(f"X and y must have the same number of rows. Got {len(rows)} and {len(targets)}.")
        weights = np.ones(len(rows))
        if sample_weight is not None:
            weights = np.asarray(sample_weight, dtype=np.float64)
            if weights.shape != (len(rows),):
                raise DataError(
                    f"sample_weight must be ({len(rows)},), a weight for each row. Got shape {weights.shape}."
                )
            if len(wrong := np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))):
                raise DataError(f"weights must be finite and ≥ 0. Got {weights[wrong[0]]} in row {wrong[0]}.")
        if not np.any(weights > 0):
            raise DataError(f"at least one row of weight > 0 is required to train on. Got {len(rows)} rows.")
        return cls(rows, targets, weights, kind, encoding, np.shape(X)[1:] if np.ndim(X) > 2 else ())

    def balanced(self) -> Rows:
        """The same rows, with weights changed so that every class weighs as much as any other."""
        if self.kind != "classification":
            raise ValueError("class_weight is for classes, and the targets are numbers: leave it out.")
        _, codes = np.unique(self.y, return_inverse=True)
        sums = np.bincount(codes, weights=self.weights)
        share = np.divide(self.weights.sum() / np.count_nonzero(sums), sums, where=sums > 0, out=0 * sums)
        return replace(self, weights=self.weights * share[codes])

    def gathered(self) -> Rows:
        """Every different row once, with the sum of its weights."""
        X, y, weights = gathered(self.X, self.y, self.weights)
        return replace(self, X=X, y=y, weights=weights)

    def take(self, rows: Array) -> Rows:
        """Some of the rows, by index or mask."""
        return replace(self, X=chosen(self.X, rows), y=self.y[rows], weights=self.weights[rows])
