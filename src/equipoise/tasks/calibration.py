"""Whether probabilities mean what they say: of the answers given with 80 %, are 80 % right?"""

from __future__ import annotations

from typing import Any

import numpy as np

BINS = 10


def calibration(probabilities: Any, own: Any) -> dict[str, Any]:
    """The reliability of the most probable class, by ten equal ranges of its probability.

    Args:
        probabilities: (N, C), of each class.
        own: (N,) the place of each row's true class.

    Returns `bins`, those that hold a row, each with its ends `low` and `high`, its `count`, the mean
    probability `said` and the share `right`; and the expected calibration error `ece`, which is
    Σ count/N·|said − right|.
    """
    probabilities, own = np.asarray(probabilities, dtype=float), np.asarray(own)
    said, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == own
    at = np.clip(np.ceil(said * BINS).astype(int) - 1, 0, BINS - 1)  # (low, high]
    bins, error = [], 0.0
    for k in range(BINS):
        if count := int((within := at == k).sum()):
            mean, share = float(said[within].mean()), float(right[within].mean())
            error += count / len(own) * abs(mean - share)
            ends = {"low": k / BINS, "high": (k + 1) / BINS}
            bins.append({**ends, "count": count, "said": mean, "right": share})
    return {"bins": bins, "ece": error}
