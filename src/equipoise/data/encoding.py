"""From the columns of a table to the inputs of a network: medians for missing values, indicators of levels.

scikit-learn's transformers decide what is done, on the rows trained on. What they decided is kept as plain
data, so that it is stored as JSON and never unpickled, and applied by one function, in torch, which an
exported network can carry along.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.data.columns import Column
from equipoise.data.dataset import Array
from equipoise.data.errors import DataError, some
from equipoise.memory import room, spans

MOST_ROWS = 100_000  # the most rows from which medians and frequent levels are found
MOST_LEVELS = 50  # the most columns that one column of categories may become
RARE = 0.01, 2, 20  # a level is rare below this share of the rows, taken as 2 rows at least and 20 at most
YEAR, WEEK = 365.2425, 7.0  # days


class Described(NamedTuple):
    """A column in words: what it holds, its values, and what is done with it."""

    name: str
    type: str
    values: str
    treatment: str


@dataclass(frozen=True)
class Treated:
    """A column and what was measured of it on the rows trained on."""

    column: Column
    missing: int  # rows without a value; where there are some, an input says which
    low: float = 0.0
    high: float = 0.0
    fill: float = 0.0  # the median, which stands for a missing number or date
    clock: bool = False  # whether a date has a time of day
    frequent: tuple[int, ...] = ()  # levels of a category with an input each; the last is "missing"
    rare: tuple[int, ...] = ()  # the levels that share one input


@dataclass(frozen=True)
class Encoding:
    """How a matrix of typed columns (N, d) becomes one of inputs (N, D), all of them finite.

    First come the numbers and booleans, with the median where a value is missing; then for each of these with
    missing values in training the indicator of a missing one; then the columns of the categories, one for
    each frequent level and one for all rare ones; then the parts of the dates. A level that training did not
    have counts as rare, or is none of the levels where there were no rare ones.
    """

    rows: int
    treated: tuple[Treated, ...]
    dropped: Mapping[str, str] = field(default_factory=dict)  # columns that are not used, and why

    @classmethod
    def of(cls, X: Array, columns: Sequence[Column], dropped: Mapping[str, str] | None = None) -> Encoding:
        """What is to be done with the columns, decided on the rows X to be trained on."""
        if len(X) == 0:
            raise DataError("a table needs rows to be encoded. Got none.")
        some_rows = X[:: -(-len(X) // MOST_ROWS)]
        transformer = _transformer(len(some_rows), columns).fit(_coded(some_rows, columns))
        fills = dict(zip(_at(columns, _FILLED), _statistics(transformer, "filled"), strict=True))
        frequent = dict(zip(_at(columns, ("category",)), _frequent(transformer), strict=True))
        treated = []
        for j, column in enumerate(columns):
            present = X[~np.isnan(X[:, j]), j]
            low, high = (float(present.min()), float(present.max())) if len(present) else (0.0, 0.0)
            missing = len(X) - len(present)
            if j in frequent:
                met = {*map(int, np.unique(present)), *([len(column.levels)] if missing else ())}
                rare = tuple(sorted(met - set(frequent[j])))
                treated.append(Treated(column, missing, frequent=frequent[j], rare=rare))
            elif not math.isfinite(fills[j]) or not math.isfinite(high - low):
                raise DataError(
                    f"column {column.name!r}: its numbers are too large. Divide it by a constant."
                )
            else:
                clock = column.type == "date" and bool((present != np.floor(present)).any())
                fill = math.floor(fills[j]) if column.type == "date" and not clock else fills[j]
                treated.append(Treated(column, missing, low, high, float(fill), clock))
        return cls(len(X), tuple(treated), dict(dropped or {}))

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that are read."""
        return tuple(t.column for t in self.treated)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs, (D,)."""
        found = [t.column.name for t in self._of("number", "boolean")]
        found += [f"{t.column.name} is missing" for t in self._of("number", "boolean") if t.missing]
        for t in self._of("category"):
            shown = [*(f"'{level}'" for level in t.column.levels), "missing"]
            found += [f"{t.column.name} is {shown[k]}" for k in t.frequent]
            found += [f"{t.column.name} is rare"] * bool(t.rare)
        for t in self._of("date"):
            found += [f"{t.column.name}: {part}" for part in _date_parts(t)]
            found += [f"{t.column.name} is missing"] * bool(t.missing)
        return tuple(found)

    def _of(self, *types: str) -> list[Treated]:
        return [t for t in self.treated if t.column.type in types]

    # -- applied --------------------------------------------------------------------------------------------

    def transform(self, X: Array) -> Array:
        """The inputs, (N, D) float64, of rows X (N, d) whose columns are `columns`."""
        if X.ndim != 2 or X.shape[1] != len(self.treated):
            raise DataError(f"rows must have {len(self.treated)} columns, as in training. Got {X.shape}.")
        found = room((len(X), len(self.names)), np.float64)
        for span in spans(len(X), found[:1].size):
            found[span] = self(torch.from_numpy(np.array(X[span], dtype=np.float64, order="C"))).numpy()
        return found

    def __call__(self, X: Tensor) -> Tensor:
        """`transform` for a float64 tensor, by operations that an exported network can hold."""
        at = [j for j, t in enumerate(self.treated) if t.column.type in ("number", "boolean")]
        flagged = [j for j in at if self.treated[j].missing]
        fills = torch.tensor([self.treated[j].fill for j in at], dtype=X.dtype)
        parts = [torch.where(X[:, at].isnan(), fills, X[:, at]), X[:, flagged].isnan().to(X.dtype)]
        each = {t.column.name: X[:, j : j + 1] for j, t in enumerate(self.treated)}
        for t in self._of("category"):
            x = each[t.column.name]
            x = torch.where(x.isnan(), float(len(t.column.levels)), x)
            own = x == torch.tensor(t.frequent, dtype=X.dtype)
            rare = ~own.any(dim=1, keepdim=True)
            parts.append((torch.cat([own, rare], dim=1) if t.rare else own).to(X.dtype))
        for t in self._of("date"):
            x = each[t.column.name]
            filled = torch.where(x.isnan(), t.fill, x)
            parts += [part(filled) for part in _date_parts(t).values()]
            parts += [x.isnan().to(X.dtype)] * bool(t.missing)
        return torch.cat(parts, dim=1)

    def surprises(self, X: Array, places: Sequence[str] = ()) -> list[str]:
        """What rows hold that those trained on did not: new levels, and values missing for the first time."""
        found = []
        for t, x in zip(self.treated, X.T, strict=True):
            gone = np.isnan(x)
            if t.column.type == "category":
                coded = np.where(gone, len(t.column.levels), x)
                met = np.flatnonzero(~np.isin(coded, [*t.frequent, *t.rare]) & ~gone)
                taken = "it counts as rare" if t.rare else "it is none of the known ones"
                if len(met):
                    where = some([places[i] if len(places) else f"row {i}" for i in met.tolist()])
                    found.append(
                        f"column {t.column.name!r}: {_count(len(met), 'row')} with a level that training did "
                        f"not have ({where}): {taken}"
                    )
            if gone.any() and not t.missing:
                how = "rare" if t.rare else "none of the levels"
                how = how if t.column.type == "category" else t.column.show(t.fill)
                found.append(
                    f"column {t.column.name!r}: {_count(int(gone.sum()), 'missing value')}, where training "
                    f"had none, taken as {how}"
                )
        return found

    # -- in words, and as plain data ------------------------------------------------------------------------

    def describe(self) -> list[Described]:
        """Every column: what it holds, its values, and what is done with it."""
        found = [Described(t.column.name, t.column.type, _values(t), _treatment(t)) for t in self.treated]
        return found + [Described(name, "", "", f"dropped: {why}") for name, why in self.dropped.items()]

    def to_dict(self) -> dict[str, Any]:
        """The whole encoding, as JSON holds it."""
        return {
            "rows": self.rows,
            "treated": [asdict(t) for t in self.treated],
            "dropped": dict(self.dropped),
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Encoding:
        """What `to_dict` gave; whatever does not go together is a ValueError."""
        treated = []
        for entry in found["treated"]:
            column = entry["column"]
            column = Column(**{**column, "levels": tuple(map(str, column["levels"]))})
            frequent, rare = (tuple(map(int, entry[name])) for name in ("frequent", "rare"))
            low, high, fill = (float(entry[name]) for name in ("low", "high", "fill"))
            t = Treated(column, int(entry["missing"]), low, high, fill, bool(entry["clock"]), frequent, rare)
            if not all(map(math.isfinite, (low, high, fill))):
                raise ValueError(f"column {column.name!r} is filled with {fill}, from {low} to {high}")
            if any(not 0 <= k <= len(column.levels) for k in (*t.frequent, *t.rare)):
                raise ValueError(f"column {column.name!r} has no such levels")
            treated.append(t)
        return cls(int(found["rows"]), tuple(treated), dict(found["dropped"]))


# -- scikit-learn's part -------------------------------------------------------------------------------------

_FILLED = ("number", "boolean", "date")


def _at(columns: Sequence[Column], types: Sequence[str]) -> list[int]:
    return [j for j, column in enumerate(columns) if column.type in types]


def _coded(X: Array, columns: Sequence[Column]) -> Array:
    """X with a level of its own for categories that are missing."""
    levels = np.array([len(column.levels) for column in columns], dtype=np.float64)
    return np.where(np.isnan(X) & (levels > 0), levels, X)


def _transformer(rows: int, columns: Sequence[Column]) -> Any:
    """The transformers that decide: one for numbers, booleans and dates, and one for categories."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder

    share, least, most = RARE
    imputer = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    encoder = OneHotEncoder(
        min_frequency=min(max(least, round(share * rows)), most),
        max_categories=MOST_LEVELS,
        handle_unknown="infrequent_if_exist",
        sparse_output=False,
    )
    parts = (("filled", imputer, _FILLED), ("categories", encoder, ("category",)))
    return ColumnTransformer([(name, made, at) for name, made, t in parts if (at := _at(columns, t))])


