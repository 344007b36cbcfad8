"""Coverage through fit and its files; jackknife+ of estimators; sets that hold when rows are moved."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import betabinom, binom
from sklearn import datasets

import equipoise as eq
from equipoise.tasks import Recipe, fit, load, robust_sets, save
from equipoise.tasks.covered import covered
from equipoise.tasks.keeping import CONFORMAL
from equipoise.tasks.robust_sets import reach


def _classes(N=240, seed=0):
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 3, N)
    return np.eye(3)[y] + draw.normal(scale=0.6, size=(N, 3)), y


@pytest.fixture(scope="module")
def fitted():
    return fit(*_classes(), "classification", Recipe(width=24, steps=4, coverage=0.8))


def test_rows_that_calibrate_train_nothing(fitted):
    """The network is that of the other rows alone: what it is scaled by, its slack and its weights."""
    X, y = _classes()
    kept = np.zeros(len(y), dtype=bool)
    kept[np.random.default_rng(0).permutation(len(y))[:60]] = True
    assert np.array_equal(fitted.kept.X, X[kept])
    alone = fit(X[~kept], y[~kept], "classification", Recipe(width=24, steps=4))
    assert np.array_equal(alone.predict_proba(X), fitted.predict_proba(X))
    own = fitted.predict_proba(X[kept])[np.arange(60), y[kept]]
    assert np.array_equal(fitted.conformal.scores, 1 - own)
    tensors = fitted.training(X, y)
    assert len(tensors[0]) == 180
    assert fitted.certificate.verify(fitted.start(), *tensors).proved


def test_what_is_done_with_columns_is_decided_without_them():
    draw = np.random.default_rng(0)
    X = draw.normal(size=(80, 2))
    kept = np.random.default_rng(0).permutation(80)[:20]
    X[kept, 0] += 1000.0  # which would move the median by which missing values are filled
    X[0, 0] = math.nan
    model = eq.EquilibriumRegressor(width=8, steps=1, random_state=0)
    seed = np.random.RandomState(0).randint(2**31 - 1)
    kept = np.random.default_rng(seed).permutation(80)[:20]
    model.fit(X, X[:, 1], coverage=0.8)
    train = np.delete(X[:, 0], kept)
    treated = model.fitted_.preparation.encoding.treated[0]
    assert treated.fill == np.nanmedian(train)


def test_scores_come_back_and_a_changed_one_is_noticed(fitted, tmp_path):
    save(fitted, tmp_path)
    X = _classes(30, seed=5)[0]
    again = load(tmp_path)
    assert np.array_equal(again.predict_set(X), fitted.predict_set(X))
    with pytest.raises(ValueError, match="the rows that calibrate"):
        again.predict_set(X, epsilon=0.1)
    file = tmp_path / CONFORMAL
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ValueError, match="damaged"):
        load(tmp_path)
    file.unlink()
    with pytest.raises(FileNotFoundError, match="conformal"):
        load(tmp_path)


def test_the_share_that_is_covered_is_likely_under_the_promise(fitted):
    X, y = _classes(600, seed=1)
    found = covered(fitted, fitted.decide(X), y)
    sets = fitted.predict_set(X)
    assert found["covered"] == sets[np.arange(600), y].mean()
    assert found["size"] == sets.sum(axis=1).mean()
    assert 1e-4 < betabinom.cdf(600 * found["covered"], 600, 49, 12) < 1 - 1e-4
    assert found["likely"][0] < 0.8 < found["likely"][1]
    assert sum(row["rows"] for row in found["by class"]) == 600
    shares = [row["rows"] * row["covered"] for row in found["by class"]]
    assert sum(shares) / 600 == pytest.approx(found["covered"])


def test_a_class_that_only_calibrates_makes_no_set_too_small():
    """A row of such a class scores ∞: enough of them, and sets hold every class, the unknown one included."""
    X, y = _classes(40)
    kept = np.random.default_rng(np.random.RandomState(0).randint(2**31 - 1)).permutation(40)[:10]
    y = y.copy()
    y[kept[:3]] = 3
    model = eq.EquilibriumClassifier(width=8, steps=1, random_state=0).fit(X, y, coverage=0.8)
    assert int(np.isinf(model.conformal_.scores).sum()) == 3
    assert model.predict_set(X).all()
    assert model.predict_set(X).shape == (40, 4)


def test_too_few_rows_for_a_coverage_are_refused():
    X, y = _classes(36)
    assert fit(X, y, "classification", Recipe(width=8, steps=1, coverage=0.9)).conformal.scores.size == 9
    with pytest.raises(ValueError, match=r"needs 9 rows or more to calibrate it.*give 33 or more"):
        fit(X[:32], y[:32], "classification", Recipe(width=8, steps=1, coverage=0.9))


def test_jackknife_plus_of_an_estimator_leaves_out_every_row_of_its_second_half():
    draw = np.random.default_rng(3)
    X = draw.normal(size=(60, 2))
    y = np.column_stack([X.sum(axis=1), X[:, 0] ** 2]) + draw.normal(size=(60, 2))
    model = eq.EquilibriumRegressor(width=8, steps=2, random_state=0)
    model.fit(X, y, coverage=0.9, method="jackknife+")
    ends = model.predict_interval(X[:5])
    assert ends.shape == (5, 2, 2)
    kept, prepared = model._jackknife, model.fitted_.preparation
    Z, T = kept.features, kept.targets
    with torch.no_grad():
        new = model.model_.equilibrium(prepared.apply(X[:5])).double().numpy()
    lows, highs = [], []
    for i in range(30):
        others = np.arange(30) != i
        ridge = Z[others].T @ Z[others] + kept.ridge * np.eye(Z.shape[1])
        a = np.linalg.solve(ridge, Z[others].T @ T[others])
        off = np.abs(T[i] - Z[i] @ a)
        lows.append(new @ a - off)
        highs.append(new @ a + off)
    k = math.ceil(31 * 0.9)
    want = np.stack([np.sort(lows, axis=0)[30 - k], np.sort(highs, axis=0)[k - 1]], axis=-1)
    want = want * prepared.target_scale[:, None] + prepared.target_mean[:, None]
    assert np.allclose(ends, want)
    assert kept.promised == pytest.approx(0.8)
    with pytest.raises(ValueError, match="needs a coverage"):
        model.fit(X, y, method="jackknife+")
    with pytest.raises(ValueError, match="method must be one of"):
        model.fit(X, y, coverage=0.9, method="jackknife")


def test_robust_sets_hold_the_set_of_every_row_that_may_have_been_moved(fitted):
    X, _ = _classes(60, seed=7)
    draw, plain = np.random.default_rng(8), fitted.predict_set(X)
    assert np.array_equal(plain, fitted.predict_set(X, epsilon=1e-12))
    for norm, epsilon in (("l2", 0.2), ("linf", 0.1)):
        sizes = []
        for trial in range(20):
            delta = draw.normal(size=X.shape) if trial % 2 else np.sign(draw.normal(size=X.shape))
            size = np.linalg.norm(delta, axis=1, keepdims=True) if norm == "l2" else np.abs(delta).max()
            moved = fitted.predict_set(X + epsilon * delta / size, epsilon=epsilon * (1 + 1e-12), norm=norm)
            assert bool((moved >= plain).all())
            sizes.append(moved.sum(axis=1).mean())
        assert plain.sum(axis=1).mean() < np.mean(sizes) < 3


def test_a_row_whose_error_is_not_bounded_keeps_every_class(fitted, monkeypatch):
    real, calls = robust_sets.certified_outputs, []

    def unbounded(model, X):
        said, error = real(model, X)
        calls.append(len(X))
        return said, error if len(calls) == 1 else torch.where(torch.arange(len(X)) == 1, math.inf, error)

    monkeypatch.setattr(robust_sets, "certified_outputs", unbounded)
    X, _ = _classes(4, seed=7)
    sets = fitted.predict_set(X, epsilon=0.01)
    assert len(calls) == 2  # rows that calibrate, and these
    assert sets[1].all()
    assert not sets[0].all()


def test_robust_intervals_hold_and_are_as_wide_as_the_steepest_direction_asks():
    """A linear network moves by ‖∇ŷ‖ε exactly: less would be false, and more is not needed."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(120, 2)) * [1.0, 5.0]
    y = X @ [1.0, 0.4] + 0.1 * draw.normal(size=120)
    recipe = Recipe(model="linear", steps=6, coverage=0.9)
    found = fit(X, y, "regression", recipe)
    plain, wide = found.predict_interval(X), found.predict_interval(X, epsilon=0.5)
    grown = (np.diff(wide) - np.diff(plain))[:, 0] / 2
    at = torch.tensor(X[:1], requires_grad=True)
    scale = torch.from_numpy(found.preparation.scale)
    inputs = torch.cat([(at - torch.from_numpy(found.preparation.mean)) * scale, torch.ones(1, 1)], dim=1)
    (slope,) = torch.autograd.grad(found.model(inputs.double()).sum(), at)
    slope = slope[0] * found.preparation.target_scale[0]
    steepest = 0.5 * slope / slope.norm()
    low, high = found.predict_interval(X + steepest.numpy(), epsilon=0.5).T
    assert bool((low <= plain[:, 0] + 1e-6).all() and (plain[:, 1] <= high + 1e-6).all())
    assert bool((grown >= 0.5 * float(slope.norm()) - 1e-6).all())
    assert float(grown.max()) < 20 * 0.5 * float(slope.norm())


