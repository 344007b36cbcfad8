"""Rows to predict from: matched by the names of their columns, with targets where they are there too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..data import DataError, load, read_table
from ..data.columns import Column, ColumnOptions
from ..data.dataset import Array
from ..data.kinds import is_missing, to_number
from ..data.tables import open_cells
from .sources import flat, is_named, resolve, select


@dataclass(frozen=True, eq=False)
class NewRows:
    """Raw rows, the name of what is predicted, and the targets if every row has one."""

    X: Array = field(repr=False)
    target: str
    y: Array | None = field(default=None, repr=False)
    images: tuple[str, ...] = field(default=(), repr=False)  # their files
    places: tuple[str, ...] = field(default=(), repr=False)  # the rows' names in messages


def read_rows(
    source: str,
    trained: Mapping[str, Any],
    columns: tuple[Column, ...] = (),
    delimiter: str | None = None,
    data_dir: Path | None = None,
) -> NewRows:
    """The columns that a run was trained on (`trained` is its data.json), in that order, from DATA.

    `columns` says what they hold, where they are not all numbers.
    """
    target = trained.get("target") or "y"
    source = resolve(source)
    if is_named(source):
        data = load(source, data_dir)
        y = np.array(data.classes)[data.y_test] if data.classes else data.y_test
        return NewRows(_as_many(flat(data.x_test), trained, source), target, y)
    path = Path(source)
    features = trained.get("features")
    if features is None or path.is_dir() or path.suffix.lower() == ".npz":
        table = read_table(path, labelled=False, delimiter=delimiter)
        if features is not None:
            return NewRows(select(table, tuple(features)), target)
        images = tuple(p.removeprefix("image ") for p in table.places) if path.is_dir() else ()
        return NewRows(_as_many(table.X, trained, table.source), target, images=images)
    known = columns or tuple(Column(name) for name in features)
    table = read_table(path, labelled=False, delimiter=delimiter, options=ColumnOptions(known=known))
    cells = open_cells(path, delimiter)
    names = [target] if target in cells.names else target.split(",")
    found = [cells.names.index(name) for name in names if name in cells.names]
    said = _targets(cells.survey(found).cells, trained) if len(found) == len(names) else None
    return NewRows(table.X, target, said, places=table.places)


def _as_many(X: Array, trained: Mapping[str, Any], source: str) -> Array:
    if X.shape[1] != trained["columns"]:
        shape = trained.get("image_shape")
        pixels = f" (pixels of {' × '.join(map(str, shape))})" if shape else ""
        raise DataError(
            f"{source}: rows of {trained['columns']} numbers{pixels} are required, as in training; "
            f"these have {X.shape[1]}"
        )
    return X


def _targets(columns: tuple[list[str], ...], trained: Mapping[str, Any]) -> Array | None:
    """The targets, if the file has them for every row."""
    if any(is_missing(cell) for cells in columns for cell in cells):
        return None
    if trained.get("kind") == "classification":
        return np.array([_label(cell, trained["classes"]) for cell in columns[0]])
    numbers = np.array([[to_number(cell) for cell in cells] for cells in columns]).T
    if not np.isfinite(numbers).all():
        return None
    return numbers if numbers.shape[1] > 1 else numbers[:, 0]


def _label(cell: str, classes: list[str]) -> str:
    """The class a cell names: 1.0 names the class 1."""
    cell = cell.strip()
    if cell in classes:
        return cell
    value = to_number(cell)
    return next((name for name in classes if to_number(name) == value), cell)
