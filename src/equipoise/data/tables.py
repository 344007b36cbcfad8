"""`read_table(path)`: the user's own table, from CSV, Parquet, NPZ or a folder of images.

Everything wrong with a file is reported at once, each problem with its line and column; nothing is repaired.
`equipoise.data.kinds` says which cells are missing and which targets are classes, `equipoise.data.columns`
what the other columns hold.
"""

from __future__ import annotations

import difflib
import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import memory
from equipoise.data import file_rows
from equipoise.data.archive import mapped, read_headers, read_member
from equipoise.data.columns import Column, ColumnCells, ColumnOptions, refused, sift, tell
from equipoise.data.dataset import Array
from equipoise.data.delimited import Cells, Delimited, require_room
from equipoise.data.errors import DataError, DataWarning, MissingData, require_memory, some_names
from equipoise.data.file_rows import FileRows
from equipoise.data.images import read_image_folder
from equipoise.data.kinds import Kind, Targets, is_missing, read_several, read_targets, to_number
from equipoise.data.parquet import Parquet, as_cell
from equipoise.data.validate import Table, checked_table, validate
from equipoise.memory import room, shortage, spans

__all__ = ["Table", "read_table", "validate"]

TEXT = (".csv", ".tsv", ".txt")

# From all targets and the number of features to the rows to read, ascending; called before a feature is read.
Choose = Callable[[Targets, int], Array]
# A table, its targets that could not be read by (row, output), and the problems so far.
Draft = tuple[Table, dict[tuple[int, int], str], Sequence[str]]


@dataclass(frozen=True)
class _Request:
    """What is asked of a table."""

    target: str | None
    kind: Kind | None
    labelled: bool
    choose: Choose | None
    options: ColumnOptions
    left: bool

    def stays(self, rows: int, columns: int) -> bool:
        """Whether so many numbers stay in their file."""
        return self.left and rows * columns > file_rows.LARGE


def read_table(
    path: str | os.PathLike[str],
    target: str | None = None,
    *,
    kind: Kind | None = None,
    delimiter: str | None = None,
    labelled: bool = True,
    choose: Choose | None = None,
    options: ColumnOptions | None = None,
    left: bool = False,
) -> Table:
    """Read and `validate` a table; one `DataError` lists whatever is wrong.

    - `.csv`, `.tsv`, `.txt`: UTF-8 text with a header; `delimiter` is "," (in .tsv a tab) unless given.
      `target` names a column, the last one by default, or several columns of numbers, divided by commas.
      What the other columns hold is told from their cells, or is as `options` says.
    - `.parquet`: the same, by pyarrow.
    - `.npz`: plain arrays x and y, X and y, or x_train and y_train; `target` names the array of targets, so
      that "y_test" reads x_test and y_test. Images are flattened.
    - a folder with a sub-folder for each class: images of one size, grey or RGB, read by Pillow; pixels are
      0 … 255, flattened.

    With labelled=False there are no targets: every column is a feature, and `y` is None.

    What a file claims to hold is looked at first: one that fits neither into memory nor onto the disk is
    refused before it is read, and a large one is held in a file that is mapped into memory. With `choose`, a
    function from the targets of all rows and the number of features to the numbers of the rows that are
    wanted, in ascending order, only these are held, and checked. With `left` many numbers stay in their file
    (X is `FileRows`): those of an .npz without compression, and of Parquet columns of numbers.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    asked = _Request(target, kind, labelled, choose, options or ColumnOptions(), left)
    named = suffix in (*TEXT, ".parquet") and not path.is_dir()
    if kind not in (None, "regression", "classification"):
        raise DataError(f"--kind must be regression or classification; got {kind!r}")
    if not labelled and (target is not None or kind is not None):
        raise DataError(f"labelled=False takes no target and no kind; got target {target!r}, kind {kind!r}")
    if choose is not None and not labelled:
        raise DataError("rows are chosen by the targets, and there are none")
    if delimiter is not None and (suffix not in TEXT or path.is_dir()):
        raise DataError(f"--delimiter belongs to text files ({', '.join(TEXT)}); got {path.name}")
    if not path.exists():
        raise MissingData(f"no such file or folder: {path}")
    if not named and (given := asked.options.named()):
        raise DataError(
            f"{path.name} has no named columns: leave out {', '.join(sorted(set(given.values())))}"
        )
    if path.is_dir():
        if target is not None or kind == "regression":
            raise DataError(f"{path.name}: its sub-folders are the classes; leave out --target and --kind")
        draft: Draft = read_image_folder(path, labelled, choose), {}, ()
    elif suffix == ".npz":
        draft = _from_npz(path, asked)
    else:
        if choose is None and suffix in TEXT:
            require_room(path, delimiter)
        draft = _from_cells(open_cells(path, delimiter), asked)
    return checked_table(*draft)


def open_cells(path: Path, delimiter: str | None = None) -> Cells:
    """The cells of a text or Parquet file."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return Parquet(path)
    if suffix not in TEXT:
        known = ", ".join((*TEXT, ".parquet", ".npz"))
        raise DataError(f"{path.name}: a table is a file {known} or a folder of images; got {suffix!r}")
    return Delimited(path, delimiter or ("\t" if suffix == ".tsv" else ","))


