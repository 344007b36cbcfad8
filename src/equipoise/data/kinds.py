"""Cells as numbers, and targets as regression or classification.

**Missing** is an empty cell, or one of: na, n/a, nan, null, none, ? (in any case).

**Regression or classification?** Decided by the user's `kind`; without one, a target is classification when

- fewer than half of the values are numbers (text labels), at most max(2, N/2) different ones, or
- every value is an integer, and they are {0, 1}, {−1, 1}, or at most 20 different ones and at most N/2;

and regression otherwise. So a target mostly of numbers with some text is a regression with errors in it.
Classes are sorted, numbers by size and texts by alphabet; y holds their indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from equipoise.data.dataset import Array

Kind = Literal["regression", "classification"]
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
MOST_CLASSES = 20  # the most distinct integers that are taken for classes


class Targets(NamedTuple):
    """y as in `Table`; `text` holds by (row, output) the cells that are no target.

    These are words in a regression, and missing classes.
    """

    y: Array
    classes: tuple[str, ...]
    kind: Kind
    text: dict[tuple[int, int], str]

    def take(self, rows: Array) -> Targets:
        """The targets of some rows, with the same classes."""
        at = {int(i): k for k, i in enumerate(rows)} if self.text else {}
        text = {(at[i], j): cell for (i, j), cell in self.text.items() if i in at}
        return Targets(self.y[rows], self.classes, self.kind, text)

    def present(self) -> Array:
        """The rows that have a target, or at least a word in the place of it."""
        if self.kind == "classification":
            gone = {i for i, _ in self.text}
        else:
            missing = np.argwhere(np.isnan(self.y.reshape(len(self.y), -1))).tolist()
            gone = {i for i, j in missing if (i, j) not in self.text}
        return np.array([i for i in range(len(self.y)) if i not in gone], dtype=np.intp)


def is_missing(cell: str) -> bool:
    """Whether a cell says that there is no value."""
    return cell.strip().lower() in MISSING


def to_number(cell: str) -> float:
    """The number in a cell, NaN if there is none; 1_000 is not a number in a file."""
    try:
        return float("nan") if "_" in cell else float(cell)
    except ValueError:
        return float("nan")


def read_targets(cells: Sequence[str], kind: Kind | None) -> Targets:
    """The targets in the cells of a column: classes or numbers, as `kind` says or as is told from them."""
    values = np.array([to_number(cell) for cell in cells], dtype=np.float64)
    present = np.array([not is_missing(cell) for cell in cells], dtype=bool)
    number = present & ~np.isnan(values)
    labels = {cell.strip() for cell, there in zip(cells, present, strict=True) if there}
    if kind is None:
        kind = _decide(values[number], labels, int(present.sum()))
    if kind == "regression":
        words = {(i, 0): cells[i] for i in np.flatnonzero(present & ~number).tolist()}
        return Targets(values, (), kind, words)
    missing = {(i, 0): cells[i] for i in np.flatnonzero(~present).tolist()}
    if np.isfinite(values[present]).all():
        levels = np.unique(values[present])
        names = tuple(str(int(v)) if v == int(v) else repr(v) for v in levels.tolist())
        y = np.where(present, np.searchsorted(levels, values), -1)
    else:
        names = tuple(sorted(labels))
        index = {name: k for k, name in enumerate(names)}
        y = np.array([index.get(cell.strip(), -1) for cell in cells])
    return Targets(y.astype(np.int64), names, kind, missing)


def read_several(columns: Sequence[Sequence[str]]) -> Targets:
    """Several columns of numbers to predict at once, (N, k)."""
    read = [read_targets(cells, "regression") for cells in columns]
    text = {(i, j): cell for j, found in enumerate(read) for (i, _), cell in found.text.items()}
    return Targets(np.column_stack([found.y for found in read]), (), "regression", text)


def _decide(numbers: Array, labels: set[str], present: int) -> Kind:
    if len(numbers) < present / 2:
        return "classification" if len(labels) <= max(2, present / 2) else "regression"
    if len(numbers) < present or not (np.isfinite(numbers) & (numbers == np.round(numbers))).all():
        return "regression"
    levels = set(numbers.tolist())
    binary = levels in ({0.0, 1.0}, {-1.0, 1.0})
    return "classification" if binary or len(levels) <= min(MOST_CLASSES, present / 2) else "regression"
