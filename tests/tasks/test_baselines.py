"""What one answer for all rows and a linear model reach, beside a network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from equipoise.recipe import Recipe
from equipoise.report.words import beside, kept
from equipoise.tasks.baselines import baselines, frozen
from equipoise.tasks.fitting import fit
from equipoise.tasks.preparation import Preparation

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))


def test_a_linear_truth_is_explained_by_the_linear_model_and_not_by_the_mean():
    y = X @ [1.0, -2.0, 0.5, 0.0] + 3
    prepared = Preparation.of(X[:40], y[:40], "regression", np.ones(40))
    found = baselines(prepared, (X[:40], y[:40]), (X[40:], y[40:]))
    rows = prepared.apply(X).numpy()
    by_hand = Ridge().fit(rows[:40], y[:40]).score(rows[40:], y[40:])
    assert found["linear"] == pytest.approx(by_hand)
    assert found["linear"] > 0.99
    assert found["constant"] <= 0


def test_the_most_frequent_class_of_the_training_rows_is_the_constant_answer():
    y = np.array(["no"] * 45 + ["yes"] * 15)
    prepared = Preparation.of(X, y, "classification", np.ones(60))
    assert baselines(prepared, (X, y), (X, y))["constant"] == pytest.approx(0.75)


def test_a_network_that_is_no_better_is_told_so():
    assert "no better than a linear model" in beside("accuracy", 0.8, {"constant": 0.5, "linear": 0.8})
    assert "no better than one answer" in beside("accuracy", 0.3, {"constant": 0.34, "linear": 0.31})
    assert "no better" not in beside("r2", 0.9, {"constant": 0.0, "linear": 0.8})
    assert beside("r2", 0.9, {"constant": "?", "linear": 0.8}) == ""


def test_what_was_kept_is_counted():
    told = {"checkpoints": [{"accepted": True}, {"accepted": False}], "F_end": [1.0, 2.0], "gap": 1e-6}
    assert kept(told).startswith("1 of 2 checkpoints were kept. F ended at 2,")
    assert kept({"checkpoints": 3}) == ""


@pytest.mark.parametrize("how", [{}, {"certified": False}, {"theorem": "safeguarded"}])
def test_frozen_features_are_those_of_the_start_with_the_readout_of_least_squares(how):
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2
    epochs = {"steps": 2} if "theorem" in how else {"epochs": 1}
    fitted = fit(X[:40], y[:40], "regression", Recipe(width=64, dtype="float64", **epochs, **how))
    ridge = fitted.recipe.ridge or Recipe().resolved(40).ridge  # anchored training has chosen one
    start, prepared = fitted.start(), fitted.preparation
    with torch.no_grad():
        Z = start.equilibrium(prepared.apply(X)).numpy()
    a = np.linalg.solve(Z[:40].T @ Z[:40] + ridge * np.eye(64), Z[:40].T @ prepared.targets(y[:40]).numpy())
    said = prepared.answers(torch.from_numpy(Z[40:] @ a))
    by_hand = 1 - ((said - y[40:]) ** 2).sum() / ((y[40:] - y[40:].mean()) ** 2).sum()
    found = frozen(fitted, (X[:40], y[:40]), (X[40:], y[40:]))
    assert found == {"frozen": pytest.approx(by_hand, abs=1e-6)}


def test_images_have_every_rival_too():
    images, labels = RNG.normal(size=(40, 6, 6)), np.arange(40) % 2
    fitted = fit(images, labels, "classification", Recipe(model="conv-opteq", width=2, epochs=1))
    rows = images.reshape(40, -1), labels
    known = baselines(fitted.preparation, rows, rows) | frozen(fitted, rows, rows)
    assert set(known) == {"constant", "linear", "frozen"}
    assert known["constant"] == 0.5 <= known["frozen"]


def test_frozen_features_of_free_training_are_read_with_the_weights_of_the_rows():
    y, weights = np.sin(2 * X[:, 0]) + X[:, 1] ** 2, 1.0 + 4 * (X[:, 0] > 0)
    recipe = Recipe(certified=False, width=16, epochs=1, dtype="float64")
    fitted = fit(X, y, "regression", recipe, sample_weight=weights)
    start, prepared = fitted.start(), fitted.preparation
    with torch.no_grad():
        Z = start.equilibrium(prepared.apply(X)).numpy()
    ridge = Recipe().resolved(len(X)).ridge
    gram = Z.T @ (weights[:, None] * Z) + ridge * np.eye(16)
    a = np.linalg.solve(gram, Z.T @ (weights * prepared.targets(y).numpy()))
    said = prepared.answers(torch.from_numpy(Z @ a))
    by_hand = 1 - ((said - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert frozen(fitted, (X, y), (X, y), weights)["frozen"] == pytest.approx(by_hand, abs=1e-6)
