"""Both estimators beside scikit-learn's MLPs with a StandardScaler, all at their defaults: scores and times.

Digits, breast cancer, wine (accuracy) and diabetes (R²), on the same five splits (a quarter to test on) with
five seeds. Ours prepares the data, chooses its slack, trains and proves its certificate within the time.
"Verified" is 1 − score, the mean over the splits. Required: a mean score no more than one standard error of
the difference below the peer's; the note has both scores and says whether that holds.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bench.measure import Row
from equipoise.estimators import EquilibriumClassifier, EquilibriumRegressor

SEEDS = 5
SETS: dict[str, Callable[..., Any]] = {
    "wine": load_wine,
    "breast cancer": load_breast_cancer,
    "diabetes": load_diabetes,
    "digits": load_digits,
}


def run(quick: bool = False) -> list[Row]:
    names = [name for name in SETS if not (quick and name == "digits")]
    return [_on(name, seeds=2 if quick else SEEDS) for name in names]


def _on(name: str, seeds: int) -> Row:
    X, y = SETS[name](return_X_y=True)
    classes = name != "diabetes"
    ours, peer = (EquilibriumClassifier, MLPClassifier) if classes else (EquilibriumRegressor, MLPRegressor)
    scores, times = np.zeros((2, seeds)), np.zeros((2, seeds))
    for seed in range(seeds):
        parts = train_test_split(X, y, test_size=0.25, random_state=seed, stratify=y if classes else None)
        made = ours(random_state=seed), make_pipeline(StandardScaler(), peer(random_state=seed))
        for i, estimator in enumerate(made):
            scores[i, seed], times[i, seed] = _score(estimator, *parts)
        assert made[0].certificate_.proved
    (our_score, peer_score), difference = scores.mean(axis=1), scores[0] - scores[1]
    error = float(difference.std(ddof=1)) / seeds**0.5
    holds = "✓" if our_score >= peer_score - error else "✗"
    return Row(
        work=f"{name}, N = {len(parts[0])}, {'accuracy' if classes else 'R²'}",
        ours=ours.__name__,
        ours_ms=1e3 * float(np.median(times[0])),
        peer=peer.__name__,
        peer_ms=1e3 * float(np.median(times[1])),
        error=1 - float(our_score),
        peer_error=1 - float(peer_score),
        ratio=statistics.median((times[1] / times[0]).tolist()),
        note=f"{our_score:.4f} against {peer_score:.4f}, standard error {error:.4f} {holds}",
    )


def _score(estimator: Any, X: Any, X_test: Any, y: Any, y_test: Any) -> tuple[float, float]:
    """The score on rows not trained on, and the CPU seconds of fitting."""
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the peers stop at 200 epochs
        estimator.fit(X, y)
    seconds = time.process_time() - begin
    return float(estimator.score(X_test, y_test)), seconds
