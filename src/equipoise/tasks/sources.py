"""Data by name or path: a named set, a table or a folder of images, split and with its provenance."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..data import DataError, Dataset, DataWarning, Table, load, read_table
from ..data.columns import Column, ColumnOptions
from ..data.dataset import Array
from ..data.delimited import require_room
from ..data.encoding import Encoding
from ..data.errors import some_names
from ..data.file_rows import FileRows, chosen
from ..data.kinds import Targets
from ..data.load import names
from ..data.tables import TEXT
from ..files import sha256
from ..memory import spans
from ..recipe import Kind
from ..theory.shards import ranks
from .splitting import Pair, Split

Check = Callable[[int, int], None]  # called with the numbers of training rows and of columns


class WrongOption(ValueError):
    """An option was given that does not fit the data or the other options."""


@dataclass(frozen=True)
class Asked:
    """What the [data] of a run's config.toml holds: enough to read the same rows again."""

    source: str  # a name, or an absolute path
    target: str | None = None
    kind: str | None = None
    delimiter: str | None = None
    test: str | None = None  # a file of its own, by absolute path
    test_share: float | None = None  # held out of a table without test rows
    rows: int | None = None  # to train on, where not all
    split_seed: int | None = None
    data_dir: str | None = None
    weight: str | None = None  # the names of columns, here and below
    drop: Sequence[str] | None = None
    categorical: Sequence[str] | None = None
    numeric: Sequence[str] | None = None
    drop_missing_target: bool | None = None
    validation: float | None = None  # share of the rows to train on that stands in for the test rows

    @classmethod
    def of(
        cls,
        source: str,
        *,
        test: Path | None = None,
        data_dir: Path | None = None,
        test_share: float | None = None,
        seed: int = 0,
        **more: Any,
    ) -> Asked:
        """What is asked for, with paths made absolute; of a table without a test part a fifth is held out."""
        source = resolve(source)
        named = is_named(source)
        if test_share is not None:
            if not 0 <= test_share < 1:
                raise WrongOption(f"--test-share must lie in [0, 1). Got {test_share}.")
            if test is not None:
                raise WrongOption("--test and --test-share exclude each other: give one of them.")
            if named:
                raise WrongOption(f"--test-share is for tables: {source} has a test part of its own.")
        if more.get("kind") not in (None, "classification", "regression"):
            raise WrongOption(f"--kind must be classification or regression. Got {more['kind']}.")
        own = named or test is not None
        return cls(
            source,
            test=None if test is None else str(test.expanduser().resolve()),
            data_dir=None if data_dir is None else str(data_dir.expanduser().resolve()),
            test_share=None if own else (0.2 if test_share is None else test_share),
            split_seed=None if own and more.get("rows") is None and not more.get("validation") else seed,
            **more,
        )

    def to_dict(self) -> dict[str, Any]:
        """What was given, as TOML and JSON hold it."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}

    @property
    def options(self) -> ColumnOptions:
        """What is said of the columns."""
        names = {n: tuple(getattr(self, n) or ()) for n in ("drop", "categorical", "numeric")}
        return ColumnOptions(**names, weight=self.weight, drop_missing_target=bool(self.drop_missing_target))

    @property
    def stem(self) -> str:
        """A short name, fit for a directory's."""
        name = self.source if is_named(self.source) else Path(self.source).stem
        return "".join(c if c.isalnum() or c in "-_" else "-" for c in name).strip("-") or "data"


@dataclass(frozen=True, eq=False)
class Sample:
    """Raw rows to train on and to test with. Labels are the words of the file; numbers are float64.

    `encoding` is what is made of the columns of a table, decided on the rows to train on; None where they are
    plain numbers. `weights` (N,) are those of the rows to train on.
    """

    kind: Kind
    train: Pair = field(repr=False)  # X (N, d) float64, y (N,) or (N, k)
    test: Pair | None = field(repr=False)
    provenance: dict[str, Any]
    encoding: Encoding | None = field(default=None, repr=False)
    weights: Array | None = field(default=None, repr=False)

    @property
    def shaped(self) -> Array:
        """X to train on, with the shape of images where they are images."""
        X, shape = self.train[0], self.provenance.get("image_shape")
        return X.reshape(len(X), *shape) if shape else X


