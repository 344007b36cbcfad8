"""Which rows are trained on and which are held out: drawn by the labels alone, before rows are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.file_rows import FileRows, chosen
from ..memory import taken

Array = NDArray[Any]
Pair = tuple[Array, Array]


class Split:
    """The rows to train on and those to test with; of the former about `most`, where that is given.

    With `validation` that share of the rows to train on takes the place of the test rows, which nobody reads:
    what is chosen by them has seen no test row.
    """

    def __init__(
        self,
        labels: Array | None,
        rows: int,
        seed: int,
        share: float = 0.0,
        most: int | None = None,
        validation: float | None = None,
    ) -> None:
        held = held_out(labels, rows, share, seed)
        self.rows = np.flatnonzero(~held)  # to train on
        self.test = np.flatnonzero(held)
        self.words = ""
        if most is not None and most < len(self.rows):
            of_them = None if labels is None else labels[self.rows]
            drawn = ~held_out(of_them, len(self.rows), 1 - most / len(self.rows), seed)
            self.words = f"; of {len(self.rows)} rows to train on, {drawn.sum()} drawn at random"
            self.rows = self.rows[drawn]
        if validation is not None:
            of_them = None if labels is None else labels[self.rows]
            out = held_out(of_them, len(self.rows), validation, seed)
            self.words += f"; {out.sum()} rows to train on were held out to choose by, in place of test rows"
            self.rows, self.test = self.rows[~out], self.rows[out]

    @property
    def wanted(self) -> Array:
        """The rows of either part, in their order: no others need be read."""
        return np.sort(np.concatenate([self.rows, self.test]))

    def divide(self, X: Array, y: Array) -> tuple[Pair, Pair | None]:
        """Divide the wanted rows into those to train on and those to test with."""
        train, test = (np.searchsorted(self.wanted, rows) for rows in (self.rows, self.test))
        some = chosen if isinstance(X, FileRows) else taken
        return (some(X, train), y[train]), (some(X, test), y[test]) if len(test) else None


def held_out(labels: Array | None, rows: int, share: float, seed: int) -> Array:
    """A mask of `share` of the rows, of each class alike; a class keeps a row to train on."""
    return draw(labels, rows, lambda n: min(int(share * n + 0.5), n - 1), seed)


def draw(labels: Array | None, rows: int, count: Callable[[int], int], seed: int) -> Array:
    """A mask of rows drawn at random: `count` says how many of the n of a class, or of all without labels."""
    generator, drawn = np.random.default_rng(seed), np.zeros(rows, dtype=bool)
    groups = [np.arange(rows)] if labels is None else [np.flatnonzero(labels == c) for c in np.unique(labels)]
    for group in groups:
        drawn[generator.permutation(group)[: count(len(group))]] = True
    return drawn
