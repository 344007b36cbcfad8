"""The promise of conformal sets, by exact binomial tests; leave-one-out in closed form against refitting."""

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest

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


@pytest.mark.slow
def test_thresholds_and_sets_are_those_of_mapie():
    conformity = pytest.importorskip("mapie.conformity_scores")
    draw = np.random.default_rng(5)
    for n in (9, 30, 99):
        p = draw.dirichlet([1.0] * 3, size=n)
        labels = np.array([draw.choice(3, p=row) for row in p])
        scores = conformity.LACConformityScore().get_conformity_scores(labels, p, y_enc=labels)[:, 0]
        ours = Conformal.of_classes(p, labels)
        assert np.allclose(scores, ours.scores)
        theirs = np.sort(scores)[math.ceil((n + 1) * 0.9) - 1] if math.ceil((n + 1) * 0.9) <= n else np.inf
        assert np.isclose(threshold(ours.scores, 0.9), theirs)
