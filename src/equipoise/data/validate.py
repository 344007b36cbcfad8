"""A table of the user, and what can be wrong with it."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from equipoise.data.columns import Column
from equipoise.data.dataset import Array
from equipoise.data.errors import DataError, DataWarning, refuse, some
from equipoise.data.kinds import Kind
from equipoise.memory import spans

SMALLEST = 2  # with fewer rows nothing can be learnt
MANY = 200_000  # in more rows than this equal ones are not looked for


@dataclass(frozen=True, eq=False)
class Table:
    """A table of the user: X (N, d) float64, and y.

    `columns` says what the columns of X hold, for X is a matrix of numbers whatever they hold; it is empty
    where they are all plain numbers. A missing value is NaN. `dropped` names the columns of the file that are
    not in X, and why. Regression: y is float64, (N,) or (N, k), and `target` names its columns, divided by
    commas. Classification: y is int64 (N,), indices into `classes`. `y`, `target` and `kind` are None in a
    table without targets. `weights` (N,) are those of the rows, if the table has them. `places` names each
    row as its owner knows it ("line 7", "image cats/3.png"); where it is empty a row is named by its index,
    "row 5". `image_shape` is set where the columns are pixels.
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
    columns: tuple[Column, ...] = ()
    dropped: Mapping[str, str] = field(default_factory=dict)
    weights: Array | None = field(default=None, repr=False)

    def place(self, row: int) -> str:
        """The name of a row in messages."""
        return self.places[row] if self.places else f"row {row}"


def validate(table: Table) -> Table:
    """The table itself if nothing is wrong with it; otherwise one `DataError` that lists everything.

    Errors: infinite values, a missing or constant target, a single class, labels outside the classes, weights
    that are missing or negative, fewer than 2 rows. Rows with equal inputs are a `DataWarning`: with equal
    targets they are redundant, with different targets no model fits both; either way the tangent kernel is
    singular. A table without targets, to predict from, may have a single row.
    """
    return checked_table(table, {}, [])


def checked_table(table: Table, text: Mapping[tuple[int, int], str], problems: Sequence[str]) -> Table:
    """`validate` for a reader with its `problems`, and the `text` of targets it could not read, by place."""
    problems = [*problems, *_problems(table, text)]
    if problems:
        raise refuse(table.source, problems)
    if message := _repeated_rows(table):
        warnings.warn(message, DataWarning, stacklevel=3)
    return table


def _problems(table: Table, text: Mapping[tuple[int, int], str]) -> list[str]:
    _check_shapes(table)
    problems = []
    required = 1 if table.y is None else SMALLEST
    if len(table.X) < required:
        problems.append(f"at least {required} data rows are required; got {len(table.X)}")
    infinite: dict[int, list[int]] = {}
    for span in spans(*table.X.shape):
        for i, j in np.argwhere(np.isinf(table.X[span])).tolist():
            infinite.setdefault(j, []).append(span.start + i)
    for j, rows in sorted(infinite.items()):
        where = _places(table, np.array(rows))
        problems.append(f"column {table.features[j]!r}: infinite value in {where}")
    if table.kind == "classification":
        problems += _bad_classes(table, [i for i, _ in text])
    elif table.y is not None:
        y = table.y.reshape(len(table.y), -1)
        names = str(table.target).split(",") if y.shape[1] > 1 else [str(table.target)]
        for j in range(y.shape[1]):
            given = len(names) == y.shape[1]
            name = f"target {names[j]!r}" if given else f"target {table.target!r}, output {j}"
            problems += _bad_numbers(
                table, y[:, j], name, {i: cell for (i, k), cell in text.items() if k == j}
            )
    if table.weights is not None and len(
        bad := np.flatnonzero(~(table.weights >= 0) | np.isinf(table.weights))
    ):
        problems.append(f"weights must be finite numbers ≥ 0; they are not in {_places(table, bad)}")
    return problems


def _places(table: Table, rows: Array) -> str:
    return some([table.place(int(i)) for i in rows])


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
        raise DataError(
            f"{table.source}: y must hold one target for each row of X ({len(X)}); got shape {y.shape}"
        )
    if y is not None and kind == "classification" and not np.issubdtype(y.dtype, np.integer):
        raise DataError(f"{table.source}: y must hold indices into classes, integers; got {y.dtype}")


def _bad_numbers(table: Table, y: Array, name: str, text: Mapping[int, str]) -> list[str]:
    """One message for each kind of problem in a column of targets, naming the first rows that have it."""
    words = [f"{table.place(i)} ({cell!r})" for i, cell in sorted(text.items())]
    if len(words) > 1 and not np.isfinite(y).any():
        return [f"{name} holds text, first in {words[0]}: for classes, pass --kind classification"]
    missing = np.array([i for i in np.flatnonzero(np.isnan(y)).tolist() if i not in text], dtype=int)
    problems = [f"{name}: not a number in {some(words)}"] if words else []
    if len(missing):
        problems.append(f"{name}: missing value in {_places(table, missing)}{_LEAVE_OUT}")
    if np.isinf(y).any():
        problems.append(f"{name}: infinite value in {_places(table, np.flatnonzero(np.isinf(y)))}")
    if not problems and len(y) >= SMALLEST and (y == y[0]).all():
        problems.append(f"{name} is constant ({y[0]:g} in every row): there is nothing to learn")
    return problems


_LEAVE_OUT = " (--drop-missing-target leaves such rows out)"


def _bad_classes(table: Table, missing: Sequence[int]) -> list[str]:
    y, name = np.asarray(table.y), f"target {table.target!r}"
    strange = sorted(set(np.flatnonzero((y < 0) | (y >= len(table.classes))).tolist()) - set(missing))
    problems = []
    if missing:
        problems.append(f"{name}: missing value in {_places(table, np.sort(missing))}{_LEAVE_OUT}")
    if strange:
        outside = f"label outside 0 … {len(table.classes) - 1}"
        problems.append(f"{name}: {outside} in {_places(table, np.array(strange))}")
    if not problems and len(y) >= SMALLEST and (y == y[0]).all():
        only = table.classes[y[0]]
        problems.append(f"{name} has one class only ({only!r} in every row): at least two are required")
    return problems


def _repeated_rows(table: Table) -> str | None:
    if table.y is None or len(table.y) > MANY:
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