def test_reach_covers_the_rounding_of_inputs(fitted):
    """Raw rows within ε of each other become inputs within the reach, whatever is rounded on the way."""
    draw = np.random.default_rng(0)
    X = 1e6 + draw.normal(size=(200, 3))
    made = fitted.preparation
    for dtype in (torch.float64, torch.float32):
        prepared = type(made)(
            X.mean(axis=0), 1 / X.std(axis=0), *(getattr(made, n) for n in ("target_mean", "target_scale")),
            made.classes, made.outputs, made.flat, dtype=dtype,
        )  # fmt: skip
        for epsilon in (0.0, 1e-12, 1e-3):
            delta = draw.normal(size=X.shape)
            moved = X + epsilon * delta / np.linalg.norm(delta, axis=1, keepdims=True)
            exact = np.linalg.norm(moved - X, axis=1)
            a, b = prepared.apply(X), prepared.apply(moved)
            apart = (a.double() - b.double()).norm(dim=1).numpy()
            assert bool((apart <= reach(prepared, b, float(exact.max()), "l2")).all())
    with pytest.raises(ValueError, match="epsilon must be a finite number"):
        fitted.predict_set(X, epsilon=-1.0)
    with pytest.raises(ValueError, match="norm must be one of"):
        fitted.predict_set(X, epsilon=1.0, norm="l1")


