"""Checks of options: an error says what was required and what came."""

from __future__ import annotations

import math
from typing import Any


def one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """A ValueError unless the value is one of those allowed, and of the same type."""
    if not any(value == a and type(value) is type(a) for a in allowed):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}. Got {value!r} instead.")


def integer(name: str, value: Any, least: int, optional: bool = False) -> None:
    """A ValueError unless the value is an integer of at least `least`."""
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer ≥ {least}. Got {value!r} instead.")


def number(name: str, value: Any, allowed: Any, words: str) -> None:
    """A ValueError unless the value is None or a finite number for which `allowed` is true."""
    if value is None:
        return
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not math.isfinite(value)
        or not allowed(value)
    ):
        raise ValueError(f"{name} must be a finite number {words}. Got {value!r} instead.")
