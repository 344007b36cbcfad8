"""Rows that stay in their file: their numbers are read when they are asked for, and none are held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from equipoise.data.dataset import Array

LARGE = 5_000_000  # numbers from which on rows stay in their file, where they may


class Matrix(Protocol):
    """A matrix of numbers in a file."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, d)."""

    def read(self, rows: Array, columns: Array) -> Array:
        """These rows of these columns, (n, k) float64."""


@dataclass(frozen=True, eq=False)
class FileRows:
    """Some rows and columns of a matrix in a file, as if they were an array (N, d) of float64.

    What is indexed is read, as an array: rows by a slice, a list or a mask, and columns beside them. `take`
    and `only` choose rows and columns and leave them in the file. Of the rows themselves nothing is held but
    their numbers.
    """

    matrix: Matrix
    rows: Array = field(repr=False)
    columns: Array = field(repr=False)

    @classmethod
    def of(cls, matrix: Matrix, rows: Array | None = None) -> FileRows:
        """All columns of some rows, or of all."""
        found = np.arange(matrix.shape[0]) if rows is None else rows
        return cls(matrix, found, np.arange(matrix.shape[1]))

    @property
    def shape(self) -> tuple[int, int]:
        """(N, d)."""
        return len(self.rows), len(self.columns)

    @property
    def size(self) -> int:
        """N d."""
        return len(self.rows) * len(self.columns)

    ndim, dtype = 2, np.dtype(np.float64)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> Array:
        rows, columns = at if isinstance(at, tuple) else (at, slice(None))
        which = self.rows[rows], self.columns[columns]
        found = self.matrix.read(*map(np.atleast_1d, which))
        return found.reshape([n for some in which for n in np.shape(some)])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or self.dtype, copy=False)

    def take(self, rows: Array) -> FileRows:
        """Some of the rows, by number or mask."""
        return FileRows(self.matrix, self.rows[rows], self.columns)

    def only(self, columns: Sequence[int] | slice) -> FileRows:
        """Some of the columns."""
        return FileRows(self.matrix, self.rows, self.columns[columns])


def chosen(X: Any, rows: Array) -> Any:
    """X[rows], which stays in its file where X is there."""
    return X.take(rows) if isinstance(X, FileRows) else X[rows]


@dataclass(frozen=True)
class Mapped:
    """Numbers that lie row after row in a file from some byte on, as those of an array in an .npz do."""

    path: Path
    offset: int
    shape: tuple[int, int]
    dtype: np.dtype

    def read(self, rows: Array, columns: Array) -> Array:
        """These rows of these columns; the file is mapped only meanwhile, so that none of it is held."""
        mapped = np.memmap(self.path, self.dtype, "r", self.offset, self.shape)
        run = len(rows) > 0 and len(rows) == rows[-1] - rows[0] + 1 and bool((np.diff(rows) == 1).all())
        part = mapped[rows[0] : rows[-1] + 1] if run else mapped[rows]
        if not np.array_equal(columns, np.arange(self.shape[1])):
            part = part[:, columns]
        return np.array(part, dtype=np.float64, order="C")
