"""Findings: true of the network, bounded in size, and honest about what could not be computed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import equipoise as eq
from equipoise import report
from equipoise.files import strict
from equipoise.recipe import Recipe
from equipoise.tasks.arrays import evenly
from equipoise.tasks.fitted import Fitted
from equipoise.tasks.fitting import fit

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 4))
LABELS = np.array(["no", "maybe", "yes"])[(X[:, 0] > 0.4).astype(int) + (X[:, 0] > -0.4)]
NUMBERS = 3 * X[:, 0] + X[:, 1] ** 2 + 10
RECIPE = Recipe(width=24, steps=6)


@pytest.fixture(scope="module")
def classifier() -> Fitted:
    return fit(X[:60], LABELS[:60], "classification", RECIPE)


@pytest.fixture(scope="module")
def regressor() -> Fitted:
    return fit(X[:60], NUMBERS[:60], "regression", RECIPE)


def test_scores_and_confusion_are_those_of_the_predictions(classifier):
    found = report.findings(classifier, (X[:60], LABELS[:60]), (X[60:], LABELS[60:]))
    said = classifier.predict(X[60:])
    assert found["kind"] == "classification"
    assert found["scores"]["test"] == {"rows": 30, "accuracy": pytest.approx(np.mean(said == LABELS[60:]))}
    counts = np.array(found["confusion"]["counts"])
    names = found["confusion"]["names"]
    assert found["confusion"]["part"] == "test"
    assert names == ["maybe", "no", "yes"]
    for i, was in enumerate(names):
        for j, predicted in enumerate(names):
            assert counts[i, j] == np.sum((LABELS[60:] == was) & (said == predicted))


def test_without_test_rows_the_training_rows_are_judged(classifier):
    found = report.findings(classifier, (X[:60], LABELS[:60]))
    assert list(found["scores"]) == ["training"]
    assert found["confusion"]["part"] == "training"
    assert np.sum(found["confusion"]["counts"]) == 60


def test_the_regression_scores_are_sklearn_s(regressor):
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    found = report.findings(regressor, (X[:60], NUMBERS[:60]), (X[60:], NUMBERS[60:]))
    said = regressor.predict(X[60:])
    score = found["scores"]["test"]
    assert score["r2"] == pytest.approx(r2_score(NUMBERS[60:], said))
    assert score["rmse"] == pytest.approx(root_mean_squared_error(NUMBERS[60:], said))
    assert score["mae"] == pytest.approx(mean_absolute_error(NUMBERS[60:], said))
    assert np.allclose(found["residuals"]["test"]["predicted"], said)
    assert np.allclose(found["residuals"]["test"]["target"], NUMBERS[60:])
    assert np.allclose(found["plane"]["targets"], NUMBERS[:60])


def test_the_spectra_are_those_of_the_kernel_and_the_weights(regressor):
    found = report.findings(regressor, (X[:60], NUMBERS[:60]))
    kernel = eq.tangent_kernel(regressor.model, regressor.preparation.apply(X[:60]))
    values = np.sort(kernel.eigenvalues().numpy())[::-1]
    assert np.allclose(found["kernel"]["spectrum"]["values"], values, atol=1e-9 * values[0])
    assert sum(found["kernel"]["shares"].values()) == pytest.approx(1)
    W = regressor.model.weight().detach()
    assert np.allclose(found["weights"]["effective"]["values"], torch.linalg.svdvals(W).numpy())
    assert set(found["weights"]) == {"effective", "U"}  # W of this family is the effective one
    assert found["contraction"] == pytest.approx(float(torch.linalg.matrix_norm(W, 2)))


def test_the_plane_is_that_of_the_equilibria(classifier):
    found = report.findings(classifier, (X[:60], LABELS[:60]))
    Z = classifier.model.equilibrium(classifier.preparation.apply(X[:60])).detach().numpy()
    distance = np.linalg.norm(Z - np.median(Z, axis=0), axis=1)
    typical = np.argsort(distance)[:57]  # all but the outermost twentieth
    s = np.linalg.svd(Z[typical] - Z[typical].mean(axis=0), compute_uv=False)
    assert np.allclose(found["plane"]["shares"], (s**2 / (s**2).sum())[:2])
    points, frame = np.array(found["plane"]["points"]), np.array(found["plane"]["frame"])
    assert np.allclose(np.linalg.norm(points[typical], axis=0), s[:2], rtol=1e-5)
    assert ((frame[:, 0] < points[typical]) & (points[typical] < frame[:, 1])).all()
    names = np.array(found["plane"]["names"])
    assert np.array_equal(names[found["plane"]["labels"]], LABELS[:60])


def test_tables_of_pandas_and_labels_as_objects_will_do(classifier):
    frame, series = pd.DataFrame(X[:60]), pd.Series(LABELS[:60], dtype=object)
    assert report.findings(classifier, (frame, series)) == report.findings(classifier, (X[:60], LABELS[:60]))


def test_sizes_are_bounded(classifier, regressor):
    many = RNG.normal(size=(3000, 4))
    found = report.findings(regressor, (many, many[:, 0]), (many, many[:, 0]))
    assert found["kernel"]["rows"] == 300
    assert len(found["plane"]["points"]) == 500
    assert len(found["residuals"]["test"]["target"]) == 500
    assert found["scores"]["training"]["rows"] == 3000
    assert len(json.dumps(found)) < 200_000


@pytest.mark.parametrize(("n", "most"), [(5, 10), (10, 10), (1000, 300), (301, 300), (0, 3)])
def test_rows_are_taken_evenly(n, most):
    at = evenly(n, most)
    assert len(at) == min(n, most)
    assert len(set(at.tolist())) == len(at)
    if n:
        assert (at[0], at[-1]) == (0, n - 1)


def test_a_network_without_equilibria_says_what_is_missing_and_why(regressor):
    model = eq.GaussianReLU(
        inputs=5, width=24, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        model.W.mul_(30)
    lost = replace(regressor, model=model)
    found = report.findings(lost, (X[:60], NUMBERS[:60]))
    assert {"scores", "plane", "kernel"} <= set(found["missing"])
    assert "equilibrium" in found["missing"]["scores"]
    assert found["contraction"] is None
    assert found["weights"]["effective"]["values"][0] > 1
    json.dumps(found, allow_nan=False)


def test_weights_that_are_not_finite_leave_no_spectrum(regressor):
    model = eq.GaussianReLU(inputs=5, width=24, dtype=torch.float64)
    with torch.no_grad():
        model.W[0, 0] = torch.nan
    found = report.findings(replace(regressor, model=model), (X[:60], NUMBERS[:60]))
    assert {"scores", "plane", "kernel", "weights"} <= set(found["missing"])
    json.dumps(found, allow_nan=False)


def test_a_label_that_was_not_trained_on_is_named(classifier):
    found = report.findings(classifier, (X[:60], LABELS[:60]), (X[60:62], np.array(["no", "never"])))
    assert "row 1 has the label" in found["missing"]["confusion"]
    assert "never" in found["missing"]["confusion"]


def test_constant_targets_have_no_r2(regressor):
    found = report.findings(regressor, (X[:60], np.full(60, 2.0)))
    assert found["scores"]["training"]["r2"] is None


def test_what_is_not_finite_is_null():
    assert strict({"a": [1.0, float("nan")], "b": float("inf"), "c": "x"}) == {
        "a": [1.0, None],
        "b": None,
        "c": "x",
    }
