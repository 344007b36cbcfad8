"""A Parquet file as cells of text: its schema and its number of rows are known before a row is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.dataset import Array
from equipoise.data.delimited import ColumnSurvey, name_problems
from equipoise.data.errors import DataError, optional, refuse, require_memory
from equipoise.data.file_rows import FileRows

_ROWS = 4096  # made into cells at a time


class Parquet:
    """The columns of a Parquet file, by pyarrow; a group of rows is decoded at a time."""

    def __init__(self, path: Path) -> None:
        parquet = optional("pyarrow.parquet", "reading Parquet")
        self.path = path
        try:
            self._file = parquet.ParquetFile(path)
            self.names = tuple(self._file.schema_arrow.names)
            about = self._file.metadata
            self.count = about.num_rows
            groups = [about.row_group(i).total_byte_size for i in range(about.num_row_groups)]
        except Exception as error:  # pyarrow raises several kinds for a malformed file
            raise self._unreadable(error) from error
        if not self.names:
            raise DataError(f"{path.name} has no columns")
        if problems := name_problems(self.names, "the schema"):
            raise refuse(path.name, problems)
        require_memory(max(groups, default=0), f"the largest group of rows of {path.name}")

    def survey(self, columns: Sequence[int]) -> ColumnSurvey:
        """The number of rows, and their cells in these columns."""
        found: tuple[list[str], ...] = tuple([] for _ in columns)
        for row in self._cells([self.names[j] for j in columns]) if columns else ():
            for kept, cell in zip(found, row, strict=True):
                kept.append(cell)
        return ColumnSurvey(self.count, found)

    def rows(self, wanted: Sequence[int]) -> Iterator[tuple[str, Sequence[str]]]:
        """(place, cells) of the rows of these numbers, which ascend."""
        left = iter(wanted)
        i = next(left, None)
        for at, row in enumerate(self._cells(self.names)):
            if i is None:
                return
            if at == i:
                yield f"row {at}", row
                i = next(left, None)

    def numbers(self, names: Sequence[str], rows: Array) -> FileRows | None:
        """These columns of these rows, left in the file; None unless all of them are of a type of numbers."""
        types = optional("pyarrow.types", "reading Parquet")
        each = [self._file.schema_arrow.field(name).type for name in names]
        if not all(types.is_floating(t) or types.is_integer(t) or types.is_boolean(t) for t in each):
            return None
        about = self._file.metadata
        sizes = tuple(about.row_group(i).num_rows for i in range(about.num_row_groups))
        return FileRows.of(Groups(self.path.resolve(), tuple(names), sizes), rows)

    def _cells(self, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
        try:
            for batch in self._file.iter_batches(_ROWS, columns=list(names)):
                columns = [map(as_cell, batch.column(name).to_pylist()) for name in names]
                yield from zip(*columns, strict=True)
        except Exception as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> DataError:
        return DataError(f"{self.path.name} is not a readable Parquet file: {error}")


@dataclass(frozen=True)
class Groups:
    """Columns of numbers in a Parquet file, of whose groups of rows one is held, the last that was read."""

    path: Path
    names: tuple[str, ...]
    sizes: tuple[int, ...]  # of the groups

    @property
    def shape(self) -> tuple[int, int]:
        """(N, d)."""
        return sum(self.sizes), len(self.names)

    def read(self, rows: Array, columns: Array) -> Array:
        """These rows of these columns; NaN where a value is missing."""
        ends = np.cumsum(self.sizes)
        group = np.searchsorted(ends, rows, side="right")
        found = np.empty((len(rows), len(columns)))
        for g in np.unique(group).tolist():
            mine = group == g
            names = tuple(self.names[j] for j in columns)
            found[mine] = _group(self.path, g, names)[rows[mine] - (ends[g] - self.sizes[g])]
        return found


@lru_cache(maxsize=1)
def _group(path: Path, number: int, names: tuple[str, ...]) -> Array:
    read = (
        optional("pyarrow.parquet", "reading Parquet").ParquetFile(path).read_row_group(number, list(names))
    )
    numbers = [np.asarray(read.column(name).cast("float64").to_numpy(), dtype=np.float64) for name in names]
    return np.column_stack(numbers)


def as_cell(value: Any) -> str:
    """A value as the text of a cell: none is empty, and true is 1."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool) else str(value)
