"""How often sets and intervals hold the truth, and how large they are, on rows that are new to them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import betabinom

from .conformal import Conformal, checked_coverage
from .raw import Rows

if TYPE_CHECKING:
    from .fitted import Fitted

BY_CLASS = 50  # the most classes that are reported one by one


def scores_of(fitted: Fitted, kept: Rows) -> Conformal:
    """The scores of the rows that calibrate; infinite for a class that no row trained on has."""
    classes = fitted.preparation.classes
    if classes is None:
        return Conformal.of_numbers(fitted.predict(kept.X), kept.y)
    at = np.searchsorted(classes, kept.y).clip(max=len(classes) - 1)
    found = Conformal.of_classes(fitted.predict_proba(kept.X), at)
    return Conformal(np.where(classes[at] == kept.y, found.scores, np.inf))


def covered(fitted: Fitted, outputs: Any, y: Any) -> dict[str, Any]:
    """On rows that neither trained nor calibrated, the share that is `covered` and the mean `size`.

    `size` is the number of classes in a set, or the length of an interval. `likely` is the range in which the
    share lies with a probability of 95 % if rows are exchangeable: the coverage given n scores without ties
    is Beta(k, n + 1 − k) with k = ⌈(n + 1)c⌉, so that the number of covered rows is beta-binomial.
    """
    conformal, coverage = fitted.conformal, fitted.recipe.coverage
    assert conformal is not None
    assert coverage is not None
    n, N = len(conformal.scores), len(y)
    k = math.ceil((n + 1) * checked_coverage(coverage))
    low, high = (float(end) / N for end in betabinom.ppf([0.025, 0.975], N, k, n + 1 - k))
    told = {"asked": coverage, "calibrating": n, "rows": N, "likely": [low, high]}
    preparation = fitted.preparation
    if preparation.classes is None:
        ends = conformal.intervals(preparation.answers(outputs), coverage)
        was = np.asarray(y, dtype=float).reshape(ends.shape[:-1])
        inside = (ends[..., 0] <= was) & (was <= ends[..., 1])
        size = ends[..., 1] - ends[..., 0]
        return {**told, "covered": float(inside.mean()), "size": float(size.mean())}
    sets = conformal.sets(preparation.probabilities(outputs), coverage)
    classes, sizes = preparation.classes, sets.sum(axis=1)
    at = np.searchsorted(classes, y).clip(max=len(classes) - 1)
    inside = np.where(classes[at] == y, sets[np.arange(N), at], sets.all(axis=1))
    each = [
        {
            "class": str(name),
            "rows": int(own.sum()),
            "covered": float(inside[own].mean()),
            "size": float(sizes[own].mean()),
        }
        for name in classes.tolist()[:BY_CLASS]
        if (own := np.asarray(y) == name).any()
    ]
    return {**told, "covered": float(inside.mean()), "size": float(sizes.mean()), "by class": each}
