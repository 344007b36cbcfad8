"""Columns of a table as numbers: what a column holds is told from its cells, or is known from training.

A column of a file holds numbers, true or false, dates, or categories (any other words). Each cell becomes
one number, NaN where it is missing, so that a table is a matrix beside its list of `Column`; `encoding` turns
that matrix into the inputs of a network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from equipoise.data.dataset import Array
from equipoise.data.errors import DataError, some, some_names
from equipoise.data.kinds import is_missing

Type = Literal["number", "boolean", "date", "category"]
TYPES: tuple[Type, ...] = get_args(Type)
TRUE, FALSE = frozenset({"true", "yes"}), frozenset({"false", "no"})
_CLOCKS = ("", " %H:%M", " %H:%M:%S")
_DAYS = ("%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y")
FORMS = ("iso", *(day + clock for day in _DAYS for clock in _CLOCKS))  # the first that reads all dates
FEWEST = 20  # in fewer rows all values of a column may differ by chance
NEW = -1.0  # stands for a category that the column did not have when its levels were listed


class ColumnCells(NamedTuple):
    """The cells of one column: its numbers, and the words that stand among them."""

    numbers: Array  # (N,) float64, NaN where a cell is missing or a word
    words: tuple[str, ...] = ()  # each distinct word once
    rows: Sequence[int] = ()  # the rows that hold words, ascending
    codes: Sequence[int] = ()  # the index in `words` for each of these rows


@dataclass(frozen=True)
class Column:
    """What a column holds, and so how its cells become numbers.

    A number is itself; a boolean is 1 or 0; a date is the days since 1970 (in UTC where it names a zone),
    read by `form`, "iso" or a pattern of strptime; a category is the place of its word in `levels`, or −1
    where it is not there. A missing cell is NaN.
    """

    name: str
    type: Type = "number"
    levels: tuple[str, ...] = ()
    form: str = ""

    def __post_init__(self) -> None:
        if self.type not in TYPES or (self.type == "date") != (self.form in FORMS):
            raise ValueError(f"no column is of type {self.type!r} with the form {self.form!r}")

    def read(self, cells: ColumnCells) -> tuple[Array, dict[int, str]]:
        """The numbers of all cells, (N,), and by row those cells that this column cannot hold."""
        values, strange = cells.numbers.copy(), dict[int, str]()
        there = np.flatnonzero(~np.isnan(values))
        if self.type == "category":
            at = {level: float(k) for k, level in enumerate(self.levels)}
            values[there] = [at.get(number_name(v), NEW) for v in values[there].tolist()]
            meaning = [at.get(word, NEW) for word in cells.words]
        else:
            wrong = there if self.type == "date" else there[:0]
            if self.type == "boolean":
                wrong = there[(values[there] != 0) & (values[there] != 1)]
            strange = {int(i): number_name(float(values[i])) for i in wrong}
            values[wrong] = np.nan
            meaning = [self._meaning(word) for word in cells.words]
        for i, code in zip(cells.rows, cells.codes, strict=True):
            values[i] = meaning[code]
            if np.isnan(meaning[code]):
                strange[i] = cells.words[code]
        return values, strange

    def _meaning(self, word: str) -> float:
        """The number that a word stands for, NaN where it stands for none."""
        if self.type == "boolean":
            return 1.0 if word.lower() in TRUE else 0.0 if word.lower() in FALSE else np.nan
        return days(word, self.form) if self.type == "date" else np.nan

    def show(self, value: float) -> str:
        """A value of this column as a person writes it."""
        if np.isnan(value):
            return "missing"
        if self.type == "category":
            return repr(self.levels[int(value)]) if 0 <= value < len(self.levels) else "an unknown level"
        if self.type == "date":
            shown = np.datetime64(0, "s") + np.timedelta64(round(value * 86400), "s")
            return str(shown).removesuffix("T00:00:00").replace("T", " ")
        return f"{value:g}"


@dataclass(frozen=True)
class ColumnOptions:
    """What the user says of the columns of a table; whatever is left out is told from the data.

    Args:
        drop: names of columns that are not read.
        categorical: names of columns whose values are categories, though they look like numbers.
        numeric: names of columns that hold numbers and are kept even where they count the rows.
        weight: the name of the column that holds the weight of each row.
        drop_missing_target: leave out the rows whose target is missing, which are an error otherwise.
        known: the columns of a table read before: these are read again, in this order, and no others.
    """

    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    weight: str | None = None
    drop_missing_target: bool = False
    known: tuple[Column, ...] | None = None

    def forced(self, name: str) -> Type | None:
        """The type that the user gave a column."""
        return "category" if name in self.categorical else "number" if name in self.numeric else None

    def named(self) -> dict[str, str]:
        """Every name in these options, and the option it was given by."""
        given = {"drop": self.drop, "categorical": self.categorical, "numeric": self.numeric}
        found = {name: f"--{option}" for option, names in given.items() for name in names}
        for name in set(self.categorical) & set(self.numeric):
            raise DataError(f"column {name!r} is given by --categorical and by --numeric: choose one")
        return found | ({self.weight: "--weight"} if self.weight is not None else {})


def tell(name: str, cells: ColumnCells, given: Type | None = None) -> Column:
    """What a column holds, told from its cells.

    It holds numbers where at least half of its cells are, so that a few words among many numbers are errors
    rather than categories; else true and false, else dates of one form, else categories.
    """
    numbers = int(np.count_nonzero(~np.isnan(cells.numbers)))
    if given in ("number", "boolean"):
        return Column(name, given)
    if given == "date":
        return Column(name, "date", form="iso")
    if given is None and numbers >= len(cells.rows):
        return Column(name)
    if given is None and not numbers:
        if {word.lower() for word in cells.words} <= TRUE | FALSE:
            return Column(name, "boolean")
        if form := _date_form(cells.words):
            return Column(name, "date", form=form)
    present = cells.numbers[~np.isnan(cells.numbers)]
    levels = [number_name(v) for v in np.unique(present).tolist()]
    return Column(name, "category", tuple(dict.fromkeys([*levels, *sorted(cells.words)])))


def useless(column: Column, values: Array, rows: Array, kept: bool) -> str:
    """Why a column tells a network nothing, in words; empty where it may tell something.

    `rows` are the numbers of the rows in their file, and `kept` says that the user asked for the column.
    """
    present = values[~np.isnan(values)]
    if len(present) == 0:
        return "every value is missing"
    if len(present) == len(values) and (values == values[0]).all():
        return f"constant ({column.show(float(values[0]))} in every row)"
    if kept or len(present) < FEWEST:
        return ""
    if column.type == "category" and len(np.unique(present)) == len(present):
        return "an identifier (all its values differ)"
    if (
        column.type == "number"
        and len(present) == len(values)
        and (values - rows == values[0] - rows[0]).all()
    ):
        return "a row number"
    return ""


def sift(
    X: Array, columns: Sequence[Column], rows: Array, options: ColumnOptions | None = None
) -> tuple[list[int], dict[str, str]]:
    """The columns to keep, by their places, and why each of the others tells nothing.

    Row numbers and identifiers are kept where nothing else is left.
    """
    asked = options or ColumnOptions()
    kept = [asked.forced(column.name) is not None for column in columns]
    for keep_all in (False, True):
        why = [useless(c, X[:, j], rows, kept[j] or keep_all) for j, c in enumerate(columns)]
        keep = [j for j, reason in enumerate(why) if not reason]
        if keep:
            break
    return keep, {column.name: reason for column, reason in zip(columns, why, strict=True) if reason}


def number_name(value: float) -> str:
    """A number as the name of a category: 1.0 is 1."""
    return str(int(value)) if np.isfinite(value) and value == int(value) else repr(value)


def days(word: str, form: str) -> float:
    """The days from 1970 to a date, with their fraction; NaN where the word is no date of this form."""
    try:
        if form != "iso":
            found = datetime.strptime(word, form)
        elif not re.match(r"\d{4}-\d\d-\d\d", word):
            return np.nan
        else:
            found = datetime.fromisoformat(word)
    except (ValueError, OverflowError):
        return np.nan
    found = found.replace(tzinfo=UTC) if found.tzinfo is None else found
    since = found - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days + (since.seconds + since.microseconds / 1e6) / 86400


def _date_form(words: Sequence[str]) -> str | None:
    """The first form that reads every word as a date."""
    if not words or not all(word[:1].isdigit() for word in words):
        return None
    return next((form for form in FORMS if not any(np.isnan(days(w, form)) for w in words)), None)


# -- data frames ---------------------------------------------------------------------------------------------


def is_frame(X: Any) -> bool:
    """Whether this is a data frame, such as one of pandas: columns that have names and types of their own."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def read_frame(
    frame: Any, known: Sequence[Column] | None = None, names: Sequence[str] | None = None
) -> tuple[Array, tuple[Column, ...]]:
    """A data frame as a matrix (N, d) of numbers, and its columns; the columns of `known` by their names.

    An array has its columns named by `names`. One DataError names every cell that its column cannot hold.
    """
    each = list(frame.T) if names is not None else [frame.iloc[:, j] for j in range(frame.shape[1])]
    names = [str(name) for name in (frame.columns if names is None else names)]
    if len(set(names)) < len(names) or len(each) != len(names):
        raise DataError(f"{len(each)} columns need names of their own. Got {some_names(names)}.")
    if known is not None and (missing := [c.name for c in known if c.name not in names]):
        raise DataError(
            f"the columns trained on must be there. Missing: {some_names(missing)}. Got {some_names(names)}."
        )
    found, columns, problems = list[Array](), list[Column](), list[str]()
    for name in names if known is None else [column.name for column in known]:
        cells, given = series_cells(each[names.index(name)])
        column = tell(name, cells, given) if known is None else known[len(columns)]
        values, strange = column.read(cells)
        problems += refused(column, strange, [f"row {i}" for i in range(len(values))])
        found.append(values)
        columns.append(column)
    if problems:
        raise DataError("\n".join(problems), problems)
    return np.column_stack(found) if found else np.empty((len(frame), 0)), tuple(columns)