def _from_cells(cells: Cells, asked: _Request) -> Draft:
    targets, features = _roles(cells, asked)
    names, options = cells.names, asked.options
    survey = cells.survey([names.index(name) for name in targets])
    table = Table(np.empty((0, 0)), None, (), None, None, source=cells.path.name)
    wanted, text = np.arange(survey.total), dict[tuple[int, int], str]()
    if targets:
        found = read_targets(survey.cells[0], asked.kind) if len(targets) == 1 else read_several(survey.cells)
        wanted = _wanted(found, len(features), asked)
        y, classes, kind, text = found.take(wanted)
        table = replace(table, y=y, classes=classes, kind=kind, target=",".join(targets))
    weight = () if options.weight is None else (options.weight,)
    named = (*features, *weight)
    X: Any = left_in_file(cells, named, wanted, options) if asked.stays(len(wanted), len(features)) else None
    if X is not None:
        columns, problems = tuple(Column(name) for name in named), list[str]()
        places = () if len(wanted) == survey.total else tuple(f"row {i}" for i in wanted.tolist())
    else:
        require_rows(table.source, len(wanted), len(features))
        X, columns, places, problems = read_columns(cells, named, wanted, options)
    if weight:
        table = replace(table, weights=X[:, -1].copy())
        X, columns = _only(X, slice(-1)), columns[:-1]
    dropped = dict.fromkeys(options.drop, "by --drop")
    if asked.labelled and options.known is None:
        keep, useless = sift(X, columns, wanted, options)
        dropped |= useless
        if not keep and not problems:
            told = "; ".join(f"{name!r} is {why}" for name, why in useless.items())
            problems = [f"no column is left to learn from: {told}"]
        elif keep:
            if not isinstance(X, FileRows):
                for span in spans(*X.shape) if useless else ():  # in place: a large table is held once
                    X[span, : len(keep)] = X[span][:, keep]
            X = _only(X, keep if isinstance(X, FileRows) else slice(len(keep)))
            columns = tuple(columns[j] for j in keep)
    named = tuple(column.name for column in columns)
    table = replace(table, X=X, features=named, columns=columns, dropped=dropped, places=places)
    return table, text, [*survey.problems, *problems]


