"""Accuracy of labels, R² and errors of numbers: how well answers agree with what was to be answered."""

from __future__ import annotations

from typing import Any

import numpy as np


def score(said: Any, was: Any, labels: bool, weights: Any = None) -> dict[str, float | None]:
    """{"accuracy"} of labels; {"r2", "rmse", "mae"} of numbers. R² is None where the targets do not vary."""
    said, was = np.asarray(said), np.asarray(was)
    weights = np.ones(len(was)) if weights is None else np.asarray(weights)
    if labels:
        return {"accuracy": float(np.average(said == was, weights=weights))}
    was = was.astype(float).reshape(len(was), -1)
    off, w = was - said.astype(float).reshape(was.shape), weights[:, None]
    spread = float((w * (was - np.average(was, axis=0, weights=weights)) ** 2).sum())
    squares = float((w * off**2).sum())
    count = float(weights.sum()) * was.shape[1]
    return {
        "r2": 1 - squares / spread if spread > 0 else None,
        "rmse": float(np.sqrt(squares / count)),
        "mae": float((w * np.abs(off)).sum() / count),
    }
