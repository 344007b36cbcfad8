"""EquilibriumRegressor and EquilibriumClassifier: `tasks.fit` by the conventions of scikit-learn."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from .checks import one_of
from .data.columns import Column, is_frame, read_frame
from .data.encoding import Encoding
from .history import History
from .models.base import EquilibriumModel
from .recipe import Kind, Recipe
from .tasks.conformal import Conformal, threshold
from .tasks.fitted import Fitted
from .tasks.fitting import fit
from .tasks.jackknife import Jackknife
from .tasks.origin import Origin
from .theory import Certificate
from .train.callbacks import Callback

Array = NDArray[Any]


_OPTIONS = [f for f in dataclasses.fields(Recipe) if f.name != "seed"]
_WATCHED = {"verbose": False, "callbacks": ()}
_DEFAULTS = {**{f.name: f.default for f in _OPTIONS}, "random_state": None, **_WATCHED}
_SIGNATURE = {  # the fields of a Recipe, with scikit-learn's random_state in place of its seed
    name: inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD if name == "model" else inspect.Parameter.KEYWORD_ONLY,
        default=default,
    )
    for name, default in _DEFAULTS.items()
}
_DESCRIBED = "\n".join(f"    {f.name} : {f.type}\n        {f.metadata['words']}" for f in _OPTIONS)


class _EquilibriumEstimator(BaseEstimator):
    """What both estimators share: their parameters, and the attributes after `fit`."""

    certificate_: Certificate
    fitted_: Fitted
    n_features_in_: int
    class_weight: str | dict[Any, float] | None
    verbose: bool | int
    callbacks: Sequence[Callback]
    conformal_: Conformal  # the scores of the rows that calibrate, where a coverage was asked for
    coverage: float | None
    _columns: tuple[Column, ...]
    _names: list[str] | None  # the columns of a data frame
    _image: tuple[int, ...]  # the shape of a row that is an image

    def __init__(self, model: str = "auto", **options: Any) -> None:
        for name, parameter in _SIGNATURE.items():
            setattr(self, name, options.pop(name, model if name == "model" else parameter.default))
        if options:
            raise TypeError(f"{type(self).__name__} takes {', '.join(_SIGNATURE)}. Got {', '.join(options)}.")

    __init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *_SIGNATURE.values()]
    )

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _recipe(self) -> Recipe:
        given = {name: _plain(value) for name, value in self.get_params(deep=False).items()}
        if isinstance(given["class_weight"], dict):  # `fit` multiplies the weights of the rows by it
            del given["class_weight"]
        for name in _WATCHED:
            del given[name]
        seed = int(check_random_state(given.pop("random_state")).randint(2**31 - 1))
        return Recipe(**given, seed=seed)

    def _checked(self, X: Any, y: Any, **how: Any) -> tuple[Array, Array]:
        """X as a matrix, and y. A data frame is read by the types of its columns, which are kept."""
        rows, self._columns = read_frame(X) if is_frame(X) else (X, ())
        rows, self._image = _flat(rows)
        rows, y = validate_data(
            self, rows, y, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=2, **how
        )
        self._names = None
        if is_frame(X):
            _check_feature_names(self, X, reset=True)
            self._names = [str(name) for name in X.columns]
        elif np.isnan(rows).any():
            self._columns = tuple(Column(f"x{j}") for j in range(rows.shape[1]))
        return rows, y

    def _train(self, X: Array, y: Array, kind: Kind, sample_weight: Any, coverage: float | None) -> None:
        weights, used = None, X
        if sample_weight is not None:
            weights = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True, allow_all_zero_weights=False
            )
            used = X[weights > 0]
        encoding = Encoding.of(used, self._columns) if self._columns else None
        recipe = dataclasses.replace(self._recipe(), coverage=coverage)
        self._fit(X, y, kind, recipe, sample_weight=weights, encoding=encoding)

    def _fit(self, X: Array, y: Array, kind: Kind, recipe: Recipe, **how: Any) -> None:
        rows = X.reshape(len(X), *self._image) if self._image else X
        watched: Any = {"callbacks": tuple(self.callbacks), "record": _told if self.verbose else None}
        self.fitted_ = fit(rows, y, kind, recipe, **how, **watched)
        if self.fitted_.conformal is not None:
            self.conformal_ = self.fitted_.conformal
        self.certificate_ = self.fitted_.certificate or self.fitted_.wellposed

    def fine_tune(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the fitted network further on new rows, whose columns and classes are those of `fit`.

        The rows are prepared as those of `fit` were. If training is certified, the objective on the new rows
        is proved to end no larger than that of the network as it is now with its best readout of them. The
        rate is a fifth of that of `fit` unless one is given.
        """
        rows = self._rows(X)
        origin = Origin(self.fitted_.model, self.fitted_.preparation)
        recipe = origin.continued(self._recipe(), self.fitted_.recipe)
        kind: Kind = "regression" if origin.preparation.classes is None else "classification"
        self._fit(rows, self._coded(y), kind, recipe, sample_weight=sample_weight, origin=origin)
        return self

    def _coded(self, y: Any) -> Array:
        """New targets, coded as `fit` codes them."""
        return np.asarray(y)

    def _rows(self, X: Any) -> Array:
        check_is_fitted(self)
        if self._names is not None and is_frame(X):
            return read_frame(X, self._columns)[0]
        if self._names is not None:
            X = np.asarray(X)
            validate_data(self, np.zeros(X.shape), reset=False)  # to check the numbers of rows and columns
            return read_frame(X, self._columns, self._names)[0]
        finite = "allow-nan" if self._columns else True
        X, image = _flat(X)
        if image and self._image and image != self._image:
            raise ValueError(f"images must be {self._image}, as in training. Got {image} instead.")
        return validate_data(self, X, dtype=np.float64, ensure_all_finite=finite, reset=False)

    @property
    def model_(self) -> EquilibriumModel:
        """The trained network; its inputs are `fitted_.preparation.apply(X)`."""
        return self.fitted_.model

    @property
    def history_(self) -> History:
        """What was measured at each step, next to what was promised."""
        return self.fitted_.history

    @property
    def n_iter_(self) -> int:
        """Steps, or epochs, taken."""
        return self.fitted_.history.steps


