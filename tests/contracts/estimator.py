"""The suite every estimator must pass beside scikit-learn's. A new one joins by naming its class and data:

class TestEquilibriumRegressor(EstimatorContract):
    estimator = EquilibriumRegressor
    def data(self): ...
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

import equipoise as eq


class EstimatorContract:
    estimator: type[Any]
    quick: dict[str, Any] = {"width": 40, "steps": 5}  # noqa: RUF012
    score: float  # on the rows not trained on, at least

    def data(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """X, y, and X, y not trained on."""
        raise NotImplementedError

    def made(self, **options: Any) -> Any:
        return self.estimator(**{**self.quick, "random_state": 0, **options})

    def test_it_scores_on_rows_it_was_not_trained_on(self):
        X, y, Xt, yt = self.data()
        assert self.made().fit(X, y).score(Xt, yt) >= self.score

    def test_its_certificate_is_proved_and_kept(self):
        X, y, *_ = self.data()
        fitted = self.made().fit(X, y)
        assert isinstance(fitted.certificate_, eq.Certificate)
        assert fitted.certificate_.proved
        assert fitted.certificate_.theorem == "safeguarded"
        assert fitted.fitted_.wellposed.proved
        assert not fitted.history_.violations()
        assert fitted.n_iter_ == fitted.history_.steps == 5
        assert fitted.model_.inputs == fitted.n_features_in_ + 1

    def test_nothing_is_there_before_fit(self):
        X, *_ = self.data()
        new = self.made()
        with pytest.raises(NotFittedError):
            new.predict(X)
        for name in ("certificate_", "model_", "history_", "fitted_", "n_iter_"):
            assert not hasattr(new, name)

    def test_a_seed_decides_and_none_does_not(self):
        X, y, *_ = self.data()
        first = self.made(random_state=3).fit(X, y)
        for same in (3, np.int64(3), np.random.RandomState(3)):
            assert self.equal(self.made(random_state=same).fit(X, y), first)
        assert not self.equal(self.made(random_state=4).fit(X, y), first)
        assert not self.equal(self.made(random_state=None).fit(X, y), self.made(random_state=None).fit(X, y))
        state = np.random.RandomState(0)
        assert not self.equal(
            self.made(random_state=state).fit(X, y), self.made(random_state=state).fit(X, y)
        )

    @staticmethod
    def equal(a: Any, b: Any) -> bool:
        return all(
            torch.equal(p, q) for p, q in zip(a.model_.parameters(), b.model_.parameters(), strict=True)
        )

    def test_it_survives_cloning_and_pickling(self):
        X, y, Xt, _ = self.data()
        fitted = self.made().fit(X, y)
        copy = clone(fitted)
        assert copy.get_params() == fitted.get_params()
        assert not hasattr(copy, "fitted_")
        assert self.equal(copy.fit(X, y), fitted)
        again = pickle.loads(pickle.dumps(fitted))
        assert np.array_equal(again.predict(Xt), fitted.predict(Xt))
        assert again.certificate_ == fitted.certificate_

    def test_it_serves_in_pipelines_and_grid_searches(self):
        X, y, *_ = self.data()
        search = GridSearchCV(
            make_pipeline(MinMaxScaler(), self.made()),
            {f"{self.estimator.__name__.lower()}__width": np.array([10, 40])},
            cv=2,
        ).fit(X, y)
        assert search.best_score_ > 0
        assert len(cross_val_score(self.made(width=10), X, y, cv=2)) == 2

    def test_it_knows_the_names_of_columns(self):
        X, y, *_ = self.data()
        frame = pd.DataFrame(X, columns=[f"c{j}" for j in range(X.shape[1])])
        fitted = self.made().fit(frame, pd.Series(y))
        assert fitted.feature_names_in_.tolist() == frame.columns.tolist()
        assert np.array_equal(fitted.predict(frame), self.made().fit(X, y).predict(X))
        assert np.array_equal(fitted.predict(frame[frame.columns[::-1]]), fitted.predict(frame))  # by name
        with pytest.raises(ValueError, match="Missing: 'c0'"):
            fitted.predict(frame.rename(columns={"c0": "d0"}))

    def test_weights_are_repetitions(self):
        X, y, *_ = self.data()
        weights = np.random.default_rng(0).integers(0, 3, len(X))
        at = np.repeat(np.arange(len(X)), weights)
        assert self.equal(self.made().fit(X, y, sample_weight=weights), self.made().fit(X[at], y[at]))

    def test_float32_weights(self):
        X, y, Xt, yt = self.data()
        fitted = self.made(dtype="float32").fit(X, y)
        assert fitted.model_.readout_weight.dtype == torch.float32
        assert fitted.certificate_.proved
        assert fitted.score(Xt, yt) >= self.score - 0.05

    @pytest.mark.parametrize("options", [{"width": 0}, {"model": "forest"}, {"rate": 0.1}, {"slack": -1.0}])
    def test_bad_parameters_are_refused_in_fit_and_not_before(self, options):
        X, y, *_ = self.data()
        made = self.made(**options)
        with pytest.raises(ValueError, match=next(iter(options))):
            made.fit(X, y)
