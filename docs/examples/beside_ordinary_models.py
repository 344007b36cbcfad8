"""Equilibrium networks beside ordinary models: `python docs/examples/beside_ordinary_models.py`.

Each data set is split five times, three quarters to train on. Printed are the mean score on the rest
(accuracy, or R² for numbers) with its standard deviation over the splits, and the processor time of a fit.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import equipoise as eq

SETS = {"digits": load_digits, "cancer": load_breast_cancer, "wine": load_wine, "diabetes": load_diabetes}
CLASSIFIERS = {
    "equilibrium, certified": lambda: eq.EquilibriumClassifier(random_state=0),
    "logistic regression": lambda: LogisticRegression(max_iter=2000),
    "gradient boosting": lambda: HistGradientBoostingClassifier(random_state=0),
    "two-layer network": lambda: MLPClassifier(max_iter=1000, random_state=0),
}
REGRESSORS = {
    "equilibrium, certified": lambda: eq.EquilibriumRegressor(random_state=0),
    "ridge regression": RidgeCV,
    "gradient boosting": lambda: HistGradientBoostingRegressor(random_state=0),
    "two-layer network": lambda: MLPRegressor(max_iter=1000, random_state=0),
}


def compare(name: str, splits: int = 5) -> dict[str, tuple[float, float, float]]:
    """Mean score, its standard deviation and processor seconds of a fit, for each model."""
    X, y = SETS[name](return_X_y=True)
    found = {}
    for model, make in (CLASSIFIERS if name != "diabetes" else REGRESSORS).items():
        scores, seconds = [], []
        for seed in range(splits):
            labels = y if is_classifier(make()) else None
            train, test, t, s = train_test_split(X, y, random_state=seed, stratify=labels)
            estimator = make_pipeline(StandardScaler(), make())
            begin = time.process_time()
            estimator.fit(train, t)
            seconds.append(time.process_time() - begin)
            scores.append(estimator.score(test, s))
        found[model] = (float(np.mean(scores)), float(np.std(scores)), float(np.mean(seconds)))
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for data in SETS:
        for model, (score, spread, seconds) in compare(data).items():
            print(f"{data:9} {model:24} {score:.3f} ± {spread:.3f}   {seconds:6.2f} s", flush=True)
