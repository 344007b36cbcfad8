"""A Parquet file as cells of text: its schema and its number of rows are known before a row is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from equipoise.data.delimited import ColumnSurvey, name_problems
from equipoise.data.errors import DataError, optional, refuse, require_memory

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

    def survey(self, column: int | None) -> ColumnSurvey:
        found = [] if column is None else [cell for (cell,) in self._cells([self.names[column]])]
        return ColumnSurvey(self.count, found)

    def rows(self, wanted: Sequence[int]) -> Iterator[tuple[str, Sequence[str]]]:
        left = iter(wanted)
        i = next(left, None)
        for at, row in enumerate(self._cells(self.names)):
            if i is None:
                return
            if at == i:
                yield f"row {at}", row
                i = next(left, None)

    def _cells(self, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
        try:
            for batch in self._file.iter_batches(_ROWS, columns=list(names)):
                columns = [map(as_cell, batch.column(name).to_pylist()) for name in names]
                yield from zip(*columns, strict=True)
        except Exception as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> DataError:
        return DataError(f"{self.path.name} is not a readable Parquet file: {error}")


def as_cell(value: Any) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool) else str(value)
