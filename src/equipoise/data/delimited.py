"""Text files of cells, with a header: read strictly, each row with its line."""

from __future__ import annotations

import codecs
import csv
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from equipoise.data.errors import DataError, refuse, require_memory, some
from equipoise.data.kinds import is_missing, to_number

NAMED = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar", " ": "a space"}
_DECIMAL = re.compile(r"\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*")  # a number with a decimal comma
_PIECE = 1 << 20  # bytes looked at at a time
_MANY, _TARGET = 1 << 20, 80  # targets for which memory is asked at a time, and bytes of one as text
SIGNATURES = {
    b"PK\x03\x04": "a zip archive or an Excel workbook",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"\x1f\x8b": "a gzip file",
    b"PAR1": "a Parquet file",
    b"%PDF": "a PDF",
    b"\x93NUMPY": "a numpy file",
}


class ColumnSurvey(NamedTuple):
    """How many rows there are, their cells in some columns, and what is wrong with the file."""

    total: int
    cells: tuple[list[str], ...]  # of each column that was asked for
    problems: tuple[str, ...] = ()


class Cells(Protocol):
    """Named columns of cells as text, in a file that is read piece by piece."""

    path: Path
    names: tuple[str, ...]

    def survey(self, columns: Sequence[int]) -> ColumnSurvey:
        """Read all rows, and keep only the cells of these columns."""

    def rows(self, wanted: Sequence[int]) -> Iterator[tuple[str, Sequence[str]]]:
        """(place, cells) of the rows of these numbers, which ascend."""


def require_room(path: Path, delimiter: str | None) -> None:
    """A DataError, by the size of the file, if all of its numbers are far too many to be held.

    Half of what they will need is asked for, as an estimate from the beginning of a file must not refuse a
    file that fits. The exact need is known, and asked for, once the rows are counted.
    """
    with path.open("rb") as stream:
        piece = stream.read(_PIECE)
    between = delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")
    cells = piece.count(between.encode()) + piece.count(b"\n")
    about = path.stat().st_size * cells / max(1, len(piece))
    advice = "Train on some of the rows (--rows), or on fewer columns."
    require_memory(8 * about, f"{path.name}, of about {about:.2g} numbers,", advice, on_disk=True)


class Delimited:
    """A CSV file: its header is read at once, its rows as often as they are asked for, and never held.

    Blank lines are skipped; rows that are not as long as the header are problems. If commas do not divide the
    cells, a number may have a decimal comma: 1,5 is read as 1.5.
    """

    def __init__(self, path: Path, delimiter: str) -> None:
        delimiter = "\t" if delimiter == r"\t" else delimiter  # as it is typed on a command line
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise DataError(f"--delimiter must be one character such as ',' or ';'; got {delimiter!r}")
        self.path, self.delimiter = path, delimiter
        _require_text(path)
        records = _records(path, delimiter)
        first, header = next(records, (0, []))
        if not header:
            raise DataError(f"{path.name} is empty: a header and data rows are required")
        self.names = tuple(name.strip() for name in header)
        below = next(records, None)
        if problems := _delimiter_problems(first, header, below, delimiter) or name_problems(
            self.names, f"line {first}"
        ):
            raise refuse(path.name, problems)
        if below is None:
            raise DataError(f"{path.name} has a header and no data rows")

    def survey(self, columns: Sequence[int]) -> ColumnSurvey:
        """The number of whole rows, their cells in these columns, and the rows that are not whole."""
        ragged: dict[int, list[str]] = defaultdict(list)
        count, known = 0, dict[str, str]()
        cells: tuple[list[str], ...] = tuple([] for _ in columns)
        commas, points = dict[int, int](), dict[int, int]()  # column -> the first line with such a number
        for line, row in self._body():
            if len(row) != len(self.names):
                ragged[len(row)].append(f"line {line}")
                continue
            if count and count % _MANY == 0:
                require_memory(_TARGET * _MANY * max(1, len(columns)), f"the targets of {self.path.name}")
            count += 1
            if self.delimiter != ",":
                for j, cell in enumerate(row):
                    if "," in cell and _DECIMAL.fullmatch(cell):
                        commas.setdefault(j, line)
                    elif "." in cell and not math.isnan(to_number(cell)):
                        points.setdefault(j, line)
                row = self._decimal(row)
            for kept, j in zip(cells, columns, strict=True):  # a word that is met again is held once
                kept.append(known.setdefault(row[j], row[j]))
        problems = [
            f"{width} cells instead of the header's {len(self.names)} in {some(places)}"
            for width, places in ragged.items()
        ]
        problems += [
            f"column {self.names[j]!r} has a decimal comma in line {commas[j]} and a decimal point in line "
            f"{points[j]}: use one of them"
            for j in sorted(commas.keys() & points.keys())
        ]
        return ColumnSurvey(count, cells, tuple(problems))

    def rows(self, wanted: Sequence[int]) -> Iterator[tuple[str, Sequence[str]]]:
        """(place, cells) of the whole rows of these numbers, which ascend."""
        whole = ((line, row) for line, row in self._body() if len(row) == len(self.names))
        at = -1
        for i in wanted:
            for line, row in islice(whole, i - at - 1, i - at):
                yield f"line {line}", row if self.delimiter == "," else self._decimal(row)
            at = i

    def _decimal(self, row: list[str]) -> list[str]:
        return [c.replace(",", ".") if "," in c and _DECIMAL.fullmatch(c) else c for c in row]

    def _body(self) -> Iterator[tuple[int, list[str]]]:
        return islice(_records(self.path, self.delimiter), 1, None)


