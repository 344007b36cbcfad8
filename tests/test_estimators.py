"""The estimators keep scikit-learn's conventions, and their own promises."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.utils.estimator_checks import parametrize_with_checks

from contracts.estimator import EstimatorContract
from equipoise import unroll
from equipoise.data.columns import read_frame
from equipoise.estimators import EquilibriumClassifier, EquilibriumRegressor
from equipoise.train import Callback

EXPECTED_FAILURES: dict[str, str] = {}  # by name of the check, why it cannot pass


@parametrize_with_checks(
    [EquilibriumClassifier(width=32, steps=4), EquilibriumRegressor(width=32, steps=4)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learn_finds_nothing_to_object_to(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        EquilibriumClassifier(),
        EquilibriumRegressor(),
        EquilibriumClassifier("monotone", width=32, steps=4),
        EquilibriumRegressor("scaled-relu", width=32, steps=4),
        EquilibriumRegressor("linear", steps=4),
        EquilibriumClassifier(width=32, steps=4, dtype="float32"),
        EquilibriumClassifier(certified=False, width=16, epochs=20, rate=0.02),
        EquilibriumRegressor(certified=False, width=16, epochs=20, rate=0.02),
    ],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_nor_with_other_settings(estimator, check):
    check(estimator)


class TestEquilibriumClassifier(EstimatorContract):
    estimator = EquilibriumClassifier
    score = 0.9

    def data(self):
        X, y = load_wine(return_X_y=True)
        return X[::2], y[::2], X[1::2], y[1::2]


class TestEquilibriumRegressor(EstimatorContract):
    estimator = EquilibriumRegressor
    score = 0.3

    def data(self):
        X, y = load_diabetes(return_X_y=True)
        return X[:200], y[:200], X[200:], y[200:]


# -- classes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [["no", "yes"], [-1, 1], [False, True], ["é", "<b>"]])
def test_two_classes_of_any_type(labels):
    X, y = load_breast_cancer(return_X_y=True)
    y = np.array(labels)[y]
    fitted = EquilibriumClassifier(width=40, steps=5, random_state=0).fit(X[::2], y[::2])
    assert fitted.classes_.tolist() == sorted(labels)
    assert fitted.score(X[1::2], y[1::2]) > 0.93
    D, P = fitted.decision_function(X), fitted.predict_proba(X)
    assert D.shape == (len(X),)
    assert P.shape == (len(X), 2)
    assert np.array_equal(fitted.classes_[(D > 0).astype(int)], fitted.predict(X))
    assert np.array_equal(D > 0, P[:, 1] > 0.5)
    assert np.allclose(P.sum(axis=1), 1)


def test_the_decision_of_two_classes_is_one_number_for_every_loss():
    X, y = load_breast_cancer(return_X_y=True)
    fitted = EquilibriumClassifier(
        width=16, certified=False, loss="cross_entropy", epochs=1, random_state=0
    ).fit(X[::4], y[::4])
    D = fitted.decision_function(X)
    assert D.shape == (len(X),)
    assert np.array_equal(fitted.classes_[(D > 0).astype(int)], fitted.predict(X))


def test_words_of_object_type_come_back_as_they_were():
    X, y = load_iris(return_X_y=True)
    y = np.array(["a", "b", "c"], dtype=object)[y]
    fitted = EquilibriumClassifier(width=40, steps=5, random_state=0).fit(X, y)
    assert fitted.predict(X).dtype == object
    assert fitted.score(X, y) > 0.9


def test_a_class_without_weight_is_never_predicted_but_has_its_column():
    X, y = load_iris(return_X_y=True)
    made = EquilibriumClassifier(width=40, steps=5, random_state=0)
    fitted = made.fit(X, y, sample_weight=(y != 1).astype(float))
    P, D = fitted.predict_proba(X), fitted.decision_function(X)
    assert P.shape == D.shape == (150, 3)
    assert (P[:, 1] == 0).all()
    assert set(fitted.predict(X)) == {0, 2}
    assert np.array_equal(fitted.classes_[D.argmax(axis=1)], fitted.predict(X))


def test_probabilities_beat_chance_and_certainty():
    X, y = load_breast_cancer(return_X_y=True)
    fitted = EquilibriumClassifier(width=100, random_state=0).fit(X[::2], y[::2])
    P = fitted.predict_proba(X[1::2])[:, 1].clip(1e-6, 1 - 1e-6)
    was = y[1::2]
    surprise = -np.mean(was * np.log(P) + (1 - was) * np.log(1 - P))
    hard = fitted.predict(X[1::2]).clip(1e-6, 1 - 1e-6)
    assert surprise < 0.15 < -np.mean(was * np.log(hard) + (1 - was) * np.log(1 - hard))


def test_continuous_labels_are_refused():
    with pytest.raises(ValueError, match="Unknown label type"):
        EquilibriumClassifier(width=10).fit(np.eye(4), [0.1, 0.2, 0.7, 0.9])


@pytest.mark.parametrize("loss", [None, "square"])
def test_free_training_has_a_certificate_of_one_equilibrium_alone(loss):
    X, y = load_iris(return_X_y=True)
    made = EquilibriumClassifier(certified=False, width=16, epochs=20, rate=0.02, loss=loss, random_state=0)
    fitted = made.fit(X[::2], y[::2])
    assert fitted.certificate_.theorem == "wellposed"
    assert fitted.certificate_.proved
    assert fitted.n_iter_ == 20
    assert fitted.score(X[1::2], y[1::2]) > 0.85
    assert np.allclose(fitted.predict_proba(X).sum(axis=1), 1)


# -- numbers -------------------------------------------------------------------------------------------------


def test_several_targets_at_once():
    X, y = load_diabetes(return_X_y=True)
    both = np.column_stack([y, 1e6 - 1e3 * y])
    made = EquilibriumRegressor(width=60, random_state=0)
    said = made.fit(X[:300], both[:300]).predict(X[300:])
    assert said.shape == (142, 2)
    assert np.allclose(1e6 - 1e3 * said[:, 0], said[:, 1], rtol=1e-6)  # each standardised on its own
    assert made.score(X[300:], both[300:]) > 0.4


def test_units_of_inputs_and_targets_do_not_matter():
    X, y = load_diabetes(return_X_y=True)
    made = EquilibriumRegressor(width=40, steps=5, random_state=0)
    said = made.fit(X[:300], y[:300]).predict(X[300:])
    other = made.fit(2.0**10 * X[:300], 2.0**-10 * y[:300]).predict(2.0**10 * X[300:])
    assert np.allclose(2.0**10 * other, said, rtol=1e-6)


def test_a_certificate_can_be_asked_for_without_slack():
    X, y = load_diabetes(return_X_y=True)
    fitted = EquilibriumRegressor(width=60, slack=0.0, steps=3, random_state=0).fit(X[:30], y[:30])
    assert fitted.certificate_.constants["slack"] == 0
    with pytest.raises(ValueError, match="leave slack out"):
        EquilibriumRegressor(width=20, slack=0.0).fit(X[:30], y[:30])


# -- data frames ---------------------------------------------------------------------------------------------


def homes(rows: int = 60) -> tuple[pd.DataFrame, np.ndarray]:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": np.where(draw.random(rows) < 0.1, np.nan, draw.uniform(20, 90, rows)),
            "city": pd.Categorical(draw.choice(["Rome", "Oslo"], rows)),
            "floor": draw.choice(["low", "high", None], rows),
            "garden": draw.random(rows) < 0.5,
            "sold": pd.to_datetime("2020-01-01") + pd.to_timedelta(draw.integers(0, 700, rows), "D"),
        }
    )
    price = 2 * frame["size"].fillna(50) + 100 * (frame.city == "Rome") + 50 * frame.garden
    return frame, price.to_numpy()


def test_a_frame_of_any_columns_is_fitted_and_answered_by_name():
    frame, price = homes()
    fitted = EquilibriumRegressor(width=40, steps=8, random_state=0).fit(frame, price)
    assert fitted.score(frame, price) > 0.8
    assert fitted.feature_names_in_.tolist() == list(frame.columns)
    assert fitted.n_features_in_ == 5
    said = fitted.predict(frame)
    assert np.array_equal(fitted.predict(frame[list(frame.columns)[::-1]].assign(other=1)), said)
    with pytest.warns(UserWarning, match="feature names"):  # an array has the columns in their order
        assert np.array_equal(fitted.predict(frame.to_numpy()), said)
    assert np.isfinite(fitted.predict(frame.assign(city="Paris", sold=pd.NaT))).all()
    with pytest.raises(ValueError, match=r"column 'size': not a number in row 0 \('big'\)"):
        fitted.predict(frame.assign(size="big"))
    with pytest.raises(ValueError, match=r"Missing: 'garden'"):
        fitted.predict(frame.drop(columns="garden"))
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict(frame), said)


def test_missing_numbers_of_an_array_are_filled_in():
    X, y = load_diabetes(return_X_y=True)
    X, y = X[:80].copy(), y[:80]
    X[::9, 2] = np.nan
    fitted = EquilibriumRegressor(width=40, steps=5, random_state=0).fit(X, y)
    encoding = fitted.fitted_.preparation.encoding
    assert encoding.names[-1] == "x2 is missing"
    assert encoding.treated[2].fill == np.nanmedian(X[:, 2])
    assert np.isfinite(fitted.predict(X)).all()


def test_balanced_classes_are_rows_repeated():
    X, y = load_iris(return_X_y=True)
    X, y = X[50:], y[50:]
    few = np.r_[0:48:4, 50:98]  # 12 of one class, 48 of the other
    options = {"width": 30, "steps": 5, "random_state": 0, "slack": 1e-3}
    fitted = EquilibriumClassifier(class_weight="balanced", **options).fit(X[few], y[few])
    given = EquilibriumClassifier(class_weight={1: 2.5, 2: 0.625}, **options).fit(X[few], y[few])
    weights = np.where(y[few] == 1, 2.5, 0.625)
    weighted = EquilibriumClassifier(**options).fit(X[few], y[few], sample_weight=weights)
    assert np.array_equal(fitted.decision_function(X), weighted.decision_function(X))
    assert np.array_equal(given.decision_function(X), weighted.decision_function(X))
    with pytest.raises(ValueError, match="class_weight is for classes"):
        EquilibriumRegressor(class_weight="balanced").fit(X, y)


@pytest.mark.parametrize("kind", ["numbers", "two classes", "three classes"])
def test_a_network_goes_out_with_its_preparation(kind):
    """One module, such as ONNX holds, answers raw rows as the estimator does."""
    frame, price = homes()
    made = EquilibriumRegressor if kind == "numbers" else EquilibriumClassifier
    y = {"numbers": price, "two classes": price > 150, "three classes": np.digitize(price, [120, 200])}[kind]
    fitted = made(width=40, steps=4, random_state=0).fit(frame, y).fitted_
    unrolled = unroll(fitted.model, error=1e-6, radius=30.0)
    X, _ = read_frame(frame.assign(city="Paris", floor=None), fitted.preparation.encoding.columns)
    found = fitted.preparation.around(unrolled)(torch.from_numpy(X)).detach().numpy()
    expected = fitted.predict(X)[:, None] if kind == "numbers" else fitted.predict_proba(X)
    assert np.allclose(found, expected, rtol=0, atol=1e-6 * max(1.0, float(np.std(price))))


def test_training_is_told_line_by_line_and_to_callbacks(capsys):
    class Second(Callback):
        def epoch(self, record):
            return record["epoch"] == 2

    X = np.random.default_rng(0).normal(size=(40, 3))
    made = EquilibriumRegressor(random_state=0, verbose=True, callbacks=[Second()])
    assert clone(made).verbose is True
    made.fit(X, X[:, 0] * X[:, 1])
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == ["epoch 0", "epoch 1", "epoch 2"]
    assert made.n_iter_ == 2
    assert "Second ended the run" in made.history_.stopped
    with pytest.raises(ValueError, match="callbacks follow training in batches"):
        made.set_params(theorem="safeguarded").fit(X, X[:, 0])
    EquilibriumRegressor(random_state=0, epochs=1).fit(X, X[:, 0] * X[:, 1])
    assert capsys.readouterr().out == ""


def test_a_score_does_not_depend_on_the_rows_beside_it():
    X, y = load_breast_cancer(return_X_y=True)
    made = EquilibriumClassifier(random_state=0, width=48, epochs=8).fit(X, y)
    assert made.fitted_.recipe.dtype == "float32"
    alone = np.concatenate([made.decision_function(X[i : i + 1]) for i in range(30)])
    np.testing.assert_allclose(made.decision_function(X)[:30], alone, rtol=1e-7, atol=1e-7)
