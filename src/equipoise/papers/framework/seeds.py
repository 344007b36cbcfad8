"""mean ± standard deviation over seeds, and mean difference ± its standard error, in words.

A run that was lost counts as ∞ in a comparison, and the page says that it was lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from .page import number
from .verdicts import error_of_difference, standard_error, with_error


def spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation (over n − 1) of the values that are finite; None where there is none."""
    kept = [v for v in values if np.isfinite(v)]
    deviation = float(np.std(kept, ddof=1)) if len(kept) > 1 else None
    return (float(np.mean(kept)) if kept else None), deviation


def even(curves: Sequence[Sequence[float | None]]) -> np.ndarray:
    """Curves of one length, (R, K): those that ended early are cut where the first of them ended."""
    k = min(map(len, curves))
    return np.array([curve[:k] for curve in curves], dtype=float)


def in_columns(name: str, values: Sequence[float], of: str = "") -> dict[str, float | None]:
    """Two cells of a table: the mean, and the standard deviation beside it."""
    return dict(zip((name, f"± sd of {of or name}"), spread(values), strict=True))


def mean_error(values: Sequence[float] | np.ndarray, form: str = ".1f") -> str:
    """The mean over seeds and its standard error, in words."""
    return with_error(float(np.mean(values)), standard_error(list(values)), form)


def gain(more: Sequence[float], less: Sequence[float], form: str = ".2f") -> str:
    """The mean over paired seeds of more − less and its standard error, in words."""
    gains = np.subtract(more, less).tolist()
    mean = float(np.mean(gains))
    return f"{'+' if mean >= 0 else '−'}{with_error(abs(mean), standard_error(gains), form)}"


def shown(values: Sequence[float]) -> str:
    """0.0012 ± 0.0003, or the mean alone if there is one seed; and how many of the runs were lost."""
    mean, deviation = spread(values)
    lost = sum(not np.isfinite(v) for v in values)
    words = "" if mean is None else number(mean) if deviation is None else f"{number(mean)} ± {deviation:.2g}"
    if not lost:
        return words
    return f"{words}, {lost} of {len(values)} lost" if words else "lost"


def compared(groups: Mapping[str, Sequence[float]]) -> str:
    """Every group by mean ± standard deviation, then the differences that decide a verdict on their order."""
    each = ", ".join(f"{name}: {shown(values)}" for name, values in groups.items())
    if max(map(len, groups.values())) == 1:
        return each
    values = list(groups.values())
    steps = ", ".join(_difference(b, a) for a, b in pairwise(values))
    whole = f", from the first to the last {_difference(values[-1], values[0])}" if len(values) > 2 else ""
    return (
        f"{each} (± standard deviation over seeds); from each to the next {steps}{whole} (± standard error)"
    )


def apart(more: Sequence[float], less: Sequence[float]) -> str:
    """The difference on which a verdict rests, in brackets, if there are several seeds and none was lost."""
    found = _difference(more, less)
    return f" (difference {found}, standard error)" if "±" in found else ""


def _difference(more: Sequence[float], less: Sequence[float]) -> str:
    """The mean of more − less, and the standard error that `below` compares it with."""
    if not (np.isfinite(more).all() and np.isfinite(less).all()):
        return "–"
    gap, error = float(np.mean(more) - np.mean(less)), error_of_difference(more, less)
    signed = f"{'−' if gap < 0 else '+'}{abs(gap):.3g}"
    return signed if error is None else f"{signed} ± {error:.3g}"
