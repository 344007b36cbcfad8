"""Surveys of a fitted network without a command: on random directions, to another network, along its path."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from equipoise.explore import (
    Unrepeated,
    measured,
    repeated_path,
    survey_around,
    survey_between,
    survey_path,
)
from equipoise.tasks import Recipe, fit

X = np.random.default_rng(0).normal(size=(16, 3))
Y = X[:, 0] - X[:, 1]


@pytest.fixture(scope="module")
def fitted():
    recipe = Recipe(width=20, steps=3)
    return fit(X, Y, "regression", recipe), recipe


def test_the_loss_at_the_middle_of_a_survey_is_that_of_the_network(fitted):
    network, _ = fitted
    loss = measured(network, X, Y, "regression", most=9)
    assert (len(loss.X), loss.of) == (9, 16)
    expected = loss(network.model(loss.X), loss.y).item()
    for line, shape in ((True, (3,)), (False, (3, 3))):
        found = survey_around(network.model, loss, 3, radius=0.05, line=line, seed=1)
        assert found.slice.loss.shape == shape
        assert found.slice.loss[shape[0] // 2 if line else (1, 1)] == pytest.approx(expected, rel=1e-6)
        assert found.centre.loss == pytest.approx(expected, rel=1e-6)
        assert found.share_below_twice == found.slice.share_below(2 * found.centre.loss)
        assert found.sharpness.value > 0
        assert "path" not in found.to_dict()


@pytest.mark.parametrize("line", [True, False])
def test_a_slice_is_chosen_so_that_most_of_it_has_a_loss(fitted, line):
    """At the rim of the networks that are well-posed a step of the filters' own size leads out of them."""
    network, _ = fitted
    loss = measured(network, X, Y, "regression", most=9)
    model = copy.deepcopy(network.model)
    with torch.no_grad():
        model.W.mul_(0.99 / torch.linalg.matrix_norm(model.W, 2))
    far = survey_around(model, loss, 5, radius=1.0, line=line).slice
    near = survey_around(model, loss, 5, line=line).slice
    assert far.masked.mean() > 0.3 > near.masked.mean()
    assert near.s[-1] in 2.0 ** np.arange(-10, 0)
    inside = copy.deepcopy(network.model)
    with torch.no_grad():
        inside.W.mul_(0.01)
    assert survey_around(inside, loss, 3, line=line).slice.s[-1] == 1.0


def test_the_path_of_a_training_ends_at_the_network_and_the_line_at_both(fitted):
    network, recipe = fitted
    loss = measured(network, X, Y, "regression", most=16)
    path = repeated_path(network, X, Y, "regression", recipe)
    assert (list(path.weights), path.departure) == ([0, 1, 2, 3], 0.0)
    along = survey_path(network.model, path, loss, 3)
    assert along.to_dict()["path"]["unit"] == "step"
    assert along.way.coordinates[-1].tolist() == [0, 0]
    start = fit(X, Y, "regression", Recipe(width=20, steps=1)).model
    line = survey_between(network.model, start, loss, 2).slice
    assert line.s.tolist() == [-0.5, 0, 0.5, 1, 1.5]
    for at, model in ((0.0, network.model), (1.0, start)):
        here = line.loss[line.s.tolist().index(at)]
        assert here == pytest.approx(loss(model(loss.X), loss.y).item(), rel=1e-6)


def test_a_training_that_leads_elsewhere_is_no_path_of_the_network(fitted):
    network, _ = fitted
    with pytest.raises(Unrepeated, match="the weights have a relative difference of") as error:
        repeated_path(network, X, Y, "regression", Recipe(width=20, steps=3, seed=1))
    assert error.value.departure > 1e-6
