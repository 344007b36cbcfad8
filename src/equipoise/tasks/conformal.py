"""Sets and intervals that cover a new row with a promised probability: conformal prediction.

Split conformal prediction takes the scores of n rows that training never saw and that are exchangeable with a
new row. The ⌈(n + 1)c⌉-th smallest as threshold covers the new row with probability ≥ c, on average over rows
and whatever the network is. Jackknife+ fits and calibrates on the same rows, by leave-one-out predictions in
closed form, and promises 2c − 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def checked_coverage(coverage: float) -> Fraction:
    """The coverage as it is written: 0.9 is nine tenths, and not the float next to it."""
    if not isinstance(coverage, int | float) or not 0 < coverage < 1:
        raise ValueError(f"coverage must lie in (0, 1), such as 0.9. Got {coverage!r} instead.")
    return Fraction(repr(float(coverage)))


def threshold(scores: Array, coverage: float) -> float:
    """The ⌈(n + 1)c⌉-th smallest of n scores, or ∞ if that number is larger than n."""
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 1 or np.isnan(scores).any():
        raise ValueError(f"scores must be (n,), without NaN. Got shape {scores.shape}.")
    k = math.ceil((len(scores) + 1) * checked_coverage(coverage))
    return math.inf if k > len(scores) else float(np.partition(scores, k - 1)[k - 1])


@dataclass(frozen=True)
class Conformal:
    """The scores of the calibration rows: 1 − p of the right class, or |y − ŷ| of a number."""

    scores: Array  # (n,), or (n, k) for k targets

    @staticmethod
    def of_classes(probabilities: Array, labels: Array) -> Conformal:
        """Scores from probabilities (n, C) and the indices (n,) of the right classes."""
        shares = np.asarray(probabilities, dtype=np.float64)
        return Conformal(1.0 - shares[np.arange(len(labels)), np.asarray(labels)])

    @staticmethod
    def of_numbers(predicted: Array, y: Array) -> Conformal:
        """Scores from predictions and targets, (n,) or (n, k)."""
        return Conformal(np.abs(np.asarray(y, dtype=np.float64) - np.asarray(predicted, dtype=np.float64)))

    def sets(self, probabilities: Array, coverage: float, change: float = 0.0) -> Array:
        """(N, C): which classes the set of each row holds.

        `change` ≥ 0 bounds how far a perturbation can move a probability: with it the sets cover the new row
        under every such perturbation, since each of its scores is at most that much larger; the roundings of
        both scores and of the sum are added to it.
        """
        _not_negative(change)
        limit = threshold(self.scores, coverage)
        limit = limit + (change + 2.0**-51) * (change > 0)
        return ~(1.0 - np.asarray(probabilities, dtype=np.float64) > limit)  # NaN rules out no class

    def intervals(self, predicted: Array, coverage: float, change: float = 0.0) -> Array:
        """(N, 2), or (N, k, 2) with the promise for each of k targets by itself; `change` as for sets.

        Ends are rounded outward: a row whose score is the threshold itself, as where scores tie, is covered.
        """
        _not_negative(change)
        columns = self.scores.reshape(len(self.scores), -1).T
        radius = np.array([threshold(column, coverage) for column in columns]) + change
        radius = np.nextafter(radius[0] if self.scores.ndim == 1 else radius, np.inf)
        low, high = (np.asarray(predicted, dtype=np.float64) + r for r in (-radius, radius))
        ends = np.stack([np.nextafter(low, -np.inf), np.nextafter(high, np.inf)], axis=-1)
        return np.where(np.isnan(ends), [-np.inf, np.inf], ends)  # NaN rules out no number


def jackknife_plus(Z: Array, y: Array, new: Array, *, ridge: float, coverage: float) -> Array:
    """(N, 2): intervals of ridge regression on features Z (n, m) for rows `new` (N, m).

    ŷ_{−i}(z) = z·(a − (ZᵀZ + λI)⁻¹ z_i r_i/(1 − h_i)) in closed form. The promise is 1 − 2α where coverage is
    1 − α, and holds for a λ and for features that were chosen without these rows.
    """
    c = checked_coverage(coverage)
    if not ridge > 0:
        raise ValueError(f"ridge must be > 0, and chosen without the rows. Got {ridge} instead.")
    Z, y, new = (np.asarray(t, dtype=np.float64) for t in (Z, y, new))
    n = len(Z)
    U, s, Vt = np.linalg.svd(Z, full_matrices=False)
    G = (Vt.T * (s / (s**2 + ridge))) @ U.T  # (ZᵀZ + λI)⁻¹Zᵀ, (m, n)
    a = G @ y
    # r and 1 − h from what λ leaves of every singular value: y − Za and 1 − z·Gz cancel where that is small.
    left = ridge / (s**2 + ridge)
    r, rest = U @ (left * (U.T @ y)), U**2 @ left
    if n > len(s):  # the part of y that no feature reaches
        r, rest = r + y - U @ (U.T @ y), rest + (1 - (U**2).sum(axis=1)).clip(0)
    left_out = r / rest  # y_i − ŷ_{−i}(x_i)
    without = (new @ a)[:, None] - (new @ G) * left_out  # (N, n): ŷ_{−i} of the new rows
    k = math.ceil((n + 1) * c)
    if k > n:
        return np.tile([-np.inf, np.inf], (len(new), 1))
    # The ⌊α(n + 1)⌋-th smallest of the lower ends is the ⌈(1 − α)(n + 1)⌉-th largest.
    size = np.abs(left_out)
    low, high = (np.sort(end, axis=1)[:, k - 1] for end in (size - without, size + without))  # NaN is last
    ends = np.stack([-low, high], axis=1)
    return np.where(np.isnan(ends), [-np.inf, np.inf], ends)


def _not_negative(change: float) -> None:
    if not change >= 0:
        raise ValueError(f"change must be ≥ 0: it bounds what a perturbation does. Got {change} instead.")
