"""The promise of conformal sets, by exact binomial tests; leave-one-out in closed form against refitting."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import betabinom, binom, binomtest
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, is_classifier
from sklearn.linear_model import Ridge
from sklearn.model_selection import LeaveOneOut

import equipoise as eq
from equipoise.tasks.conformal import Conformal, jackknife_plus, threshold


def test_the_threshold_is_an_order_statistic_of_the_coverage_as_it_is_written():
    scores = np.arange(1.0, 10.0)  # n = 9
    assert threshold(scores, 0.9) == 9.0  # ⌈10 · 9/10⌉, which the float next to 0.9 would miss
    assert threshold(scores, 0.5) == 5.0
    assert threshold(scores, 0.91) == math.inf
    assert threshold(scores[:0], 0.5) == math.inf
    with pytest.raises(ValueError, match="coverage must lie"):
        threshold(scores, 1.0)
    with pytest.raises(ValueError, match="without NaN"):
        threshold(np.array([np.nan]), 0.5)


@pytest.mark.parametrize(("n", "coverage"), [(9, 0.9), (19, 0.8), (50, 0.9)])
def test_split_conformal_covers_as_often_as_it_promises(n, coverage):
    """Scores without ties: covered with probability k/(n + 1) exactly, whatever their distribution is."""
    draw = np.random.default_rng(0)
    trials = 4000
    covered = 0
    for _ in range(trials):
        y, said = draw.standard_cauchy(n + 1), draw.normal(size=n + 1)
        ends = Conformal.of_numbers(said[:n], y[:n]).intervals(said[n:], coverage)[0]
        covered += bool(ends[0] <= y[n] <= ends[1])
    k = math.ceil(round((n + 1) * coverage, 9))
    assert k / (n + 1) >= coverage
    assert binomtest(covered, trials, k / (n + 1)).pvalue > 1e-4


def test_sets_of_classes_cover_and_grow_with_what_a_perturbation_may_do():
    draw = np.random.default_rng(1)
    n, trials, covered = 40, 2000, 0
    for _ in range(trials):
        p = draw.dirichlet([0.4] * 4, size=n + 1)
        labels = np.array([draw.choice(4, p=row) for row in p])
        found = Conformal.of_classes(p[:n], labels[:n])
        plain, robust = (found.sets(p[n:], 0.9, change) for change in (0.0, 0.1))
        covered += bool(plain[0, labels[n]])
        assert bool((plain <= robust).all())
    assert binom.cdf(covered, trials, 0.9) > 1e-4
    with pytest.raises(ValueError, match="change must be"):
        found.sets(p, 0.9, -1.0)


def test_a_robust_set_covers_the_row_however_it_is_moved():
    draw = np.random.default_rng(2)
    n, trials, covered = 30, 1000, 0
    for _ in range(trials):
        p = draw.dirichlet([1.0] * 3, size=n + 1)
        labels = np.array([draw.choice(3, p=row) for row in p])
        moved = p[n:] - 0.05 * np.eye(3)[labels[n:]]  # the worst that a change of 0.05 does
        covered += bool(Conformal.of_classes(p[:n], labels[:n]).sets(moved, 0.8, 0.05 + 1e-12)[0, labels[n]])
    assert binom.cdf(covered, trials, 0.8) > 1e-4


def test_jackknife_plus_is_what_refitting_without_each_row_gives():
    draw = np.random.default_rng(3)
    Z, y, new = draw.normal(size=(12, 4)), draw.normal(size=12), draw.normal(size=(5, 4))
    found = jackknife_plus(Z, y, new, ridge=0.7, coverage=0.8)
    lows, highs = [], []
    for i in range(12):
        keep = np.arange(12) != i
        a = np.linalg.solve(Z[keep].T @ Z[keep] + 0.7 * np.eye(4), Z[keep].T @ y[keep])
        r = abs(y[i] - Z[i] @ a)
        lows.append(new @ a - r)
        highs.append(new @ a + r)
    k = math.ceil(13 * 0.8)
    want = np.stack([np.sort(lows, axis=0)[12 - k], np.sort(highs, axis=0)[k - 1]], axis=1)
    assert np.allclose(found, want)
    assert np.isinf(jackknife_plus(Z, y, new, ridge=0.7, coverage=0.95)).all()
    with pytest.raises(ValueError, match="ridge must be > 0"):
        jackknife_plus(Z, y, new, ridge=0.0, coverage=0.8)


def test_jackknife_plus_covers_at_least_as_often_as_it_promises():
    draw, covered, trials = np.random.default_rng(4), 0, 1500
    for _ in range(trials):
        Z, noise = draw.normal(size=(21, 3)), draw.standard_t(2, size=21)
        y = Z.sum(axis=1) + noise
        low, high = jackknife_plus(Z[:20], y[:20], Z[20:], ridge=1.0, coverage=0.9)[0]
        covered += bool(low <= y[20] <= high)
    assert binom.cdf(covered, trials, 2 * 0.9 - 1) > 1e-4


def test_estimators_keep_rows_for_the_coverage_they_are_asked_for():
    draw = np.random.default_rng(6)
    X = draw.normal(size=(400, 3))
    y = X.sum(axis=1) + draw.standard_t(3, size=400)
    model = eq.EquilibriumRegressor(width=12, steps=2, random_state=0).fit(X[:120], y[:120], coverage=0.8)
    assert model.conformal_.scores.shape == (30,)
    ends = model.predict_interval(X[120:])
    covered = int(((ends[:, 0] <= y[120:]) & (y[120:] <= ends[:, 1])).sum())
    # Given the calibration rows, coverage is Beta(25, 6): the sum over 280 rows is beta-binomial.
    assert 1e-4 < betabinom.cdf(covered, 280, 25, 6) < 1 - 1e-4
    label = (y > 0).astype(int)
    classes = eq.EquilibriumClassifier(width=12, steps=2, random_state=0).fit(
        X[:120], label[:120], coverage=0.8
    )
    inside = classes.predict_set(X[120:])[np.arange(280), label[120:]]
    assert 1e-4 < betabinom.cdf(int(inside.sum()), 280, 25, 6) < 1 - 1e-4
    with pytest.raises(ValueError, match=r"fit\(X, y, coverage=0.9\)"):
        eq.EquilibriumRegressor(width=12, steps=2).fit(X[:40], y[:40]).predict_interval(X)
    with pytest.raises(ValueError, match="coverage must"):
        model.fit(X[:40], y[:40], coverage=90)


class Given(BaseEstimator):
    """What MAPIE asks of a fitted model: rows that are the predictions themselves."""

    classes_ = np.arange(3)

    def fit(self, X, y):
        return self

    def predict(self, X):
        return X.argmax(axis=1) if is_classifier(self) else X[:, 0]

    def predict_proba(self, X):
        return X

    def __sklearn_is_fitted__(self):
        return True


class GivenClasses(ClassifierMixin, Given):
    pass


class GivenNumbers(RegressorMixin, Given):
    pass


@pytest.mark.slow
def test_sets_and_intervals_are_those_of_mapie():
    """Where MAPIE can be imported."""
    classification = pytest.importorskip("mapie.classification")
    regression = pytest.importorskip("mapie.regression")
    draw = np.random.default_rng(5)
    for n in (29, 50, 99):
        p, new = draw.dirichlet([1.0] * 3, size=n), draw.dirichlet([1.0] * 3, size=40)
        labels = np.array([draw.choice(3, p=row) for row in p])
        how = {"confidence_level": 0.9, "prefit": True}
        theirs = classification.SplitConformalClassifier(GivenClasses(), conformity_score="lac", **how)
        sets = theirs.conformalize(p, labels).predict_set(new)[1][:, :, 0]
        assert np.array_equal(sets, Conformal.of_classes(p, labels).sets(new, 0.9))
        x, y = draw.normal(size=(n, 1)), draw.normal(size=n)
        ends = regression.SplitConformalRegressor(GivenNumbers(), **how).conformalize(x, y)
        assert np.allclose(
            ends.predict_interval(x)[1][:, :, 0], Conformal.of_numbers(x[:, 0], y).intervals(x[:, 0], 0.9)
        )
    Z, y, new = draw.normal(size=(30, 3)), draw.normal(size=30), draw.normal(size=(6, 3))
    each = regression.CrossConformalRegressor(
        Ridge(alpha=0.7, fit_intercept=False), confidence_level=0.9, cv=LeaveOneOut(), method="plus"
    )
    ends = each.fit_conformalize(Z, y).predict_interval(new)[1][:, :, 0]
    assert np.allclose(ends, jackknife_plus(Z, y, new, ridge=0.7, coverage=0.9))


def test_a_row_whose_score_ties_with_the_threshold_is_covered():
    """On a grid of tenths scores tie, and ŷ ± r in floating point may miss the very rows that r is of."""
    grid = np.round(np.arange(30) * 0.1, 1)
    for said in grid:
        for y in grid:
            found = Conformal.of_numbers(np.full(9, said), np.full(9, y))
            ((low, high),) = found.intervals(np.array([said]), 0.9)
            assert low <= y <= high <= said + abs(y - said) + 1e-15 * (1 + said)


def test_a_row_that_cannot_be_left_out_says_nothing():
    """Without a ridge that counts, a feature that one row alone has is 0/0 where it is left out."""
    Z = 1e10 * np.eye(4)
    with np.errstate(all="ignore"):
        ends = jackknife_plus(Z, np.arange(4.0), Z, ridge=1e-300, coverage=0.75)
    assert not np.isnan(ends).any()


def test_a_robust_set_covers_rows_that_tie_whatever_was_rounded():
    """All rows are one row, whose share falls by no more than `change`: one in ten was left out."""
    draw = np.random.default_rng(3)
    for p, part in draw.random((500, 2)) * draw.random((500, 1)):
        change = part * p
        found = Conformal.of_classes(np.tile([[p, 1 - p]], (5, 1)), np.zeros(5, dtype=int))
        least = float(Fraction(p) - Fraction(change))
        least = least if Fraction(least) >= Fraction(p) - Fraction(change) else np.nextafter(least, 1.0)
        for dtype in (np.float64, np.float32):  # whose scores must not be rounded to its own digits
            moved = dtype(least) if float(dtype(least)) >= least else np.nextafter(dtype(least), dtype(1))
            assert found.sets(np.array([[moved, 1 - moved]], dtype=dtype), 0.8, change)[0, 0]


def test_leave_one_out_is_right_where_rows_are_nearly_interpolated():
    """1 − h is of the size of λ/s² there, 10⁻¹², and was a difference of ones."""
    draw = np.random.default_rng(4)
    Z, y, new = 1e3 * draw.normal(size=(6, 8)), draw.normal(size=6), draw.normal(size=(3, 8))
    Q = np.linalg.inv(Z @ Z.T + 1e-6 * np.eye(6))  # r_i/(1 − h_i) = (Q y)_i/Q_ii, and a = Zᵀ Q y
    left_out = Q @ y / np.diag(Q)
    said = (new @ Z.T @ Q @ y)[:, None] - (new @ Z.T @ Q) * left_out
    ends = np.sort(said - np.abs(left_out))[:, ::-1][:, 3], np.sort(said + np.abs(left_out))[:, 3]
    got = jackknife_plus(Z, y, new, ridge=1e-6, coverage=0.5)
    np.testing.assert_allclose(got, np.stack(ends, axis=1), rtol=1e-9)


def test_a_share_that_is_no_number_rules_out_no_class():
    found = Conformal.of_classes(np.full((9, 2), 0.5), np.zeros(9, dtype=int))
    assert found.sets(np.array([[np.nan, 0.1]]), 0.5).tolist() == [[True, False]]


@pytest.mark.parametrize("targets", [1, 2])
def test_an_interval_grows_by_what_a_perturbation_may_do(targets):
    draw = np.random.default_rng(5)
    said, y = draw.normal(size=(2, 30, targets)).squeeze()
    plain, robust = (Conformal.of_numbers(said, y).intervals(said, 0.8, change) for change in (0.0, 0.25))
    np.testing.assert_allclose(robust - plain, np.broadcast_to([-0.25, 0.25], robust.shape), rtol=1e-12)
    with pytest.raises(ValueError, match="change must be"):
        Conformal.of_numbers(said, y).intervals(said, 0.8, -1.0)


def test_a_prediction_that_is_no_number_rules_out_no_number():
    found = Conformal.of_numbers(np.arange(20.0), np.arange(20.0) + 0.1)
    ends = found.intervals([math.nan, math.inf, 1.0], 0.9)
    assert ends[0].tolist() == [-math.inf, math.inf]
    assert ends[1][1] == math.inf
    assert 0.8 < ends[2][0] < ends[2][1] < 1.2
