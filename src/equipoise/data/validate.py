"""A table of the user, and what can be wrong with it."""

from __future__ import annotations

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from equipoise.data.dataset import Array
from equipoise.data.errors import DataError, DataWarning, refuse, some
from equipoise.data.kinds import Kind

SMALLEST = 2  # rows below which nothing can be learnt


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers of the user: X (N, d) float64, and y.

    Regression: y is float64, (N,) or (N, k). Classification: y is int64 (N,), indices into `classes`.
    `y`, `target` and `kind` are None in a table without targets. `places` names each row as its owner
    knows it ("line 7", "image cats/3.png"); where it is empty a row is named by its index, "row 5".
    `image_shape` is set where the columns are pixels.
    """

    X: Array = field(repr=False)
    y: Array | None = field(repr=False)
    features: tuple[str, ...]
    target: str | None
    kind: Kind | None
    classes: tuple[str, ...] = ()
    source: str = "table"
    places: tuple[str, ...] = field(default=(), repr=False)
    image_shape: tuple[int, ...] | None = None

    def place(self, row: int) -> str:
        return self.places[row] if self.places else f"row {row}"


Cells = Mapping[tuple[int, int], str]  # (row, column) -> a text that is no number; column −1 is the target


def validate(table: Table) -> Table:
    """The table itself if nothing is wrong with it; otherwise one `DataError` that lists everything.

    Errors: missing or infinite values, a constant column (pixels may be constant), a constant target, a class
    alone, labels outside the classes, fewer than 2 rows. Rows with equal inputs are a `DataWarning`: with
    equal targets they are redundant, with different targets no model fits both; either way the tangent kernel
    is singular. A table without targets, to predict from, may have one row, and constant columns.
    """
    return checked_table(table, {}, [])


def checked_table(table: Table, text: Cells, problems: Sequence[str], whole: bool = True) -> Table:
    """`validate` for a reader: `problems` it met, `text` the cells it could not read (NaN in X and y).

    A column may be constant on the rows of a table that are not the `whole` of it.
    """
    problems = [*problems, *_problems(table, text, whole)]
    if problems:
        raise refuse(table.source, problems)
    if message := _repeated_rows(table):
        warnings.warn(message, DataWarning, stacklevel=3)
    return table


def _problems(table: Table, text: Cells, whole: bool) -> list[str]:
    _check_shapes(table)
    problems = []
    required = 1 if table.y is None else SMALLEST
    if len(table.X) < required:
        problems.append(f"at least {required} data rows are required; got {len(table.X)}")
    for j, name in enumerate(table.features):
        problems += _bad_cells(table, table.X[:, j], f"column {name!r}", j, text, whole)
    if table.kind == "classification":
        problems += _bad_classes(table, text)
    elif table.y is not None:
        y = table.y.reshape(len(table.y), -1)
        for j in range(y.shape[1]):
            name = f"target {table.target!r}" + (f", output {j}" if table.y.ndim == 2 else "")
            problems += _bad_cells(table, y[:, j], name, -1, text, whole)
    return problems


def _check_shapes(table: Table) -> None:
    X, y, kind = table.X, table.y, table.kind
    if X.ndim != 2 or X.shape[1] != len(table.features) or X.shape[1] == 0:
        raise DataError(
            f"{table.source}: X must be (N, d) with d ≥ 1 named features; got shape {X.shape} "
            f"and {len(table.features)} names"
        )
    if (y is None) != (kind is None) or kind not in ("regression", "classification", None):
        raise DataError(
            f"{table.source}: kind must be 'regression' or 'classification', None without y; got {kind!r}"
        )
    if y is not None and (len(y) != len(X) or y.ndim not in ((1,) if kind == "classification" else (1, 2))):
        raise DataError(f"{table.source}: y must hold one target a row of X ({len(X)}); got shape {y.shape}")
    if y is not None and kind == "classification" and not np.issubdtype(y.dtype, np.integer):
        raise DataError(f"{table.source}: y must hold indices into classes, integers; got {y.dtype}")


def _bad_cells(table: Table, column: Array, name: str, j: int, text: Cells, whole: bool) -> list[str]:
    """One message for each kind of trouble in a column, naming the first rows it is met in."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for i in np.flatnonzero(~np.isfinite(column)).tolist():
        if (i, j) in text:
            kinds["not a number"].append(f"{table.place(i)} ({text[i, j]!r})")
        else:
            kinds["missing value" if np.isnan(column[i]) else "infinite value"].append(table.place(i))
    texts = kinds.get("not a number", [])
    if len(texts) > 1 and not np.isfinite(column).any():
        remedy = "encode it as numbers, or remove it" if j >= 0 else "for classes, kind='classification'"
        return [f"{name} holds text, first in {texts[0]}: {remedy}"]
    problems = [f"{name}: {kind} in {some(places)}" for kind, places in kinds.items()]
    may_be_constant = table.y is None or (j >= 0 and (table.image_shape is not None or not whole))
    if not problems and not may_be_constant and len(column) >= SMALLEST and (column == column[0]).all():
        useless = "there is nothing to learn" if j < 0 else "it tells nothing: remove it"
        problems.append(f"{name} is constant ({column[0]:g} in every row): {useless}")
    return problems


def _bad_classes(table: Table, text: Cells) -> list[str]:
    y, name = np.asarray(table.y), f"target {table.target!r}"
    missing = [i for i, j in text if j == -1]
    strange = sorted(set(np.flatnonzero((y < 0) | (y >= len(table.classes))).tolist()) - set(missing))
    problems = []
    if missing:
        problems.append(f"{name}: missing value in {some([table.place(i) for i in sorted(missing)])}")
    if strange:
        problems.append(
            f"{name}: label outside 0 … {len(table.classes) - 1} in {some([table.place(i) for i in strange])}"
        )
    if not problems and len(y) >= SMALLEST and (y == y[0]).all():
        only = table.classes[y[0]]
        problems.append(f"{name} has one class only ({only!r} in every row): at least two are required")
    return problems


def _repeated_rows(table: Table) -> str | None:
    if table.y is None:
        return None
    first: dict[bytes, int] = {}
    same: list[str] = []
    conflicting: list[str] = []
    for i, row in enumerate(table.X):
        content = (row + 0.0).tobytes()  # −0 and 0 are equal
        k = first.setdefault(hashlib.sha256(content).digest(), i)
        if k == i:
            continue
        agrees = np.array_equal(table.y[i], table.y[k])
        (same if agrees else conflicting).append(f"{table.place(i)} (as {table.place(k)})")
    parts = []
    if conflicting:
        parts.append(f"equal inputs with different targets in {some(conflicting)}: no model fits both")
    if same:
        parts.append(f"repeated rows in {some(same)}")
    if not parts:
        return None
    return f"{table.source}: {'; '.join(parts)}. The tangent kernel is singular on such rows"
