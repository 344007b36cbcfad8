"""How well the same rows are predicted without a network: by one answer for all of them, and linearly."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from .preparation import Preparation
from .scores import score

_ROWS = 10_000  # at most, evenly spaced, that the linear model is fitted to


def baselines(preparation: Preparation, train: tuple[Any, Any], judged: tuple[Any, Any]) -> dict[str, float]:
    """{"constant", "linear"}: accuracy, or R², on the rows `judged` of what was fitted to the rows `train`.

    The constant answer is the most frequent class, or the mean; the linear model is logistic or ridge
    regression on the inputs as the network sees them.
    """
    X, y = train
    labels = preparation.classes is not None
    if labels:
        names, counts = np.unique(y, return_counts=True)
        constant = np.full(len(judged[1]), names[counts.argmax()])
    else:
        y = np.asarray(y, dtype=float)
        constant = np.broadcast_to(y.mean(axis=0), np.shape(judged[1]))
    at = np.linspace(0, len(y) - 1, min(len(y), _ROWS)).round().astype(int)
    rows = X.iloc[at] if hasattr(X, "iloc") else np.asarray(X)[at]
    linear: Any = LogisticRegression(max_iter=200) if labels else Ridge()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # near its optimum it scores as well
        linear.fit(preparation.apply(rows).numpy(), np.asarray(y)[at])
    said = {"constant": constant, "linear": linear.predict(preparation.apply(judged[0]).numpy())}
    found = {name: score(answers, judged[1], labels) for name, answers in said.items()}
    values = {name: each["accuracy" if labels else "r2"] for name, each in found.items()}
    return {name: value for name, value in values.items() if value is not None}