def _statistics(transformer: Any, name: str) -> Array:
    made = transformer.named_transformers_.get(name)
    return np.zeros(0) if made is None else made.statistics_


def _frequent(transformer: Any) -> list[tuple[int, ...]]:
    """The frequent levels of each column of categories."""
    encoder = transformer.named_transformers_.get("categories")
    pairs = zip(encoder.categories_, encoder.infrequent_categories_, strict=True) if encoder else ()
    return [tuple(int(k) for k in known if few is None or k not in few) for known, few in pairs]


# -- dates ---------------------------------------------------------------------------------------------------


def _date_parts(t: Treated) -> dict[str, Any]:
    """The numbers made of a date: its year with fraction, and where it lies in the year, week and day."""
    circle = {"the year": YEAR, "the week": WEEK}
    if t.clock:
        circle["the day"] = 1.0
    parts: dict[str, Any] = {"years": lambda x: x / YEAR}
    for name, period in circle.items():
        parts[f"sine of {name}"] = lambda x, p=period: torch.sin(2 * math.pi * (x / p - torch.floor(x / p)))
        parts[f"cosine of {name}"] = lambda x, p=period: torch.cos(2 * math.pi * (x / p - torch.floor(x / p)))
    return parts


# -- words ---------------------------------------------------------------------------------------------------


def _count(n: int, what: str) -> str:
    return f"1 {what}" if n == 1 else f"{n} {what}s"


def _values(t: Treated) -> str:
    if t.column.type == "category":
        return some([repr(level) for level in t.column.levels])
    if t.column.type == "boolean":
        return "true or false"
    return f"{t.column.show(t.low)} … {t.column.show(t.high)}"


def _treatment(t: Treated) -> str:
    if t.column.type == "category":
        done = f"an input for each of {_count(len(t.frequent), 'level')}"
        if t.rare:
            done += f", one for {_count(len(t.rare), 'rare level')}"
        return done + (f"; {t.missing} missing count as a level" if t.missing else "")
    day = "year, season, weekday" + (", time of day" if t.clock else "")
    done = day if t.column.type == "date" else "standardised"
    if t.missing:
        done += f"; {t.missing} missing are taken as {t.column.show(t.fill)}, and an input says which"
    return done
