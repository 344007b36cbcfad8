"""Choose a theorem's free constants for the best margin. The choice need not be best: the proof checks it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import minimize

from ..linalg import Interval

_WORST = 1e300


def best_constants(
    score: Callable[[Sequence[float]], float], starts: Sequence[Sequence[float]], tries: int = 400
) -> tuple[float, ...]:
    """Positive constants that maximise `score`, by Nelder-Mead on their logarithms from each start."""

    def cost(logs: np.ndarray) -> float:
        try:
            value = score([math.exp(x) for x in logs])
        except (OverflowError, ZeroDivisionError):
            return _WORST
        return -value if math.isfinite(value) else _WORST

    best, best_cost = tuple(starts[0]), _WORST
    for start in starts:
        first = np.log(np.asarray(start, dtype=float))
        # A simplex a factor of e wide in every direction: the scale on which these constants matter.
        simplex = np.vstack([first, first + np.eye(len(first))])
        options = {"maxfev": tries, "initial_simplex": simplex, "xatol": 1e-4, "fatol": 1e-6}
        found = minimize(cost, first, method="Nelder-Mead", options=options)
        if found.fun < best_cost:
            best, best_cost = tuple(math.exp(x) for x in found.x), float(found.fun)
    return best


def log_margin(*pairs: tuple[float, float]) -> float:
    """The worst log(lhs/rhs) of claims lhs ≥ rhs: what to maximise; −∞ where a side makes no sense."""
    worst = math.inf
    for lhs, rhs in pairs:
        if not (lhs > 0 and math.isfinite(rhs)):
            return -math.inf
        worst = min(worst, math.inf if rhs <= 0 else math.log(lhs) - math.log(rhs))
    return worst


def middle(x: Interval) -> float:
    """The middle of an interval, to search with."""
    return x.lo / 2 + x.hi / 2
