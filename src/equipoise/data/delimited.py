"""Text files of cells, with a header: read strictly, each row with its line."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.data.errors import DataError, refuse, some
from equipoise.data.kinds import is_missing, to_number

NAMED = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar", " ": "a space"}
SIGNATURES = {
    b"PK\x03\x04": "a zip archive or an Excel workbook",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"\x1f\x8b": "a gzip file",
    b"PAR1": "a Parquet file",
    b"%PDF": "a PDF",
    b"\x93NUMPY": "a numpy file",
}


@dataclass(frozen=True)
class Frame:
    """Named columns of cells as text; `places` names the rows, `problems` tells of rows left out."""

    names: tuple[str, ...]
    rows: list[list[str]]
    places: tuple[str, ...]
    problems: tuple[str, ...] = ()


def read_delimited(path: Path, delimiter: str) -> Frame:
    """The cells of a CSV file; blank lines are skipped, rows unlike the header in length are problems."""
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise DataError(f"delimiter must be one character such as ',' or ';'; got {delimiter!r}")
    lines = _records(path, delimiter)
    if not lines:
        raise DataError(f"{path.name} is empty: a header and data rows are required")
    (first, header), *body = lines
    names = tuple(name.strip() for name in header)
    if problems := _delimiter_problems(first, header, body, delimiter) or name_problems(
        names, f"line {first}"
    ):
        raise refuse(path.name, problems)
    if not body:
        raise DataError(f"{path.name} has a header and no data rows")
    ragged: dict[int, list[str]] = defaultdict(list)
    for line, cells in body:
        if len(cells) != len(names):
            ragged[len(cells)].append(f"line {line}")
    whole = [(line, cells) for line, cells in body if len(cells) == len(names)]
    return Frame(
        names,
        rows=[cells for _, cells in whole],
        places=tuple(f"line {line}" for line, _ in whole),
        problems=tuple(
            f"{count} cells instead of the header's {len(names)} in {some(places)}"
            for count, places in ragged.items()
        ),
    )


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
    line: int, header: Sequence[str], body: Sequence[tuple[int, list[str]]], delimiter: str
) -> list[str]:
    """A header of one column in which another delimiter stands was divided by the wrong one."""
    if len(header) > 1:
        return []
    for other, name in NAMED.items():
        divided = header[0].split(other)
        # a name may well contain a space: only one that divides the data alike is a delimiter
        if len(divided) > 1 and (other != " " or (body and len(body[0][1][0].split()) == len(divided))):
            return [
                f"line {line} is one column when divided at {NAMED.get(delimiter, repr(delimiter))}, "
                f"and {len(divided)} when divided at {name}: pass delimiter={other!r}"
            ]
    return []


def _records(path: Path, delimiter: str) -> list[tuple[int, list[str]]]:
    """(line it begins on, cells) of each record that is not blank."""
    reader = csv.reader(io.StringIO(_text(path), newline=""), delimiter=delimiter, strict=True)
    records: list[tuple[int, list[str]]] = []
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return records
        except csv.Error as error:
            raise DataError(f"{path.name}: line {line} is malformed: {error} (an open quote?)") from error
        if len(cells) > 1 or (cells and cells[0].strip()):
            records.append((line, cells))


def _text(path: Path) -> str:
    data = path.read_bytes()
    for signature, what in SIGNATURES.items():
        if data.startswith(signature):
            raise DataError(f"{path.name} must be text; it is {what}")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path.name} must be UTF-8 text; it is UTF-16: save it as UTF-8")
    if junk := re.search(rb"[\x00-\x08\x0e-\x1f]", data):
        raise DataError(
            f"{path.name} must be text; byte {junk.start()} is {junk.group().hex()}: it is a binary file"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path.name} must be UTF-8 text; line {line} holds the byte {data[error.start]:02x} "
            "(Latin-1 or Windows-1252?): save it as UTF-8"
        ) from error