_PARAMETERS = f"""
    Parameters
    ----------
{_DESCRIBED}
    random_state : int, RandomState or None
        Seed of the weights at the start and of the batches.
    verbose : bool or int
        Whether to print a line after every epoch, or after every step of safeguarded training.
    callbacks : sequence of equipoise.train.Callback
        They are called at every step and epoch of training in batches, and any of them may end it.

    Attributes
    ----------
    certificate_ : Certificate
        What is proved. For certified training it is the promise about the training, as it was proved before
        the first step; otherwise that the trained network has exactly one equilibrium for every input.
    model_ : EquilibriumModel
        The trained network.
    history_ : History
        What was measured at each step, beside what was promised.
    fitted_ : Fitted
        All of these, with the preparation of the data and the choices that were made.
    n_features_in_, feature_names_in_, n_iter_
        As everywhere in scikit-learn.

    A data frame may hold numbers, words, dates, true and false, and missing values; it is read by the names
    of its columns, in any order. An array may hold numbers and NaN, which stands for a missing value; or
    images, (n, height, width) or (n, channels, height, width), which a model of images needs.

    A sample weight multiplies the loss of its row, and the certificate is about the weighted loss: a row of
    weight 2 is the same as two rows."""


class EquilibriumRegressor(MultiOutputMixin, RegressorMixin, _EquilibriumEstimator):
    __doc__ = f"""Regression by an equilibrium network, ŷ = a·z with z = relu(W z + U x), and a certificate.

    Inputs and targets are standardised inside the estimator. Several targets are fitted at once.
{_PARAMETERS}
    """

    _jackknife: Jackknife | None = None

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        coverage: float | None = None,
        method: str = "split",
    ) -> Self:
        """Train on rows X (n, d) and numbers y, (n,) or (n, k).

        With a coverage c, given here or to the estimator, a quarter of the rows is not trained on, and
        `predict_interval` covers a new row with probability ≥ c. With method "jackknife+" the network is
        trained on half of the rows. Intervals then come from ridge regression of the other half on its
        features, each row left out in turn: they are often shorter, but only 2c − 1 is proved of them.
        """
        one_of("method", method, ("split", "jackknife+"))
        X, y = self._checked(X, y, multi_output=True, y_numeric=True)
        coverage = self.coverage if coverage is None else coverage
        if method == "split":
            self._jackknife = None
            self._train(X, y, "regression", sample_weight, coverage)
            return self
        if coverage is None:
            raise ValueError(
                "method='jackknife+' needs a coverage: fit(X, y, coverage=0.9, method='jackknife+')."
            )
        order = np.random.default_rng(self._recipe().seed).permutation(len(X))
        first, second = order[: len(X) // 2], order[len(X) // 2 :]
        weight = None if sample_weight is None else np.asarray(sample_weight)[first]
        self._train(X[first], y[first], "regression", weight, None)
        halves = (X[first], y[first]), (X[second], y[second])
        self._jackknife = Jackknife.of(self.fitted_, *halves, coverage)
        return self

    def predict_interval(self, X: Any, epsilon: float = 0.0, norm: str = "l2") -> Array:
        """(n, 2), or (n, k, 2): an interval that holds a new y with the probability asked for in `fit`.

        The probability is an average over rows like those of `fit`, and is that of each target by itself.
        With ε > 0 it holds even if X was moved from such rows by up to ε in the norm "l2" or "linf" of their
        columns. With jackknife+ it is 2c − 1, and the intervals belong to a readout of their own, so that
        the answer of `predict` may lie outside.
        """
        rows = self._rows(X)
        if self._jackknife is None:
            return self.fitted_.predict_interval(rows, epsilon, norm)
        if epsilon != 0:
            raise ValueError("robust intervals need method='split'. Got epsilon with method='jackknife+'.")
        return self._jackknife.intervals(self.fitted_, rows)

    def predict(self, X: Any) -> Array:
        """Numbers, (n,) or (n, k) as y was."""
        rows = self._rows(X)
        return self.fitted_.predict(rows)


class EquilibriumClassifier(ClassifierMixin, _EquilibriumEstimator):
    __doc__ = f"""Classification by an equilibrium network, z = relu(W z + U x), and a certificate.

    By default the loss is the cross entropy. `theorem="safeguarded"` trains by least squares on ±1, or on
    indicators of more than two classes.
{_PARAMETERS}
    classes_ : array
        The labels, sorted.
    """

    classes_: Array

    def fit(self, X: Any, y: Any, sample_weight: Any = None, coverage: float | None = None) -> Self:
        """Train on rows X (n, d) and labels y (n,); with a coverage on three quarters of them.

        A coverage may also be a parameter of the estimator.
        """
        X, y = self._checked(X, y)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if isinstance(self.class_weight, dict):
            sample_weight = compute_sample_weight(self.class_weight, y) * (
                1.0 if sample_weight is None else np.asarray(sample_weight)
            )
        coverage = self.coverage if coverage is None else coverage
        self._train(X, codes, "classification", sample_weight, coverage)
        return self

    def _coded(self, y: Any) -> Array:
        y = column_or_1d(y, warn=True)
        if len(strange := np.setdiff1d(y, self.classes_[self._seen])):
            raise ValueError(
                f"labels must be among those of fit ({', '.join(map(str, self.classes_[:10]))}). Got "
                f"{strange[0]!s} instead."
            )
        return np.searchsorted(self.classes_, y)

    def predict(self, X: Any) -> Array:
        """Labels, (n,)."""
        rows = self._rows(X)
        return self.classes_[self.fitted_.predict(rows)]

    def predict_proba(self, X: Any) -> Array:
        """softmax(s·ŷ), (n, classes), where s is fitted on held-out rows: see `Fitted.predict_proba`."""
        rows = self._rows(X)
        return self._of_all(self.fitted_.predict_proba(rows), 0.0)

    def predict_set(self, X: Any, epsilon: float = 0.0, norm: str = "l2") -> Array:
        """(n, classes): which classes each row's set holds: the right one as often as the coverage says.

        The promise is an average over rows like those of `fit`. With ε > 0 it holds even if X was moved from
        such rows by up to ε in the norm "l2" or "linf" of their columns.
        """
        rows = self._rows(X)
        sets = self.fitted_.predict_set(rows, epsilon, norm)
        # A class that no row was trained on has score ∞: it is in the sets if their threshold is ∞ as well.
        unbounded = threshold(self.conformal_.scores, self.fitted_.recipe.coverage or 0.5) == np.inf
        return self._of_all(sets, unbounded)

    def _of_all(self, found: Array, else_: float | bool) -> Array:
        """What was found of the classes trained on, as columns of all classes."""
        whole = np.full((len(found), len(self.classes_)), else_, dtype=found.dtype)
        whole[:, self._seen] = found
        return whole

    def decision_function(self, X: Any) -> Array:
        """The network's outputs: (n,) for two classes, positive for the second; else (n, classes)."""
        rows = self._rows(X)
        outputs = self.fitted_.decide(rows).double().numpy()
        if len(self.classes_) == 2:
            return outputs if outputs.ndim == 1 else outputs[:, 1] - outputs[:, 0]
        found = np.full((len(rows), len(self.classes_)), -np.inf)
        found[:, self._seen] = outputs if outputs.ndim == 2 else np.column_stack([-outputs, outputs])
        return found

    @property
    def _seen(self) -> Array:
        """The classes with a row of weight > 0, as places in `classes_`."""
        seen = self.fitted_.preparation.classes
        assert seen is not None
        return seen


def _flat(X: Any) -> tuple[Any, tuple[int, ...]]:
    """Images as rows of numbers, and the shape of each; any other X as it is."""
    shape = np.asarray(X).shape if isinstance(X, list) else getattr(X, "shape", ())
    if len(shape) < 3 or shape[0] == 0:
        return X, ()
    X = np.asarray(X)
    return X.reshape(len(X), -1), X.shape[1:]


def _told(record: dict[str, Any]) -> None:
    """Print what was measured at an epoch or a step, on one line."""
    unit = "epoch" if "epoch" in record else "step"
    print(f"{unit} {record[unit]}: loss {record['loss']:.4g}, {record['seconds']:.1f} s", flush=True)


def _plain(value: Any) -> Any:
    """A number of numpy's, such as a grid search hands over, as Python's own."""
    return value.item() if isinstance(value, np.generic) else value