def _roles(cells: Cells, asked: _Request) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the targets and of the features."""
    names, options, where = cells.names, asked.options, cells.path.name
    for name, option in options.named().items():
        if name not in names:
            raise DataError(f"{where}: no column is called {name!r} ({option}){_hint(name, names)}")
    left = [name for name in names if name not in (*options.drop, options.weight)]
    if asked.labelled and len(left) < 2:
        only = f"the only column is {left[0]!r}" if left else "no column is left"
        raise DataError(f"{where}: a feature and a target are required; {only}")
    targets: tuple[str, ...] = ()
    if asked.labelled:
        targets = (asked.target or left[-1],)
        if asked.target is not None and asked.target not in names:
            targets = tuple(name.strip() for name in asked.target.split(","))
        for name in targets:
            if name not in names:
                raise DataError(f"{where}: no column is called {name!r}{_hint(name, names)}")
            if name not in left or targets.count(name) > 1:
                raise DataError(f"{where}: the target {name!r} is given twice, or is dropped or the weight")
        if len(targets) > 1 and asked.kind == "classification":
            raise DataError(f"{where}: several targets must be numbers; got --kind classification")
    if options.known is None:
        return targets, tuple(name for name in left if name not in targets)
    if missing := [column.name for column in options.known if column.name not in names]:
        raise DataError(
            f"{where}: the columns trained on must be there. Missing: {some_names(missing)}. "
            f"Its columns: {some_names(names)}"
        )
    return targets, tuple(column.name for column in options.known)


def left_in_file(
    cells: Cells, names: Sequence[str], wanted: Array, options: ColumnOptions
) -> FileRows | None:
    """These columns of the wanted rows, where they are numbers that can stay in their file."""
    known = {column.name: column.type for column in options.known or ()}
    given = {known.get(name) or options.forced(name) or "number" for name in names}
    return cells.numbers(names, wanted) if isinstance(cells, Parquet) and given == {"number"} else None


def _only(X: Any, columns: Any) -> Any:
    return X.only(columns) if isinstance(X, FileRows) else X[:, columns]


def read_columns(
    cells: Cells, names: Sequence[str], wanted: Array, options: ColumnOptions
) -> tuple[Array, tuple[Column, ...], tuple[str, ...], list[str]]:
    """Some columns of the wanted rows: their matrix, what they hold, the rows' places, and wrong cells."""
    X = room((len(wanted), len(names)), np.float64)
    raw, places = read_cells(cells, [cells.names.index(name) for name in names], wanted, X)
    known = {column.name: column for column in options.known or ()}
    columns, problems = list[Column](), list[str]()
    for j, name in enumerate(names):
        given = "number" if name == options.weight else options.forced(name)
        column = known.get(name) or tell(name, raw[j], given)
        X[:, j], strange = column.read(raw[j])
        advice = f"; --categorical {name} would take every value as a category"
        told = name in known or column.type != "number" or given is not None
        problems += [problem + ("" if told else advice) for problem in refused(column, strange, places)]
        columns.append(column)
    return X, tuple(columns), places, problems


def read_cells(
    cells: Cells, columns: Sequence[int], wanted: Array, X: Array
) -> tuple[list[ColumnCells], tuple[str, ...]]:
    """The cells of some columns in the wanted rows, whose numbers go into X, and the places of these rows."""
    rows: list[list[int]] = [[] for _ in columns]
    codes: list[list[int]] = [[] for _ in columns]
    words: list[dict[str, int]] = [{} for _ in columns]
    places = []
    for i, (place, row) in enumerate(cells.rows(wanted.tolist())):
        places.append(place)
        X[i] = [to_number(row[j]) for j in columns]
        for j in np.flatnonzero(np.isnan(X[i])).tolist():
            if not is_missing(cell := row[columns[j]]):
                rows[j].append(i)
                codes[j].append(words[j].setdefault(cell.strip(), len(words[j])))
    if len(places) < len(wanted):
        raise DataError(f"{cells.path.name} has changed while it was read: read it again")
    found = [ColumnCells(X[:, j], tuple(words[j]), rows[j], codes[j]) for j in range(len(columns))]
    return found, tuple(places)


def _wanted(found: Targets, columns: int, asked: _Request) -> Array:
    """The rows to read; if targets cannot be used, all rows or at least these, so that they can be named."""
    rows = np.arange(len(found.y))
    if asked.options.drop_missing_target and len(present := found.present()) < len(rows):
        count = len(rows) - len(present)
        warnings.warn(f"{count} rows without a target are left out", DataWarning, stacklevel=4)
        rows, found = present, found.take(present)
    if asked.choose is not None and not found.text:
        return rows[asked.choose(found, columns)]
    if asked.choose is not None and shortage(
        _bytes(len(found.y), columns), max(memory.available(), memory.disk())
    ):
        return rows[sorted({i for i, _ in found.text})]
    return rows


