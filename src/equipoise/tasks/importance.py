"""Which inputs matter: how much worse the answers get when one column is shuffled among the rows.

A column is shuffled as it stands in the table, before it is encoded: a category as a whole, a missing value
with the others. In images whole patches are shuffled, of which there are at most 14 × 14. Columns that say
the same thing stand in for each other, so each of them may seem to matter little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .arrays import Array, as_rows, evenly
from .fitted import BATCH, Fitted
from .scores import score

ANSWERS = 40_000  # about how many answers are asked of the network
ROWS, FEWEST = 500, 40  # the most and the fewest rows that a column is shuffled among
REPEATS = 5
COLUMNS = 500
PATCHES = 14  # on a side of an image


def importance(
    fitted: Fitted, X: Any, y: Any, shape: Sequence[int] | None = None, seed: int = 0
) -> dict[str, Any]:
    """What shuffling costs: `drops`, by column, of accuracy or R², and their `spread` over the repeats.

    For images of this `shape` it is the `rises`, by patch of a `grid`, of the mean −log probability of the
    true class, which says more than the accuracy when hardly any answer changes.
    """
    X, y = as_rows(X, fitted.preparation.encoding), np.asarray(y)
    images = shape is not None and len(shape) >= 2 and math.prod(shape) == X.shape[1]
    groups, grid = _patches(shape) if images and shape else ([np.array([j]) for j in range(X.shape[1])], None)
    if len(groups) > COLUMNS:
        raise ValueError(f"at most {COLUMNS} columns are shuffled, one by one. The data have {len(groups)}.")
    rows = min(len(X), ROWS, max(FEWEST, ANSWERS // len(groups)))
    repeats = int(np.clip(ANSWERS // (rows * len(groups)), 1, REPEATS))
    at = evenly(len(X), rows)
    judge = _judge(fitted, y[at], surprise=grid is not None)
    before = judge(fitted.decide(X[at]))
    worse = np.array(_shuffled(fitted, X[at], groups, repeats, judge, seed)).reshape(repeats, len(groups))
    found: dict[str, Any] = {"rows": rows, "repeats": repeats, "before": before}
    if grid is not None:
        return found | {"grid": grid, "rises": (worse - before).mean(axis=0).tolist()}
    drops = before - worse
    spread = drops.std(axis=0, ddof=1).tolist() if repeats > 1 else []
    return found | {"drops": drops.mean(axis=0).tolist(), "spread": spread}


def _patches(shape: Sequence[int]) -> tuple[list[Array], list[int]]:
    """The columns of each patch of an image (height, width, …), and how many there are each way."""
    height, width = shape[0], shape[1]
    side = -(-max(height, width) // PATCHES)
    grid = [-(-height // side), -(-width // side)]
    own = (np.arange(height) // side)[:, None] * grid[1] + np.arange(width) // side
    flat = np.broadcast_to(own.reshape(height, width, *[1] * (len(shape) - 2)), tuple(shape)).reshape(-1)
    return [np.flatnonzero(flat == g) for g in range(grid[0] * grid[1])], grid


def _shuffled(
    fitted: Fitted, X: Array, groups: list[Array], repeats: int, judge: Callable[[Any], float], seed: int
) -> list[float]:
    """The judgement of every shuffled table: all columns in turn, `repeats` times, several tables at once."""
    rng = np.random.default_rng(seed)
    tables, found = list(groups) * repeats, []
    together = max(1, BATCH // len(X))
    for first in range(0, len(tables), together):
        some = tables[first : first + together]
        rows = np.tile(X, (len(some), 1)).reshape(len(some), *X.shape)
        for table, columns in zip(rows, some, strict=True):
            table[:, columns] = X[rng.permutation(len(X))][:, columns]
        outputs = fitted.decide(rows.reshape(-1, X.shape[1]))
        found += [judge(part) for part in outputs.split(len(X))]
    return found


def _judge(fitted: Fitted, y: Array, surprise: bool) -> Callable[[Any], float]:
    """Accuracy or R² of outputs, or the mean of −log of the true class's probability."""
    prepared = fitted.preparation
    labels = prepared.classes is not None
    if prepared.classes is not None and surprise:
        own = np.searchsorted(prepared.classes, y)

        def surprised(outputs: Any) -> float:
            share = prepared.probabilities(outputs)[np.arange(len(own)), own]
            return float(-np.log(np.maximum(share, 1e-12)).mean())

        return surprised

    def judged(outputs: Any) -> float:
        found = score(prepared.answers(outputs), y, labels)
        value = found["accuracy" if labels else "r2"]
        if value is None:
            raise ValueError("the targets do not vary, so there is no R² to lose.")
        return -value if surprise else value

    return judged
