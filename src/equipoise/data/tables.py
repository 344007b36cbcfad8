"""`read_table(path)`: the user's own numbers, from CSV, Parquet, NPZ or a folder of images.

Everything wrong with a file is reported at once, each problem with its line and column; nothing is repaired.
`equipoise.data.kinds` says which cells are missing and which targets are classes.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from equipoise.data.archive import read_headers, read_member
from equipoise.data.dataset import Array
from equipoise.data.delimited import Cells, Delimited, require_room
from equipoise.data.errors import DataError, MissingData, require_memory
from equipoise.data.images import read_image_folder
from equipoise.data.kinds import Kind, Targets, is_missing, read_targets, to_number
from equipoise.data.parquet import Parquet, as_cell
from equipoise.data.validate import Table, checked_table, validate
from equipoise.memory import shortage

__all__ = ["Table", "read_table", "validate"]

TEXT = (".csv", ".tsv", ".txt")

# Of all targets and the number of features: the rows to read, ascending. Called before a feature is read.
Choose = Callable[[Targets, int], Array]
# With unreadable cells, problems so far, and whether these are all rows.
Draft = tuple[Table, dict[tuple[int, int], str], Sequence[str], bool]


def read_table(
    path: str | os.PathLike[str],
    target: str | None = None,
    *,
    kind: Kind | None = None,
    delimiter: str | None = None,
    labelled: bool = True,
    choose: Choose | None = None,
) -> Table:
    """Read and `validate` a table; one `DataError` lists whatever is wrong.

    - `.csv`, `.tsv`, `.txt`: UTF-8 text with a header; `delimiter` is "," (in .tsv a tab) unless given.
      `target` names a column, the last one by default.
    - `.parquet`: the same, by pyarrow.
    - `.npz`: plain arrays x and y, X and y, or x_train and y_train; `target` names the array of targets, so
      that "y_test" reads x_test and y_test. Images are flattened.
    - a folder: a sub-folder a class, images of one size, grey or RGB, by Pillow; pixels 0 … 255, flattened.

    With labelled=False there are no targets: every column is a feature, and `y` is None.

    What a file claims to hold is looked at first: one that does not fit into memory is refused before it is
    read. With `choose`, a function from the targets of all rows and the number of features to the numbers of
    the rows that are wanted, in ascending order, only these are held, and checked; a column may be constant
    on them.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if kind not in (None, "regression", "classification"):
        raise DataError(f"kind must be 'regression' or 'classification'; got {kind!r}")
    if not labelled and (target is not None or kind is not None):
        raise DataError(f"labelled=False reads no targets; got target={target!r}, kind={kind!r} as well")
    if choose is not None and not labelled:
        raise DataError("choose goes by the targets; got labelled=False as well")
    if delimiter is not None and (suffix not in TEXT or path.is_dir()):
        raise DataError(f"delimiter belongs to text files ({', '.join(TEXT)}); got {path.name}")
    if not path.exists():
        raise MissingData(f"no such file or folder: {path}")
    draft: Draft
    if path.is_dir():
        if target is not None or kind == "regression":
            raise DataError(f"{path.name}: the sub-folders are the classes; target= and kind= do not apply")
        draft = read_image_folder(path, labelled, choose), {}, (), False
    elif suffix == ".npz":
        draft = _from_npz(path, target, kind, labelled, choose)
    else:
        if choose is None and suffix in TEXT:
            require_room(path, delimiter)
        draft = _from_cells(path, open_cells(path, delimiter), target, kind, labelled, choose)
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


def _from_cells(
    path: Path, cells: Cells, target: str | None, kind: Kind | None, labelled: bool, choose: Choose | None
) -> Draft:
    names = cells.names
    if labelled and len(names) < 2:
        raise DataError(f"{path.name}: a feature and a target are required; the only column is {names[0]!r}")
    if target is not None and target not in names:
        raise DataError(f"{path.name}: no column is called {target!r}{_hint(target, names)}")
    if labelled and target is None:
        target = names[-1]
    features = [j for j, name in enumerate(names) if name != target]
    survey = cells.survey(None if target is None else names.index(target))
    wanted = np.arange(survey.total)
    y: Array | None = None
    classes: tuple[str, ...] = ()
    strange: dict[int, str] = {}
    if target is not None:
        found = read_targets(survey.cells, kind)
        wanted = _wanted(found, len(features), choose)
        y, classes, kind, strange = found.take(wanted)
    require_rows(path.name, len(wanted), len(features))
    X, places, text = read_numbers(cells, features, wanted)
    text |= {(i, -1): cell for i, cell in strange.items()}
    named = tuple(names[j] for j in features)
    table = Table(X, y, named, target, kind, classes, path.name, places)
    return table, text, survey.problems, len(wanted) == survey.total


