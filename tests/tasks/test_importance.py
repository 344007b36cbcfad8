"""What shuffling a column costs, of networks whose answers are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from equipoise.recipe import Recipe
from equipoise.tasks.fitted import Fitted
from equipoise.tasks.fitting import fit
from equipoise.tasks.importance import PATCHES, _patches, importance

RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 4))
LABELS = np.where(X[:, 1] > 0, "yes", "no")


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return fit(X, LABELS, "classification", Recipe(width=16, epochs=6))


def test_the_column_that_decides_costs_most_and_the_same_every_time(fitted):
    found = importance(fitted, X, LABELS)
    drops = np.array(found["drops"])
    assert drops.argmax() == 1
    assert drops[1] > 0.3
    assert np.abs(drops[[0, 2, 3]]).max() < 0.1
    assert found["before"] == np.mean(fitted.predict(X) == LABELS)
    assert found == importance(fitted, X, LABELS)
    assert found["drops"] != importance(fitted, X, LABELS, seed=1)["drops"]


def test_a_shuffled_column_is_the_column_in_another_order(fitted, monkeypatch):
    """Every row asked about holds the other columns as they were, and the shuffled one permuted."""
    asked = []
    decide = Fitted.decide
    monkeypatch.setattr(Fitted, "decide", lambda self, rows: (asked.append(rows), decide(self, rows))[1])
    importance(fitted, X, LABELS)
    tables = np.concatenate(asked[1:]).reshape(-1, *X.shape)
    for k, table in enumerate(tables):
        j = k % 4
        others = [c for c in range(4) if c != j]
        assert np.array_equal(table[:, others], X[:, others])
        assert np.array_equal(np.sort(table[:, j]), np.sort(X[:, j]))
        assert not np.array_equal(table[:, j], X[:, j])


def test_numbers_lose_r2_and_frames_will_do():
    y = 3 * X[:, 2] + 1
    fitted = fit(X, y, "regression", Recipe(width=16, epochs=10))
    found = importance(fitted, pd.DataFrame(X), pd.Series(y))
    assert int(np.argmax(found["drops"])) == 2
    assert len(found["spread"]) == 4
    with pytest.raises(ValueError, match="do not vary"):
        importance(fitted, X, np.ones(150))


def test_too_many_columns_are_refused_in_words(fitted):
    with pytest.raises(ValueError, match=r"at most 500 columns are shuffled, one by one. The data have 501"):
        importance(fitted, np.ones((3, 501)), LABELS[:3])


@pytest.mark.parametrize("shape", [(8, 8), (28, 28), (32, 32, 3), (5, 9), (30, 17), (1, 40)])
def test_patches_cover_an_image_once(shape):
    groups, grid = _patches(shape)
    assert len(groups) == grid[0] * grid[1]
    assert max(grid) <= PATCHES
    assert sorted(np.concatenate(groups).tolist()) == list(range(np.prod(shape)))
    picture = torch.zeros(shape)
    picture.view(-1)[groups[0]] = 1
    filled = picture.reshape(shape[0], shape[1], -1).amax(dim=2).nonzero()
    assert picture.sum() == filled.amax(dim=0).add(1).prod() * (shape[2] if len(shape) == 3 else 1)
