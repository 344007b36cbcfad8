"""`read_table(path)`: the user's own numbers, from CSV, Parquet, NPZ or a folder of images.

Everything wrong with a file is reported at once, each problem with its line and column; nothing is repaired.
`equipoise.data.kinds` says which cells are missing and which targets are classes.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from equipoise.data.dataset import Array
from equipoise.data.delimited import Frame, name_problems, read_delimited
from equipoise.data.errors import DataError, MissingData, optional, refuse
from equipoise.data.formats import read_npz
from equipoise.data.images import read_image_folder
from equipoise.data.kinds import Kind, Targets, is_missing, read_targets, to_number
from equipoise.data.validate import Table, checked_table, validate

__all__ = ["Table", "read_table", "validate"]

TEXT = (".csv", ".tsv", ".txt")

Draft = tuple[Table, dict[tuple[int, int], str], Sequence[str]]  # with unreadable cells, and problems so far


def read_table(
    path: str | os.PathLike[str],
    target: str | None = None,
    *,
    kind: Kind | None = None,
    delimiter: str | None = None,
    labelled: bool = True,
) -> Table:
    """Read and `validate` a table; one `DataError` lists whatever is wrong.

    - `.csv`, `.tsv`, `.txt`: UTF-8 text with a header; `delimiter` is "," (in .tsv a tab) unless given.
      `target` names a column, the last one by default.
    - `.parquet`: the same, by pyarrow.
    - `.npz`: plain arrays x and y, X and y, or x_train and y_train; `target` names the array of targets, so
      that "y_test" reads x_test and y_test. Images are flattened.
    - a folder: a sub-folder a class, images of one size, grey or RGB, by Pillow; pixels 0 … 255, flattened.

    With labelled=False there are no targets: every column is a feature, and `y` is None.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if kind not in (None, "regression", "classification"):
        raise DataError(f"kind must be 'regression' or 'classification'; got {kind!r}")
    if not labelled and (target is not None or kind is not None):
        raise DataError(f"labelled=False reads no targets; got target={target!r}, kind={kind!r} as well")
    if delimiter is not None and (suffix not in TEXT or path.is_dir()):
        raise DataError(f"delimiter belongs to text files ({', '.join(TEXT)}); got {path.name}")
    if not path.exists():
        raise MissingData(f"no such file or folder: {path}")
    draft: Draft
    if path.is_dir():
        if target is not None or kind == "regression":
            raise DataError(f"{path.name}: the sub-folders are the classes; target= and kind= do not apply")
        draft = read_image_folder(path, labelled), {}, ()
    elif suffix in TEXT:
        frame = read_delimited(path, delimiter or ("\t" if suffix == ".tsv" else ","))
        draft = _from_frame(path, frame, target, kind, labelled)
    elif suffix == ".parquet":
        draft = _from_frame(path, _parquet(path), target, kind, labelled)
    elif suffix == ".npz":
        draft = _from_npz(path, target, kind, labelled)
    else:
        known = ", ".join((*TEXT, ".parquet", ".npz"))
        raise DataError(f"{path.name}: a table is a file {known} or a folder of images; got {suffix!r}")
    return checked_table(*draft)


def _from_frame(path: Path, frame: Frame, target: str | None, kind: Kind | None, labelled: bool) -> Draft:
    names = frame.names
    if labelled and len(names) < 2:
        raise DataError(f"{path.name}: a feature and a target are required; the only column is {names[0]!r}")
    if target is not None and target not in names:
        raise DataError(f"{path.name}: no column is called {target!r}{_hint(target, names)}")
    if labelled and target is None:
        target = names[-1]
    features = [j for j, name in enumerate(names) if name != target]
    X = np.array([[to_number(row[j]) for j in features] for row in frame.rows], dtype=np.float64)
    X = X.reshape(len(frame.rows), len(features))
    text = {}
    for i, j in np.argwhere(np.isnan(X)).tolist():
        if not is_missing(cell := frame.rows[i][features[j]]):
            text[i, j] = cell
    y: Array | None = None
    classes: tuple[str, ...] = ()
    if target is not None:
        column = names.index(target)
        y, classes, kind, strange = read_targets([row[column] for row in frame.rows], kind)
        text |= {(i, -1): cell for i, cell in strange.items()}
    named = tuple(names[j] for j in features)
    return Table(X, y, named, target, kind, classes, path.name, frame.places), text, frame.problems