def name_problems(names: Sequence[str], where: str) -> list[str]:
    """What is wrong with a header; its columns are counted from 1."""
    numbers = [not math.isnan(to_number(name)) for name in names]
    if any(numbers) and all(n or is_missing(name) for n, name in zip(numbers, names, strict=True)):
        return [f"{where} must be a header that names the columns; it holds numbers: {', '.join(names)}"]
    problems = [
        f"{where}: column {j} has no name (an index column? write the file without it)"
        for j, name in enumerate(names, 1)
        if not name
    ]
    repeated = [name for name, count in Counter(names).items() if count > 1 and name]
    for name in repeated:
        columns = [str(j) for j, other in enumerate(names, 1) if other == name]
        problems.append(f"{where}: columns {' and '.join(columns)} are both called {name!r}")
    return problems


def _delimiter_problems(
    line: int, header: Sequence[str], below: tuple[int, list[str]] | None, delimiter: str
) -> list[str]:
    """A header of one column in which another delimiter stands was divided by the wrong one."""
    if len(header) > 1:
        return []
    for other, name in NAMED.items():
        divided = header[0].split(other)
        # a name may well contain a space: only one that divides the data alike is a delimiter
        if len(divided) > 1 and (other != " " or (below and len(below[1][0].split()) == len(divided))):
            return [
                f"line {line} is one column when divided at {NAMED.get(delimiter, repr(delimiter))}, "
                f"and {len(divided)} when divided at {name}: pass --delimiter {other!r}"
            ]
    return []


def _records(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line it begins on, cells) of each record that is not blank."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise DataError(f"{path.name}: line {line} is malformed: {error} (an open quote?)") from error
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield line, cells


def _require_text(path: Path) -> None:
    """Every byte is looked at once, so that what follows can trust that the file is UTF-8 text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    read, line = 0, 1
    with path.open("rb") as stream:
        while data := stream.read(_PIECE):
            if read == 0:
                _require_no_signature(path, data)
            if junk := re.search(rb"[\x00-\x08\x0e-\x1f]", data):
                raise DataError(
                    f"{path.name} must be text; byte {read + junk.start()} is {junk.group().hex()}: "
                    "it is a binary file"
                )
            held = len(decoder.getstate()[0])  # bytes of a character that the last piece began
            try:
                decoder.decode(data)
            except UnicodeDecodeError as error:
                raise _not_utf8(path, error, line, held, data) from error
            line += data.count(b"\n")
            read += len(data)
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error, line, 0, b"") from error


def _require_no_signature(path: Path, data: bytes) -> None:
    for signature, what in SIGNATURES.items():
        if data.startswith(signature):
            raise DataError(f"{path.name} must be text; it is {what}")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path.name} must be UTF-8 text; it is UTF-16: save it as UTF-8")


def _not_utf8(path: Path, error: UnicodeDecodeError, line: int, held: int, data: bytes) -> DataError:
    line += data.count(b"\n", 0, max(0, error.start - held))
    return DataError(
        f"{path.name} must be UTF-8 text; line {line} holds the byte {error.object[error.start]:02x} "
        "(Latin-1 or Windows-1252?): save it as UTF-8"
    )