def refused(column: Column, strange: dict[int, str], places: Sequence[str]) -> list[str]:
    """A message for the cells that a column cannot hold, if there are any."""
    if not strange:
        return []
    example = datetime(2020, 1, 31).strftime("%Y-%m-%d" if column.form == "iso" else column.form)
    wanted = {"number": "a number", "boolean": "true or false", "date": f"a date such as {example}"}
    where = some([f"{places[i]} ({cell!r})" for i, cell in sorted(strange.items())])
    return [f"column {column.name!r}: not {wanted[column.type]} in {where}"]


def series_cells(series: Any) -> tuple[ColumnCells, Type | None]:
    """The cells of a column of a data frame, and its type where the frame says it."""
    kind = getattr(series.dtype, "kind", "O")
    if kind in "biuf":
        if isinstance(series, np.ndarray):
            numbers = series.astype(np.float64)
        else:
            numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return ColumnCells(numbers), "boolean" if kind == "b" else "number"
    if kind == "M":
        moments, codes = np.unique(np.asarray(series, dtype="datetime64[us]"), return_inverse=True)
        rows = np.flatnonzero(~np.isnat(moments)[codes])
        words = tuple(np.datetime_as_string(moments).tolist())
        return ColumnCells(np.full(len(series), np.nan), words, rows.tolist(), codes[rows].tolist()), "date"
    values = series.tolist()
    if not isinstance(series, np.ndarray):
        values = [None if gone else value for value, gone in zip(values, series.isna(), strict=True)]
    return cells_of(values), "category" if str(series.dtype) == "category" else None


def cells_of(values: Iterable[Any]) -> ColumnCells:
    """Values of any kind as cells: Python's numbers are numbers, whatever else is not missing is a word."""
    numbers, rows, codes, words = list[float](), list[int](), list[int](), dict[str, int]()
    for i, value in enumerate(values):
        numeric = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        numbers.append(float(value) if numeric else np.nan)
        word = "" if value is None else str(value).strip()
        if not numeric and not is_missing(word):
            rows.append(i)
            codes.append(words.setdefault(word, len(words)))
    return ColumnCells(np.array(numbers, dtype=np.float64), tuple(words), rows, codes)
