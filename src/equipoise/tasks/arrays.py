"""Raw rows, labels and numbers as arrays, or an error that says what is wrong in which row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..data.columns import is_frame, read_frame
from ..data.encoding import Encoding
from ..data.errors import DataError
from ..data.file_rows import FileRows
from ..memory import spans

Array = NDArray[Any]

_EPS = float(np.finfo(np.float64).eps)
LABELS: dict[str, Any] = {"b": np.bool_, "i": np.int64, "u": np.uint64, "f": np.float64, "U": np.str_}


def as_rows(X: Any, encoding: Encoding | None = None) -> Array:
    """X as float64 (N, d), one row for each sample, or an error that says what is wrong in which row.

    With an encoding a value may be missing, and a data frame is read by the names of its columns.

    Rows lie one after another in memory, whether they came from an array or from a table that keeps its
    columns together: the last bit of a product may depend on the layout.
    """
    rows: Any
    try:
        if encoding is not None and is_frame(X):
            X = read_frame(X, encoding.columns)[0]
        rows = X if isinstance(X, FileRows) else np.asarray(X, dtype=np.float64, order="C")
    except DataError:
        raise
    except (TypeError, ValueError) as error:
        raise DataError(f"X must be numbers, one row for each sample. Got something else: {error}") from None
    if rows.ndim > 2:  # images
        rows = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise DataError(f"X must be (N, d), one row for each sample, d ≥ 1. Got shape {rows.shape} instead.")
    for span in spans(*rows.shape):
        part = rows[span] if encoding is None else np.where(np.isnan(rows[span]), 0.0, rows[span])
        refuse_nonfinite(part, "is NaN or infinite: remove or fill in the row", first=span.start)
    return rows


def channels_first(images: Tensor) -> Tensor:
    """(N, channels, height, width) of images (N, height, width), with the channels first or last.

    They are taken to be last if the last size is 1, 3 or 4, as for colours, and the first size is not.
    """
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4:
        shape = tuple(images.shape[1:])
        raise DataError(
            f"images must be (N, height, width), (N, channels, height, width) or (N, height, width, "
            f"channels). Got rows of shape {shape} instead."
        )
    last = images.shape[3] in (1, 3, 4) and images.shape[1] not in (1, 3, 4)
    return images.permute(0, 3, 1, 2).contiguous() if last else images


def as_labels(y: Any) -> Array:
    """Labels as an array of integers, words or numbers, (N,)."""
    labels = np.asarray(y)
    if labels.dtype.kind == "O":
        labels = np.array([str(v) for v in labels.tolist()]) if labels.ndim == 1 else labels
    if labels.ndim != 1 or labels.dtype.kind not in LABELS:
        raise DataError(
            f"labels must be integers or words, (N,). Got {labels.dtype} of shape {labels.shape} instead."
        )
    if labels.dtype.kind == "f":
        refuse_nonfinite(labels[:, None], "is NaN or infinite, which is no label")
    return labels.astype(LABELS[labels.dtype.kind])


def as_numbers(y: Any) -> Array:
    """Targets as float64, (N,) or (N, k)."""
    try:
        numbers = np.asarray(y, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise DataError(f"targets must be numbers. Got something else: {error}") from None
    if numbers.ndim not in (1, 2) or (numbers.ndim == 2 and numbers.shape[1] == 0):
        raise DataError(f"targets must be (N,) or (N, k). Got shape {numbers.shape} instead.")
    columns = numbers[:, None] if numbers.ndim == 1 else numbers
    refuse_nonfinite(columns, "is NaN or infinite, which is no target", "target")
    return numbers


def gathered(X: Array, y: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Every distinct (row, target) of weight > 0 once, in a fixed order, with the sum of its weights.

    So it makes no difference in which order rows come, or whether a row is repeated or weighted instead.
    """
    X, y, weights = X[weights > 0], y[weights > 0], weights[weights > 0]
    codes = np.unique(y, return_inverse=True)[1].reshape(-1) if y.ndim == 1 else y
    keys = np.column_stack([X, codes.astype(np.float64)]) + 0.0  # −0 is 0
    bits = keys.view(np.dtype((np.void, keys.itemsize * keys.shape[1])))[:, 0]  # compared byte by byte
    _, first, same = np.unique(bits, return_index=True, return_inverse=True)
    return X[first], y[first], np.bincount(same.reshape(-1), weights=weights)


def refuse_nonfinite(rows: Array, what: str, column: str = "column", first: int = 0) -> None:
    """A DataError that names the first entry that is not finite; the rows are counted from `first`."""
    finite = np.isfinite(rows)
    if not finite.all():
        i, j = np.argwhere(~finite)[0]
        where = f"row {first + i}, {column} {j}"
        raise DataError(f"{where}: {rows[i, j]} {what}.")


def evenly(n: int, most: int) -> Array:
    """At most `most` of n rows, evenly spaced: the same ones every time, from every part of the file."""
    return np.arange(n) if n <= most else np.linspace(0, n - 1, most).round().astype(int)


def rows_at(X: Any, at: Array) -> Any:
    """Some rows of an array or of a data frame."""
    if hasattr(X, "iloc"):
        return X.iloc[at]
    return X[at] if isinstance(X, FileRows) else np.asarray(X)[at]


def moments(X: Array, weights: Array, what: str, names: Sequence[str] = ()) -> tuple[Array, Array]:
    """Mean and deviation of each column; a deviation within rounding of a constant column is 0."""
    share = weights / weights.sum()
    parts = list(spans(*X.shape))
    with np.errstate(over="ignore", invalid="ignore"):
        mean = sum((share[part] @ X[part] for part in parts), np.zeros(X.shape[1]))
        square = sum((share[part] @ (X[part] - mean) ** 2 for part in parts), np.zeros(X.shape[1]))
        deviation = np.sqrt(square)
    if len(wrong := np.flatnonzero(~np.isfinite(deviation))):
        name = repr(names[wrong[0]]) if names else wrong[0]
        raise DataError(f"{what} {name}: its numbers are too large to be squared. Divide it by a constant.")
    same = np.all([(X[part] == X[:1]).all(axis=0) for part in parts], axis=0)
    constant = same | (deviation <= 10 * len(X) * _EPS * np.abs(mean))
    return np.where(constant, X[0], mean), np.where(constant, 0.0, deviation)