def is_named(source: str) -> bool:
    """Whether this is the name of a data set, and not a path."""
    return source in names()


def resolve(source: str) -> str:
    """The name of a data set as it is, or a path made absolute; anything else is an error."""
    if is_named(source):
        return source
    path = Path(source).expanduser()
    if path.exists():
        return str(path.resolve())
    if path.suffix or "/" in source:
        raise DataError(f"no such file or folder: {path}")
    load(source)  # no such name: its error lists the names
    return source


def read(asked: Asked, check: Check | None = None, columns: tuple[Column, ...] = ()) -> Sample:
    """The rows, checked; one DataError lists whatever is wrong with them. Warnings go into the provenance.

    With `columns` only these columns of a table are read, as the types that they name. Only the rows that are
    asked for are held. `check` is called before they are read, with the number of rows to train on and of
    columns, and may raise.
    """
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", DataWarning)
        if is_named(asked.source):
            sample = _named(load(asked.source, asked.data_dir), asked, check)
        else:
            sample = _table(asked, check, columns or None)
    notes = [str(w.message) for w in seen if issubclass(w.category, DataWarning)]
    sample.provenance["warnings"] = notes
    return sample


def _named(data: Dataset, asked: Asked, check: Check | None) -> Sample:
    given = {"--target": asked.target, "--test": asked.test, "--delimiter": asked.delimiter}
    given |= dict.fromkeys(asked.options.named().values(), "")
    for name, value in given.items():
        if value is not None:
            raise WrongOption(f"{name} is for tables: {data.name} has targets and a test part of its own.")
    y, y_test = (np.array(data.classes)[v] if data.classes else v for v in (data.y_train, data.y_test))
    labels, seed = y if data.classes else None, asked.split_seed or 0
    parts = Split(labels, len(y), seed, most=asked.rows, validation=asked.validation)
    if check is not None:
        check(len(parts.rows), data.x_train[0].size)
    if asked.validation is None:
        X_test = flat(data.x_test)
    else:
        X_test, y_test = flat(data.x_train[parts.test]), y[parts.test]
    X, y = flat(data.x_train[parts.rows]), y[parts.rows]
    about = data.provenance
    return Sample(
        kind="classification" if data.classes else "regression",
        train=(X, y),
        test=(X_test, y_test),
        provenance={
            "name": data.name,
            "source": about.source,
            "licence": about.licence,
            "files": [vars(file) for file in about.files],
            "subset": about.subset,
            "split": about.split + parts.words,
            **_sizes((X, y), (X_test, y_test)),
            "kind": "classification" if data.classes else "regression",
            "classes": list(data.classes),
            "image_shape": list(data.x_train.shape[1:]) if data.x_train.ndim > 2 else None,
        },
    )


def _table(asked: Asked, check: Check | None, known: tuple[Column, ...] | None) -> Sample:
    path = Path(asked.source)
    how: dict[str, Any] = {"kind": asked.kind, "delimiter": asked.delimiter}
    parts: list[Split] = []
    if asked.rows is None and path.suffix.lower() in TEXT and path.is_file():
        require_room(path, asked.delimiter)

    def choose(found: Targets, columns: int) -> Array:
        labels = np.array(found.classes)[found.y] if found.kind == "classification" else None
        seed, share = asked.split_seed or 0, asked.test_share or 0.0
        parts.append(Split(labels, len(found.y), seed, share, asked.rows, asked.validation))
        if check is not None:
            check(len(parts[0].rows), columns)
        return parts[0].wanted

    options = replace(asked.options, known=known)
    table = read_table(path, asked.target, choose=choose, options=options, left=ranks() > 1, **how)
    train, test = parts[0].divide(table.X, targets(table))
    weights = None
    if table.weights is not None:
        (weights, _), _ = parts[0].divide(table.weights, table.weights)
    encoding = None if known else _encoding(table, train[0], weights)
    split = _split(table, asked, test is not None)
    if asked.test is not None and asked.validation is None:
        test = _test_file(table, asked.test, how)
    split += parts[0].words
    files = [path] + ([Path(asked.test)] if asked.test else [])
    return Sample(
        kind="classification" if table.kind == "classification" else "regression",
        train=train,
        test=test,
        encoding=encoding,
        weights=weights,
        provenance={
            "name": path.name,
            "source": str(path),
            "files": [{"name": f.name, "sha256": sha256(f)} for f in files if f.is_file()],
            "split": split,
            **_sizes(train, test, weights),
            "kind": table.kind,
            "target": table.target,
            "classes": list(table.classes),
            "features": list(table.features) if table.image_shape is None else None,
            "described": [d._asdict() for d in encoding.describe()] if encoding else [],
            "image_shape": list(table.image_shape) if table.image_shape else None,
        },
    )


