import numpy as np
import pytest

from equipoise.data import DataError, load, synthetic

DRAWS = [synthetic.sphere, synthetic.orthogonal, synthetic.negated, synthetic.moons, synthetic.spirals]


@pytest.mark.parametrize("draw", DRAWS)
def test_a_seed_decides_everything(draw):
    (X, y), (X2, y2), (X3, _) = draw(n=20, seed=3), draw(n=20, seed=3), draw(n=20, seed=4)
    assert np.array_equal(X, X2)
    assert np.array_equal(y, y2)
    assert not np.array_equal(X, X3)
    assert len(X) == len(y) == 20


@pytest.mark.parametrize("draw", DRAWS)
def test_no_rows_are_refused(draw):
    with pytest.raises(DataError, match=r"n must be at least [12]; got 0"):
        draw(n=0)


@pytest.mark.parametrize("draw", [synthetic.moons, synthetic.spirals])
def test_there_is_a_sample_of_each_class(draw):
    assert draw(n=2)[1].tolist() == [0, 1]
    with pytest.raises(DataError, match="n must be at least 2; got 1"):
        draw(n=1)


@pytest.mark.parametrize("noise", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("draw", [synthetic.negated, synthetic.moons, synthetic.spirals])
def test_noise_that_is_none_is_refused(draw, noise):
    with pytest.raises(DataError, match=f"noise must be a finite number ≥ 0; got {noise}"):
        draw(n=4, noise=noise)


def test_sphere():
    X, y = synthetic.sphere(2000, 5, seed=1)
    assert np.allclose(np.linalg.norm(X, axis=1), np.sqrt(5), atol=1e-12)
    assert np.abs(X.T @ X / 2000 - np.eye(5)).max() < 0.15  # uniform: E x xᵀ = I
    assert abs(X.mean()) < 0.05
    assert y.shape == (2000,)
    assert y.std() == pytest.approx(1, abs=0.06)


def test_orthogonal():
    X, _ = synthetic.orthogonal(7, 12, seed=2)
    assert np.allclose(X @ X.T, 12 * np.eye(7), atol=1e-12)
    with pytest.raises(DataError, match="at most d = 3"):
        synthetic.orthogonal(4, 3)


def test_orthogonal_directions_have_no_preferred_sign():
    first = [synthetic.orthogonal(2, 3, seed=seed)[0][0, 0] for seed in range(200)]
    assert 70 < np.sum(np.array(first) > 0) < 130


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_negated(kind):
    X, y = synthetic.negated(4000, 10, kind, noise=0.1, seed=5)
    assert X.shape == y.shape == (4000, 10)
    assert (y + X).std() == pytest.approx(0.1, rel=0.02)
    assert X.std() == pytest.approx(1 if kind == "normal" else 1 / np.sqrt(3), rel=0.02)
    assert (kind == "uniform") == (np.abs(X).max() <= 1)
    X, y = synthetic.negated(kind=kind, noise=0.0)
    assert X.shape == (1000, 10)
    assert np.array_equal(y, -X)


def test_negated_unknown_kind():
    with pytest.raises(DataError, match="'normal' or 'uniform'; got 'cauchy'"):
        synthetic.negated(kind="cauchy")


def test_moons_and_spirals_lie_on_their_curves():
    X, y = synthetic.moons(50, noise=0.0)
    assert np.allclose(np.linalg.norm(X[y == 0], axis=1), 1)
    assert np.allclose(np.linalg.norm(X[y == 1] - [1, 0.5], axis=1), 1)
    assert (X[y == 0, 1] >= 0).all()
    assert (X[y == 1, 1] <= 0.5).all()
    X, y = synthetic.spirals(50, turns=1.0, noise=0.0)
    r = np.linalg.norm(X, axis=1)
    arm = r[:, None] * np.stack([np.cos(2 * np.pi * r), np.sin(2 * np.pi * r)], axis=1)
    assert np.allclose(X, np.where(y == 0, 1, -1)[:, None] * arm)
    assert np.bincount(y).tolist() == [25, 25]


def test_load():
    data = load("synthetic-sphere")
    X, y = synthetic.sphere(1000, 1000, seed=0)
    assert np.array_equal(data.x_train, X)
    assert np.array_equal(data.y_train, y)
    assert np.array_equal(data.x_test, synthetic.sphere(1000, 1000, seed=1)[0])
    assert data.provenance.source.startswith("equipoise.data.synthetic.sphere(n=1000, d=1000, seed=0")
    assert load("synthetic-moons").classes == ("0", "1")
    assert np.abs(load("synthetic-negated-uniform").x_train).max() <= 1
