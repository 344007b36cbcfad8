"""Intervals by jackknife+: features from one half of the rows, each row of the other half left out in turn.

The network is trained on the first half, which also chooses λ. So features and λ do not depend on the other
half, whose readout is ridge regression, and leaving out one of its rows is exact in closed form. If c is
asked for, a new row is covered with probability ≥ 2c − 1 [barber2021, Theorem 1], and usually about c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .arrays import Array
from .choose import choose_slack
from .conformal import checked_coverage, jackknife_plus
from .fitted import Fitted


@dataclass(frozen=True)
class Jackknife:
    """The features (n, m) and standardised targets (n, k) of the rows that are left out in turn, and λ."""

    features: Array
    targets: Array
    ridge: float
    coverage: float

    @property
    def promised(self) -> float:
        """2c − 1, which is what is proved."""
        return float(2 * checked_coverage(self.coverage) - 1)

    @classmethod
    def of(
        cls, fitted: Fitted, first: tuple[Array, Array], second: tuple[Array, Array], coverage: float
    ) -> Jackknife:
        """Made from a network fitted on the first rows (X, y), and the second ones, which it never saw."""
        Z, Y = (torch.from_numpy(part) for part in _parts(fitted, *first))
        ridge = choose_slack(Z, Y, torch.ones(len(Z), dtype=torch.float64)).slack
        return cls(*_parts(fitted, *second), ridge, coverage)

    def intervals(self, fitted: Fitted, X: Array) -> Array:
        """(N, 2), or (N, k, 2), in the units of the targets."""
        new, prepared = _features(fitted, X), fitted.preparation
        how = {"ridge": self.ridge, "coverage": self.coverage}
        each = [jackknife_plus(self.features, y, new, **how) for y in self.targets.T]
        ends = np.stack(each, axis=1) * prepared.target_scale[:, None] + prepared.target_mean[:, None]
        ends = np.nextafter(ends, [-np.inf, np.inf])
        return ends[:, 0] if prepared.flat else ends


def _parts(fitted: Fitted, X: Array, y: Array) -> tuple[Array, Array]:
    targets = fitted.preparation.targets(y).double().numpy()
    return _features(fitted, X), targets.reshape(len(y), -1)


def _features(fitted: Fitted, X: Any) -> Array:
    with torch.no_grad():
        return fitted.model.equilibrium(fitted.preparation.apply(X)).flatten(1).double().numpy()
