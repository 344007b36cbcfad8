"""What a call must be given: each check says what was required and what came."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


def as_number(value: Any) -> float:
    """`value` as a float, or NaN if it is not a number: NaN lies in no interval."""
    try:
        return math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, RuntimeError):
        return math.nan


def integer(name: str, value: Any, least: int = 1, other: str = "") -> None:
    """Raise a ValueError unless `value` is an integer ≥ `least`; `other` names what else is allowed."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer ≥ {least}{other}. Got {value!r} instead.")


def positive(name: str, value: Any, other: str = "") -> None:
    """Raise a ValueError unless `value` is a finite number > 0; `other` names what else is allowed."""
    if not 0 < as_number(value) < math.inf:
        raise ValueError(f"{name} must be a finite number > 0{other}. Got {value!r} instead.")


def nonnegative(name: str, value: Any) -> None:
    """Raise a ValueError unless `value` is a finite number ≥ 0."""
    if not 0 <= as_number(value) < math.inf:
        raise ValueError(f"{name} must be a finite number ≥ 0. Got {value!r} instead.")


def within(name: str, value: Any, interval: str, why: str = "") -> None:
    """Raise a ValueError unless `value` lies in an interval such as "(0, 1]"; `why` goes into its message."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    x = as_number(value)
    above = low <= x if interval[0] == "[" else low < x
    below = x <= high if interval[-1] == "]" else x < high
    if not (above and below):
        raise ValueError(f"{name} must lie in {interval}{why}. Got {value!r} instead.")


def one_of(name: str, value: Any, allowed: Iterable[Any], other: str = "") -> None:
    """Raise a ValueError unless `value` is one of `allowed`; `other` names what else is allowed."""
    known = list(allowed)
    if value not in known:
        names = ", ".join(map(repr, known))
        raise ValueError(f"{name} must be one of {names}{other}. Got {value!r} instead.")