def require_rows(name: str, rows: int, columns: int) -> None:
    """Raise a DataError unless these rows fit twice, as read and as divided, into memory or onto the disk."""
    about = f"{name}, of which {rows} rows of {columns} numbers are wanted,"
    advice = "Train on some of the rows (--rows), with fewer to test on (--test-share), or on fewer columns."
    require_memory(_bytes(rows, columns), about, advice, on_disk=True)


def _bytes(rows: int, columns: int) -> int:
    return 2 * 8 * rows * columns


def _hint(name: str, known: Sequence[str]) -> str:
    folded = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.strip().lower(), folded, n=1)
    suggestion = f"; did you mean {folded[close[0]]!r}?" if close else "."
    return f"{suggestion} Its columns: {', '.join(known)}"


def _from_npz(path: Path, asked: _Request) -> Draft:
    target, kind, labelled = asked.target, asked.kind, asked.labelled
    headers = read_headers(path)
    if target is not None and target not in headers:
        raise DataError(f"{path.name}: no array is called {target!r}{_hint(target, list(headers))}")
    ending = target[1:] if target is not None and target[:1] in "yY" else ""
    endings = ("", "_train") if target is None else (ending,)
    pairs = [(f"{x}{end}", target or f"y{end}") for end in endings for x in "xX"]
    pair = next(((x, y) for x, y in pairs if x in headers and (y in headers or not labelled)), None)
    if pair is None:
        wanted = " or ".join(" and ".join(pair if labelled else pair[:1]) for pair in pairs)
        raise DataError(f"{path.name} must hold {wanted}; it holds {', '.join(headers) or 'nothing'}")
    shape, _, dtype = header = headers[pair[0]]
    if dtype.kind not in "biuf" or len(shape) < 2 or 0 in shape[1:]:
        raise DataError(
            f"{path.name}: {pair[0]} must hold real numbers, (N, d) or images; got {dtype}, {shape}"
        )
    rows, columns = np.arange(shape[0]), math.prod(shape[1:])
    y: Array | None = None
    classes: tuple[str, ...] = ()
    text: dict[tuple[int, int], str] = {}
    if labelled:
        require_memory(headers[pair[1]].bytes, f"{pair[1]} of {path.name}")
        targets = read_member(path, pair[1], headers[pair[1]])
        found = _array_targets(path, pair[1], targets, kind)
        if len(found.y) == shape[0]:  # otherwise the file is refused below
            rows = _wanted(found, columns, asked)
            found = found.take(rows)
        y, classes, kind, text = found
    lies = mapped(path, pair[0], header) if asked.stays(len(rows), columns) and len(shape) == 2 else None
    X: Any
    if lies is not None:
        X = FileRows.of(lies, rows)
    else:
        require_rows(path.name, len(rows), columns)
        X = read_member(path, pair[0], header, rows, np.float64).reshape(len(rows), -1)
    all_of_them = lies is not None and len(rows) == shape[0]
    return (
        Table(
            X=X,
            y=y,
            features=tuple(f"x{j}" for j in range(columns)),
            target=pair[1] if labelled else None,
            kind=kind,
            classes=classes,
            source=path.name,
            places=() if asked.choose is None or all_of_them else tuple(f"row {i}" for i in rows.tolist()),
            image_shape=shape[1:] if len(shape) > 2 else None,
        ),
        text,
        (),
    )


def _array_targets(path: Path, name: str, y: Array, kind: Kind | None) -> Targets:
    """One target for each row, by the rule of `kinds`; a matrix of targets is a regression."""
    if y.dtype.kind not in "biufUS" or y.ndim not in (1, 2):
        raise DataError(f"{path.name}: {name} must be (N,) or (N, k); got {y.dtype} of shape {y.shape}")
    if y.ndim == 1:
        return read_targets(
            [as_cell(value) for value in (y.astype(str) if y.dtype.kind == "S" else y).tolist()], kind
        )
    if kind == "classification" or y.dtype.kind in "US":
        raise DataError(f"{path.name}: classes must be of shape (N,); got {name} of shape {y.shape}")
    return Targets(y.astype(np.float64), (), "regression", {})
