"""fit for answers that hold near every input: the units of ε, and that what is told as proved is."""

import json
from fractions import Fraction

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.tasks import Recipe, fit
from equipoise.tasks.raw import Rows
from equipoise.tasks.robust import Perturbation


def _table(N=120, seed=0):
    draw = np.random.default_rng(seed)
    y = np.arange(N) % 3
    return (np.eye(3)[y] * 4 + draw.normal(size=(N, 3))) * [1.0, 10.0, 0.1], y


def test_a_recipe_for_robust_answers_is_free_and_of_a_family_whose_margins_are_known():
    recipe = Recipe(robust=0.2)
    assert (recipe.path, recipe.family) == ("free", "monotone")
    assert recipe.resolved(100, "classification", 2).loss == "cross_entropy"
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    for wrong, words in (
        ({"robust": -1.0}, "robust must be"),
        ({"robust": 0.1, "model": "opteq"}, "robust training needs a monotone or gaussian-relu"),
        ({"robust": 0.1, "loss": "hinge"}, "network and cross_entropy"),
        ({"norm": "linf"}, "give robust too"),
        ({"robust": 0.1, "norm": "l1"}, "norm must be one of"),
        ({"robust": 0.1, "theorem": "anchored"}, "theorem must not be given"),
    ):
        with pytest.raises(ValueError, match=words):
            Recipe(**wrong)
    X, _ = _table()
    with pytest.raises(ValueError, match="robust training is for classes"):
        fit(X, X[:, 0], "regression", Recipe(robust=0.1))


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_rows_told_as_proved_keep_their_answer_wherever_they_are_moved(norm):
    X, y = _table()
    found = fit(X, y, "classification", Recipe(robust=0.3, norm=norm, width=12, epochs=12, seed=1))
    assert found.certificate is None
    told = found.perturbation.proved(found, X, y)
    assert told["epsilon"] == 0.3
    assert 0.3 < told["proved"] <= told["right"] <= 1
    g, inputs = torch.Generator().manual_seed(0), found.preparation.apply(X)
    kept = torch.ones(len(X), dtype=torch.bool)
    for _ in range(30):
        delta = torch.randn(len(X), 3, generator=g)
        delta = delta / delta.norm(dim=1, keepdim=True) if norm == "l2" else delta.sign()
        moved = inputs.clone()
        moved[:, :3] += 0.3 * delta
        kept &= found.model(moved).argmax(dim=1) == torch.from_numpy(y)
    assert told["proved"] <= float(kept.double().mean())


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_a_row_of_a_class_that_was_never_seen_is_not_told_as_proved(norm):
    X, y = _table()
    found = fit(X, y, "classification", Recipe(robust=0.3, norm=norm, width=12, epochs=12, seed=1))
    assert found.perturbation.proved(found, X, y)["proved"] > 0.3
    for strange in (y - 0.5, np.full(len(y), 7)):
        told = found.perturbation.proved(found, X, strange)
        assert told["right"] == told["proved"] == 0


def test_boxes_of_tables_hold_every_number_within_epsilon():
    X, y = _table(30)
    found = fit(X, y, "classification", Recipe(robust=1e-3, norm="linf", width=6, epochs=1))
    inputs = found.preparation.apply(X)
    low, high = found.perturbation._box(found.preparation, X, inputs)
    far = Fraction(found.perturbation.far)
    for at, least, most in zip(inputs.flatten().tolist(), low.flatten(), high.flatten(), strict=True):
        moved = 0 if least == most else far
        assert Fraction(float(least)) <= Fraction(at) - moved
        assert Fraction(at) + moved <= Fraction(float(most))
    assert torch.equal(low[:, -1], high[:, -1])  # the constant input stays


def test_images_are_moved_by_shares_of_their_brightest_pixel_and_stay_within_their_range():
    draw = np.random.default_rng(0)
    y = np.arange(60) % 2
    X = (draw.integers(0, 100, (60, 3, 3)) + 155 * (y[:, None, None] * np.eye(3))).clip(0, 255)
    recipe = Recipe(robust=0.1, norm="linf", width=8, epochs=4)
    moved = Perturbation.of(recipe, Rows.of(X, y, "classification"))
    assert (moved.low, moved.high) == (0.0, X.max())
    assert moved.far == pytest.approx(0.1 * X.max())
    found = fit(X, y, "classification", recipe)
    inputs = found.preparation.apply(X)
    low, high = moved._box(found.preparation, X.reshape(60, 9).astype(float), inputs)
    assert bool((low <= inputs).all() and (inputs <= high).all())
    assert bool((low[:, -1] == 1).all() and (high[:, -1] == 1).all())
    pixel = found.preparation.apply(np.full((1, 9), X.max() / 10))[0, 0]
    width = float(pixel - found.preparation.apply(np.zeros((1, 9)))[0, 0])
    assert float((high - low).max()) == pytest.approx(2 * width, rel=1e-5)
    ends = (found.preparation.apply(np.full((1, 9), end))[0, 0] for end in (0.0, X.max()))
    assert [float(low[:, :-1].min()), float(high[:, :-1].max())] == [float(end) for end in ends]


def test_the_estimators_take_it_and_a_model_keeps_it_in_its_files(tmp_path):
    X, y = _table()
    model = eq.EquilibriumClassifier(robust=0.2, width=8, epochs=3, random_state=0).fit(X, y)
    told = model.fitted_.perturbation.proved(model.fitted_, X, y)
    assert json.loads(json.dumps(told)) == told
    assert type(model.model_).__name__ == "Monotone"
