"""A named data set and where it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class SourceFile:
    """One file a data set was read from; `url` is empty for a file with no public address."""

    name: str
    sha256: str
    url: str = ""


@dataclass(frozen=True)
class Provenance:
    """Where the numbers came from: enough to fetch the same bytes again, or to say that one cannot.

    `subset` is None for the whole official data set and otherwise says what part this is.
    `split` says who divided training from test samples, and how.
    """

    source: str
    files: tuple[SourceFile, ...]
    licence: str
    split: str
    subset: str | None = None


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples as rows: `x` are uint8 images N × H × W [× C] or float64 features N × d.

    `y` are int64 labels, indices into `classes`; in a regression `classes` is empty and `y` is float64,
    (N,) or (N, k).
    """

    name: str
    x_train: Array = field(repr=False)
    y_train: Array = field(repr=False)
    x_test: Array = field(repr=False)
    y_test: Array = field(repr=False)
    classes: tuple[str, ...]
    provenance: Provenance


class SplitArrays(NamedTuple):
    """The four arrays every reader returns."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array


SEEDED_SPLIT = "numpy.random.default_rng(0).permutation: first 80 % (rounded down) training, rest test"


def seeded_split(x: Array, y: Array) -> SplitArrays:
    """Divide data that have no official split, always in the same way (`SEEDED_SPLIT`)."""
    order = np.random.default_rng(0).permutation(len(x))
    train, test = np.split(order, [len(x) * 8 // 10])
    return SplitArrays(x[train], y[train], x[test], y[test])
