"""fit: whatever the data, a proved certificate that its run keeps, or an error that says what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes, load_wine

from equipoise.data import DataError
from equipoise.recipe import FAMILIES
from equipoise.tasks import NotProved, Recipe, fit
from equipoise.theory import fingerprint
from equipoise.train.checkpoint import Checkpoints

AFFINE = [name for name, family in FAMILIES.items() if family.affine]
FLAT = [name for name, family in FAMILIES.items() if not family.images]

SMALL = Recipe(width=40, steps=5)


def small(model: str, **options) -> Recipe:
    return Recipe(model, **({} if model == "linear" else {"width": 40}), steps=5, **options)


def weights_of(fitted) -> list[torch.Tensor]:
    return [p.detach().clone() for p in fitted.model.parameters()]


def same(a, b) -> bool:
    return all(torch.equal(p, q) for p, q in zip(weights_of(a), weights_of(b), strict=True))


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return (
        X[::2],
        np.array(["red", "rosé", "white"])[y[::2]],
        X[1::2],
        np.array(["red", "rosé", "white"])[y[1::2]],
    )


@pytest.mark.parametrize("model", AFFINE)
@pytest.mark.parametrize("kind", ["classes", "two classes", "numbers", "several numbers"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_family_is_certified_and_keeps_its_promise(model, kind, dtype, wine):
    X, y, Xt, yt = wine
    if kind == "two classes":
        y, yt = y == "red", yt == "red"
    if "numbers" in kind:
        X, Xt, y, yt = X[:, 1:], Xt[:, 1:], X[:, 0], Xt[:, 0]
        if kind == "several numbers":
            y, yt = np.column_stack([y, X[:, 0]]), np.column_stack([yt, Xt[:, 0]])
    found = fit(
        X,
        y,
        "regression" if "numbers" in kind else "classification",
        small(model, dtype=dtype),
        test=(Xt, yt),
    )
    assert found.certificate.proved
    assert found.certificate.constants["slack"] == found.recipe.slack > 0
    assert found.wellposed.proved
    assert not found.history.violations()
    assert found.history.loss[-1] < found.history.loss[0]
    assert set(found.history.test_loss) == set(range(6))
    said = found.predict(Xt)
    assert said.shape == yt.shape
    if "numbers" not in kind:
        assert np.mean(said == yt) > (0.9 if model != "linear" else 0.8)
        assert np.array_equal(found.preparation.classes[found.predict_proba(Xt).argmax(axis=1)], said)
        assert found.validation["accuracy"] > 0.8


def test_the_certificate_is_about_the_start_and_the_gathered_rows(wine):
    X, y, *_ = wine
    found = fit(X, y, "classification", SMALL)
    start = found.recipe.build(found.preparation.inputs, found.preparation.outputs)
    A, B = found.training(X, y)
    assert found.certificate.fingerprint == fingerprint(start, A, B)
    found.certificate.verify(start, A, B)
    assert found.wellposed.fingerprint == fingerprint(found.model, A)


def test_the_hidden_layer_learns(wine):
    X, y, *_ = wine
    found = fit(X, y, "classification", Recipe(width=60, theorem="safeguarded"))
    assert found.history.movement[found.recipe.steps] > 0.02
    assert found.history.travelled["W"][found.recipe.steps] > 0


def test_defaults_predict_well():
    X, y = load_diabetes(return_X_y=True)
    found = fit(X[::2], y[::2], "regression", Recipe(width=100, theorem="safeguarded"))
    left = found.predict(X[1::2]) - y[1::2]
    assert 1 - left.var() / y[1::2].var() > 0.35
    assert found.validation["r2"] > 0.3


def test_probabilities_are_honest_on_average(wine):
    X, y, Xt, yt = wine
    found = fit(X, y, "classification", Recipe(width=100, theorem="safeguarded"))
    P = found.predict_proba(Xt)
    own = P[np.arange(len(yt)), np.searchsorted(found.preparation.classes, yt)]
    assert -np.log(own).mean() < 0.2  # chance is log 3 = 1.1
    assert abs(P.max(axis=1).mean() - np.mean(found.predict(Xt) == yt)) < 0.1


# -- weights, order and repetition ---------------------------------------------------------------------------


@pytest.mark.parametrize("model", AFFINE)
def test_weights_are_repetitions_to_the_last_bit(model):
    rng = np.random.default_rng(0)
    X, y, weights = rng.normal(size=(20, 3)), rng.integers(0, 3, 20), rng.integers(0, 4, 20)
    at = rng.permutation(np.repeat(np.arange(20), weights))
    a = fit(X, y, "classification", small(model), sample_weight=weights)
    b = fit(X[at], y[at], "classification", small(model))
    assert same(a, b)
    assert a.preparation.sharpness == b.preparation.sharpness
    if model != "monotone":  # whose unweighted fit takes twenty seconds, in vain at the rounding of its solve
        assert not same(a, fit(X, y, "classification", small(model)))


def test_weights_move_the_answer_as_least_squares_does():
    X = np.array([[0.0], [0.0], [1.0]])
    y = np.array([0.0, 3.0, 1.0])
    for w in (1.0, 9.0, 99.0):
        found = fit(X, y, "regression", Recipe(width=50, slack=1e-8, eta=1.0), sample_weight=[1.0, w, 1.0])
        assert found.predict([[0.0]])[0] == pytest.approx(3 * w / (1 + w), rel=1e-3)


# -- few rows, hard rows -------------------------------------------------------------------------------------

HARD = {
    "one row": ([[1.0, 2.0]], [3.0]),
    "two rows": ([[1.0], [2.0]], [0.0, 1.0]),
    "the same row, two answers": ([[1.0, 1.0]] * 2, [0.0, 1.0]),
    "all rows the same": ([[1.0, 1.0]] * 5, [2.0] * 5),
    "a constant target": (np.arange(8.0)[:, None], np.full(8, 0.1)),
    "huge numbers": (1e100 * np.arange(8.0)[:, None], 1e100 * np.arange(8.0)),
    "tiny numbers": (1e-100 * np.arange(8.0)[:, None], 1e-100 * np.arange(8.0)),
    "one outlier": (np.array([0.0] * 7 + [1e9])[:, None], np.arange(8.0)),
}


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("model", AFFINE)
def test_hard_data_are_certified(name, model):
    X, y = map(np.array, HARD[name])
    found = fit(X, y, "regression", small(model))
    assert found.certificate.proved
    assert not found.history.violations()
    assert np.isfinite(found.predict(X)).all()
    if len(set(y)) == 1:
        assert np.allclose(found.predict(X), y, rtol=1e-6)


@given(st.integers(0, 2**31), st.integers(2, 12), st.integers(1, 3), st.integers(1, 8))
@settings(max_examples=15)
def test_any_small_data_are_certified(seed, N, d, width):
    rng = np.random.default_rng(seed)
    X = rng.integers(-2, 3, size=(N, d)) * 10.0 ** rng.integers(-5, 6)
    y = rng.choice(["a", "b", "c"], N)
    y[:2] = ["a", "b"]
    found = fit(X, y, "classification", Recipe(width=width, steps=3, seed=seed))
    assert found.certificate.proved
    assert not found.history.violations()
    P = found.predict_proba(X)
    assert np.isfinite(P).all()
    assert np.allclose(P.sum(axis=1), 1)


def test_more_rows_than_units_without_slack_cannot_be_proved_and_the_error_says_what_can():
    rng = np.random.default_rng(0)
    with pytest.raises(
        NotProved, match=r"(?s)proved certificate.*s > 0.*leave slack out.*certified=False"
    ) as error:
        fit(rng.normal(size=(30, 3)), rng.normal(size=30), "regression", Recipe(width=10, slack=0.0))
    assert error.value.certificate.verdict == "hypotheses_fail"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": [0.0, 1.0]}, r"same number of rows. Got 3 and 2"),
        ({"sample_weight": [1.0, 2.0]}, r"sample_weight must be \(3,\)"),
        ({"sample_weight": [1.0, -2.0, 1.0]}, r"Got -2.0 in row 1"),
        ({"sample_weight": [0.0, 0.0, 0.0]}, r"at least one row of weight > 0"),
        ({"X": np.zeros((0, 2)), "y": []}, r"at least one row"),
        ({"X": [[1.0], [np.nan], [2.0]]}, r"row 1, column 0"),
        ({"kind": "class"}, r"kind must be 'classification' or 'regression'"),
        ({"kind": "classification", "y": ["a", "a", "a"]}, r"two classes"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(change, message):
    given = {"X": [[1.0], [2.0], [3.0]], "y": [1.0, 2.0, 4.0], "kind": "regression", "recipe": SMALL} | change
    with pytest.raises((ValueError, DataError), match=message):
        fit(**given)


# -- along the way -------------------------------------------------------------------------------------------


def test_test_rows_decide_nothing(wine):
    X, y, Xt, yt = wine
    assert same(fit(X, y, "classification", SMALL), fit(X, y, "classification", SMALL, test=(Xt, yt)))


def test_seeds_decide(wine):
    X, y, *_ = wine
    assert same(fit(X, y, "classification", SMALL), fit(X, y, "classification", SMALL))
    assert not same(
        fit(X, y, "classification", SMALL), fit(X, y, "classification", Recipe(width=40, steps=5, seed=1))
    )


def test_what_was_recorded_is_what_the_history_says(wine):
    X, y, Xt, yt = wine
    lines, seen = [], []
    record, progress = lines.append, lambda k, loss: seen.append(loss)
    found = fit(X, y, "classification", SMALL, test=(Xt, yt), record=record, progress=progress)
    assert [line["loss"] for line in lines] == seen == found.history.loss.tolist()
    assert lines[-1]["test_accuracy"] == np.mean(found.predict(Xt) == yt)


class Broken(Exception):
    pass


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_run_that_was_broken_off_ends_where_a_whole_one_does(tmp_path, wine, stop):
    X, y, *_ = wine
    whole = fit(X, y, "classification", SMALL)

    def break_off(line):
        if line["step"] == stop:
            raise Broken

    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(Broken):
        fit(X, y, "classification", SMALL, checkpoints=checkpoints, every=1, record=break_off)
    resumed = fit(X, y, "classification", SMALL, checkpoints=checkpoints, every=1)
    assert same(whole, resumed)
    assert np.array_equal(whole.history.loss, resumed.history.loss)
    assert whole.recipe == resumed.recipe
    assert whole.preparation.sharpness == resumed.preparation.sharpness


def test_many_rows_are_predicted_in_parts(wine, monkeypatch):
    X, y, *_ = wine
    found = fit(X, y, "classification", SMALL)
    whole = found.decide(X)
    monkeypatch.setattr("equipoise.tasks.fitted.BATCH", 7)
    assert torch.allclose(found.decide(X), whole, rtol=1e-6, atol=1e-8)
    assert found.predict(X[:0]).shape == (0,)
    assert found.predict_proba(X[:0]).shape == (0, 3)


# -- free training -------------------------------------------------------------------------------------------


def free(model: str = "auto", **options) -> Recipe:
    size = {} if model == "linear" else {"width": 30}
    return Recipe(model, certified=False, **{**size, "epochs": 15, "rate": 0.02, "batch_size": 30, **options})


CASES = [(model, None) for model in FLAT]
CASES += [("gaussian-relu", loss) for loss in ("square", "hinge", "logistic", "cross_entropy")]


@pytest.mark.parametrize(("model", "loss"), CASES)
@pytest.mark.parametrize("classes", [2, 3])
def test_free_training_of_classes(model, loss, classes, wine):
    X, y, Xt, yt = wine
    if classes == 2:
        y, yt = y == "red", yt == "red"
    faster = {"rate": 0.1} if model == "linear" else {}  # whose output is small for a small readout
    found = fit(X, y, "classification", free(model, loss=loss, **faster), test=(Xt, yt))
    assert found.certificate is None
    assert found.wellposed.proved
    assert found.recipe.loss == (loss or ("logistic" if classes == 2 else "cross_entropy"))
    assert found.history.steps == 15
    assert np.mean(found.predict(Xt) == yt) > 0.8
    assert found.history.test_accuracy[15] == pytest.approx(np.mean(found.predict(Xt) == yt))
    P = found.predict_proba(Xt)
    assert np.array_equal(found.preparation.classes[P.argmax(axis=1)], found.predict(Xt))
    own = P[np.arange(len(yt)), np.searchsorted(found.preparation.classes, yt)]
    assert -np.log(own).mean() < 0.7 * np.log(classes)


@pytest.mark.parametrize("model", AFFINE)
def test_free_training_of_numbers(model, wine):
    X, _, Xt, _ = wine
    found = fit(X[:, 2:], X[:, :2], "regression", free(model), test=(Xt[:, 2:], Xt[:, :2]))
    said = found.predict(Xt[:, 2:])
    assert said.shape == (len(Xt), 2)
    left, spread = ((said - Xt[:, :2]) / X[:, :2].std(axis=0)) ** 2, (Xt - Xt.mean(axis=0))[:, :2]
    r2 = 1 - left.sum() / ((spread / X[:, :2].std(axis=0)) ** 2).sum()
    assert found.history.test_r2[15] == pytest.approx(r2, rel=1e-4, abs=1e-5)
    one = fit(X[:, 1:], X[:, 0], "regression", free(model))
    assert one.history.loss[15] < 0.8 * one.history.loss[0]
    assert one.predict(X[:, 1:]).shape == (len(X),)


def test_patience_holds_rows_out_of_every_class(wine):
    X, y, *_ = wine
    found = fit(X, y, "classification", free(patience=2, epochs=60, rate=0.05))
    assert found.validation["rows"] == sum(np.sum(y == c) // 5 for c in np.unique(y))
    assert "no better loss for 2 epochs" in found.stopped
    assert found.advice == ""
    with pytest.raises(DataError, match="leave patience out"):
        fit(X[:4], [0, 1, 0, 1], "classification", free(patience=2))


def test_rows_held_out_decide_nothing_but_when_to_stop(wine):
    """Not even the units of the columns: the mean of those trained on is exactly that of 4/5 of the rows."""
    X, y = wine[0][:20], np.arange(20) % 2
    recipe = free(patience=50, epochs=1, width=5)
    found = fit(X, y, "classification", recipe)
    trained = np.ones(20, dtype=bool)
    for i in range(20):  # a row far out moves the mean, if it is trained on
        moved = X.copy()
        moved[i] += 1e3
        trained[i] = bool(
            (fit(moved, y, "classification", recipe).preparation.mean != found.preparation.mean).any()
        )
    assert (~trained).sum() == found.validation["rows"] == 4
    np.testing.assert_allclose(found.preparation.mean, X[trained].mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(1 / found.preparation.scale, X[trained].std(axis=0), rtol=1e-9)


def test_rows_of_weight_nothing_are_neither_trained_on_nor_held_out(wine):
    X, y, *_ = wine
    weights = np.zeros(len(X))
    weights[::2] = 1.0
    recipe = free(patience=50, epochs=3)
    some, half = (
        fit(X, y, "classification", recipe, sample_weight=weights),
        fit(X[::2], y[::2], "classification", recipe),
    )
    assert some.validation["rows"] == half.validation["rows"]
    np.testing.assert_array_equal(some.preparation.mean, half.preparation.mean)
    np.testing.assert_array_equal(some.history.test_loss[3], half.history.test_loss[3])


def test_weights_count_in_free_training():
    X, y = np.array([[0.0], [0.0], [1.0]]), np.array([0.0, 3.0, 1.0])
    for w in (1.0, 9.0):
        recipe = free(epochs=80, rate=0.02, batch_size=3)
        found = fit(X, y, "regression", recipe, sample_weight=[1.0, w, 1.0])
        assert found.predict([[0.0]])[0] == pytest.approx(3 * w / (1 + w), abs=0.1)


def test_a_run_that_diverges_says_so_and_keeps_its_last_good_weights(wine):
    X, y, *_ = wine
    found = fit(X, y, "classification", free(optimiser="sgd", rate=1e6, loss="square"))
    assert "step" in found.stopped
    assert "smaller rate" in found.advice
    assert np.isfinite(found.predict_proba(X)).all()


def test_free_training_broken_off_ends_where_a_whole_run_does(tmp_path, wine):
    X, y, *_ = wine
    recipe = free(epochs=5)
    whole = fit(X, y, "classification", recipe)

    def break_off(line):
        if line["epoch"] == 3:
            raise Broken

    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(Broken):
        fit(X, y, "classification", recipe, checkpoints=checkpoints, every=1, record=break_off)
    resumed = fit(X, y, "classification", recipe, checkpoints=checkpoints, every=1)
    assert same(whole, resumed)
    assert np.array_equal(whole.history.loss, resumed.history.loss)