def read_numbers(
    cells: Cells, columns: Sequence[int], wanted: Array
) -> tuple[Array, tuple[str, ...], dict[tuple[int, int], str]]:
    """Columns of the wanted rows as numbers, the places of these rows, and the cells that are no number."""
    X = np.empty((len(wanted), len(columns)))
    places, text = [], {}
    for i, (place, row) in enumerate(cells.rows(wanted.tolist())):
        places.append(place)
        X[i] = [to_number(row[j]) for j in columns]
        for j in np.flatnonzero(np.isnan(X[i])).tolist():
            if not is_missing(cell := row[columns[j]]):
                text[i, j] = cell
    if len(places) < len(wanted):
        raise DataError(f"{cells.path.name} has changed while it was read: read it again")
    return X, tuple(places), text


def _wanted(found: Targets, columns: int, choose: Choose | None) -> Array:
    """The rows to read; where targets cannot be used all rows, or at least those, so that they are named."""
    if choose is not None and not found.text:
        return choose(found, columns)
    if choose is not None and shortage(_bytes(len(found.y), columns)):
        return np.array(sorted(found.text))
    return np.arange(len(found.y))


def require_rows(name: str, rows: int, columns: int) -> None:
    """A DataError unless rows of so many numbers fit into memory twice: as read, and divided or prepared."""
    about = f"{name}, of which {rows} rows of {columns} numbers are wanted,"
    advice = "Train on some of the rows (--rows), with fewer to test on (--test-share), or on fewer columns."
    require_memory(_bytes(rows, columns), about, advice)


def _bytes(rows: int, columns: int) -> int:
    return 2 * 8 * rows * columns


def _hint(name: str, known: Sequence[str]) -> str:
    folded = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.strip().lower(), folded, n=1)
    suggestion = f"; did you mean {folded[close[0]]!r}?" if close else "."
    return f"{suggestion} Its columns: {', '.join(known)}"


def _from_npz(
    path: Path, target: str | None, kind: Kind | None, labelled: bool, choose: Choose | None
) -> Draft:
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
    text: dict[int, str] = {}
    if labelled:
        require_memory(headers[pair[1]].bytes, f"{pair[1]} of {path.name}")
        targets = read_member(path, pair[1], headers[pair[1]])
        found = _array_targets(path, pair[1], targets, kind)
        if len(found.y) == shape[0]:  # else it is refused, and nothing can be chosen
            rows = _wanted(found, columns, choose)
            found = found.take(rows)
        y, classes, kind, text = found
    require_rows(path.name, len(rows), columns)
    X = read_member(path, pair[0], header, rows).reshape(len(rows), -1).astype(np.float64, copy=False)
    return (
        Table(
            X=X,
            y=y,
            features=tuple(f"x{j}" for j in range(columns)),
            target=pair[1] if labelled else None,
            kind=kind,
            classes=classes,
            source=path.name,
            places=() if choose is None else tuple(f"row {i}" for i in rows.tolist()),
            image_shape=shape[1:] if len(shape) > 2 else None,
        ),
        {(i, -1): cell for i, cell in text.items()},
        (),
        len(rows) == shape[0],
    )


def _array_targets(path: Path, name: str, y: Array, kind: Kind | None) -> Targets:
    """One target a row by the rule of `kinds`; a matrix of targets is a regression."""
    if y.dtype.kind not in "biufUS" or y.ndim not in (1, 2):
        raise DataError(f"{path.name}: {name} must be (N,) or (N, k); got {y.dtype} of shape {y.shape}")
    if y.ndim == 1:
        return read_targets(
            [as_cell(value) for value in (y.astype(str) if y.dtype.kind == "S" else y).tolist()], kind
        )
    if kind == "classification" or y.dtype.kind in "US":
        raise DataError(f"{path.name}: classes must be of shape (N,); got {name} of shape {y.shape}")
    return Targets(y.astype(np.float64), (), "regression", {})