def _hint(name: str, known: Sequence[str]) -> str:
    folded = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.strip().lower(), folded, n=1)
    suggestion = f"; did you mean {folded[close[0]]!r}?" if close else "."
    return f"{suggestion} Its columns: {', '.join(known)}"


def _parquet(path: Path) -> Frame:
    parquet = optional("pyarrow.parquet", "reading Parquet")
    try:
        content = parquet.ParquetFile(path).read()
        names, columns = tuple(content.column_names), [column.to_pylist() for column in content.columns]
    except Exception as error:  # pyarrow raises several kinds for a malformed file
        raise DataError(f"{path.name} is not a readable Parquet file: {error}") from error
    if not names:
        raise DataError(f"{path.name} has no columns")
    if problems := name_problems(names, "the schema"):
        raise refuse(path.name, problems)
    rows = [[_cell(value) for value in row] for row in zip(*columns, strict=True)]
    return Frame(names, rows, places=())


def _cell(value: object) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _from_npz(path: Path, target: str | None, kind: Kind | None, labelled: bool) -> Draft:
    arrays = read_npz(path)
    if target is not None and target not in arrays:
        raise DataError(f"{path.name}: no array is called {target!r}{_hint(target, list(arrays))}")
    ending = target[1:] if target is not None and target[:1] in "yY" else ""
    endings = ("", "_train") if target is None else (ending,)
    pairs = [(f"{x}{end}", target or f"y{end}") for end in endings for x in "xX"]
    pair = next(((x, y) for x, y in pairs if x in arrays and (y in arrays or not labelled)), None)
    if pair is None:
        wanted = " or ".join(" and ".join(pair if labelled else pair[:1]) for pair in pairs)
        raise DataError(f"{path.name} must hold {wanted}; it holds {', '.join(arrays) or 'nothing'}")
    X = arrays[pair[0]]
    if X.dtype.kind not in "biuf" or X.ndim < 2 or 0 in X.shape[1:]:
        raise DataError(
            f"{path.name}: {pair[0]} must hold real numbers, (N, d) or images; got {X.dtype}, {X.shape}"
        )
    image_shape = X.shape[1:] if X.ndim > 2 else None
    X = X.reshape(len(X), -1).astype(np.float64)
    features = tuple(f"x{j}" for j in range(X.shape[1]))
    if not labelled:
        return Table(X, None, features, None, None, (), path.name, (), image_shape), {}, ()
    y, classes, kind, text = _array_targets(path, pair[1], arrays[pair[1]], kind)
    table = Table(X, y, features, pair[1], kind, classes, path.name, (), image_shape)
    return table, {(i, -1): cell for i, cell in text.items()}, ()


def _array_targets(path: Path, name: str, y: Array, kind: Kind | None) -> Targets:
    """One target a row by the rule of `kinds`; a matrix of targets is a regression."""
    if y.dtype.kind not in "biufUS" or y.ndim not in (1, 2):
        raise DataError(f"{path.name}: {name} must be (N,) or (N, k); got {y.dtype} of shape {y.shape}")
    if y.ndim == 1:
        return read_targets(
            [_cell(value) for value in (y.astype(str) if y.dtype.kind == "S" else y).tolist()], kind
        )
    if kind == "classification" or y.dtype.kind in "US":
        raise DataError(f"{path.name}: classes must be of shape (N,); got {name} of shape {y.shape}")
    return Targets(y.astype(np.float64), (), "regression", {})