def test_a_network_that_goes_on_from_another_promises_no_coverage(fitted):
    """It may have been trained on the very rows that would calibrate."""
    X, y = _classes()
    with pytest.raises(ValueError, match="rows that the network never saw"):
        fit(X, y, "classification", Recipe(coverage=0.8, epochs=1), origin=_Anything())


class _Anything:
    def __init__(self):
        self.preparation = type("P", (), {"encoding": None})

    def check(self, *_):
        pass


_SPLIT = {
    "digits": (eq.EquilibriumClassifier, lambda: datasets.load_digits(return_X_y=True)),
    "cancer": (eq.EquilibriumClassifier, lambda: datasets.load_breast_cancer(return_X_y=True)),
    "diabetes": (eq.EquilibriumRegressor, lambda: datasets.load_diabetes(return_X_y=True)),
    "friedman1": (eq.EquilibriumRegressor, lambda: datasets.make_friedman1(1000, noise=1.0, random_state=0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", _SPLIT)
def test_two_hundred_splits_cover_as_often_as_promised(name):
    """One new row of each split is covered with probability ≥ .9: the count is binomial."""
    kind, data = _SPLIT[name]
    X, y = data()
    hits, shares = 0, []
    for seed in range(200):
        order = np.random.default_rng(seed).permutation(len(y))
        rows, new = order[:200], order[200:400]
        model = kind(width=16, steps=2, random_state=seed).fit(X[rows], y[rows], coverage=0.9)
        if kind is eq.EquilibriumClassifier:
            known = {label: i for i, label in enumerate(model.classes_)}
            inside = model.predict_set(X[new])[np.arange(200), [known[label] for label in y[new]]]
        else:
            ends = model.predict_interval(X[new])
            inside = (ends[:, 0] <= y[new]) & (y[new] <= ends[:, 1])
        hits += bool(inside[0])
        shares.append(float(inside.mean()))
    print(f"{name}: {hits} of 200 new rows covered, {np.mean(shares):.4f} of all that were held out")
    n = len(model.conformal_.scores)
    most = math.ceil((n + 1) * 0.9) / (n + 1)  # what is covered where no scores are equal
    assert binom.cdf(hits, 200, 0.9) > 1e-3
    if kind is eq.EquilibriumRegressor:
        assert binom.sf(hits - 1, 200, most) > 1e-3