def _encoding(table: Table, X: Array, weights: Array | None) -> Encoding | None:
    """What is made of the columns, decided on the rows X to train on that have a weight."""
    columns = table.columns
    if not columns and any(np.isnan(table.X[span]).any() for span in spans(*table.X.shape)):
        columns = tuple(Column(name) for name in table.features)
    rows = X if weights is None else chosen(X, weights > 0)
    return Encoding.of(rows, columns, table.dropped) if columns and len(rows) else None


def _split(table: Table, asked: Asked, tested: bool) -> str:
    if asked.test is not None:
        return f"test rows from {Path(asked.test).name}"
    if not tested:
        return "all rows are trained on: there is no test part"
    by_class = "of each class " if table.kind == "classification" else ""
    share, seed = asked.test_share or 0.0, asked.split_seed or 0
    return f"{100 * share:g} % of the rows {by_class}held out at random (seed {seed})"


def _test_file(table: Table, path: str, how: Mapping[str, Any]) -> Pair:
    target = table.target if table.image_shape is None else None
    options = ColumnOptions(known=table.columns) if table.columns else None
    other = read_table(path, target, options=options, **{**how, "kind": table.kind})
    if table.kind == "classification":
        _same_classes(table, other)
    return other.X if table.columns else select(other, table.features), targets(other)


def select(table: Table, features: tuple[str, ...]) -> Array:
    """The columns of these names, in this order; one DataError lists those that are not there."""
    if missing := [name for name in features if name not in table.features]:
        raise DataError(
            f"{table.source}: the columns trained on must be there. "
            f"Missing: {some_names(missing)}. Its columns: {some_names(table.features)}"
        )
    at = {name: j for j, name in enumerate(table.features)}
    return table.X[:, [at[name] for name in features]]


def targets(table: Table) -> Array:
    """Labels as the words of the file, or numbers."""
    assert table.y is not None
    return np.array(table.classes)[table.y] if table.kind == "classification" else table.y


def _same_classes(table: Table, other: Table) -> None:
    if other.kind != "classification":
        raise DataError(f"{other.source}: target {other.target!r} must hold classes, as in {table.source}")
    if strange := sorted(set(other.classes) - set(table.classes)):
        raise DataError(
            f"{other.source}: target {other.target!r} must hold classes of {table.source} "
            f"({', '.join(table.classes[:10])}). Got {', '.join(map(repr, strange[:5]))} as well"
        )


def flat(x: Array) -> Array:
    """Rows of numbers of what may be images."""
    return x.reshape(len(x), -1).astype(np.float64)


def digest_of_arrays(*arrays: Array) -> str:
    """The SHA-256 of arrays: of their dtypes, shapes and entries."""
    digest = hashlib.sha256()
    for part in arrays:
        digest.update(f"{part.dtype.str}|{part.shape}|".encode())
        whole = [slice(None)] if not isinstance(part, FileRows) else spans(*part.shape)
        for span in whole:
            digest.update(np.ascontiguousarray(part[span]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _sizes(train: Pair, test: Pair | None, weights: Array | None = None) -> dict[str, Any]:
    return {
        "rows": len(train[0]),
        "test_rows": len(test[0]) if test else 0,
        "columns": train[0].shape[1],
        "sha256": digest_of_arrays(*train, *(test or ()), *(() if weights is None else (weights,))),
    }
