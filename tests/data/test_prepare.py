import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data import DataError, Dataset, Provenance, load, prepare

RNG = np.random.default_rng(0)


def toy(train=(30, 40, 5), test=(20, 10, 5)):
    """Every image holds its own number, so that samples can be recognised."""
    y_train, y_test = (np.repeat(np.arange(len(counts)), counts) for counts in (train, test))
    x = np.arange(len(y_train) + len(y_test)).reshape(-1, 1, 1)
    n = len(y_train)
    return Dataset("toy", x[:n], y_train, x[n:], y_test, ("a", "b", "c"), Provenance("", (), "", ""))


def test_two_classes():
    data = toy()
    drawn = prepare.two_classes(data, (1, 0), per_class=20, seed=3, test_per_class=10)
    assert drawn.classes == ("b", "a")
    assert np.bincount(drawn.y_train).tolist() == [20, 20]
    assert np.bincount(drawn.y_test).tolist() == [10, 10]
    truth = np.concatenate([data.y_train, data.y_test])
    assert np.array_equal(truth[drawn.x_train.ravel()], np.where(drawn.y_train == 0, 1, 0))
    assert np.array_equal(truth[drawn.x_test.ravel()], np.where(drawn.y_test == 0, 1, 0))
    assert (drawn.x_test >= 75).all()  # all from the test part
    assert len(np.unique(drawn.x_train)) == 40
    assert "seed 3" in drawn.provenance.subset
    assert 0 < drawn.y_train[:20].sum() < 20  # mixed, not sorted by class
    again = prepare.two_classes(data, (1, 0), per_class=20, seed=3, test_per_class=10)
    other = prepare.two_classes(data, (1, 0), per_class=20, seed=4, test_per_class=10)
    assert np.array_equal(drawn.x_train, again.x_train)
    assert not np.array_equal(drawn.x_train, other.x_train)


def test_two_classes_borrows_unseen_training_samples_and_says_so():
    drawn = prepare.two_classes(toy(), per_class=20, seed=0, test_per_class=15)
    assert not set(drawn.x_train.ravel()) & set(drawn.x_test.ravel())
    assert len(np.unique(drawn.x_test)) == 30
    assert (drawn.x_test < 75).sum() == 5
    assert np.bincount(drawn.y_test).tolist() == [15, 15]
    assert "5 unseen samples of class 1 taken from the training part" in drawn.provenance.subset


@settings(max_examples=50)
@given(st.integers(1, 30), st.integers(0, 40), st.integers(0, 99))
def test_two_classes_never_shows_a_test_sample_in_training(per_class, test_per_class, seed):
    try:
        drawn = prepare.two_classes(toy(), (0, 1), per_class, seed, test_per_class)
    except DataError:
        assert per_class + max(0, test_per_class - 20) > 30 or per_class + max(0, test_per_class - 10) > 40
        return
    rows = np.concatenate([drawn.x_train, drawn.x_test]).ravel()
    assert len(np.unique(rows)) == 2 * (per_class + test_per_class)


def test_two_classes_refuses():
    with pytest.raises(DataError, match="5 training and 5 test samples of class 2; 20 for training and 1"):
        prepare.two_classes(toy(), (1, 2), per_class=20, test_per_class=1)
    for strange in (3, 7, -1):
        with pytest.raises(DataError, match=rf"labels of toy, 0 … 2; got \(1, {strange}\)"):
            prepare.two_classes(toy(), (1, strange), per_class=1, test_per_class=1)
    with pytest.raises(DataError, match="two different labels"):
        prepare.two_classes(toy(), (1, 1))
    with pytest.raises(DataError, match="got 0, 1"):
        prepare.two_classes(toy(), per_class=0, test_per_class=1)
    with pytest.raises(DataError, match="a regression"):
        prepare.two_classes(load("synthetic-negated"))
    with pytest.raises(DataError, match=r"digits has \d+ training"):
        prepare.two_classes(load("digits"))


def test_subsample():
    drawn = prepare.subsample(toy(), 10, 7, seed=1)
    assert (len(drawn.x_train), len(drawn.x_test)) == (10, 7)
    truth = np.concatenate([toy().y_train, toy().y_test])
    assert np.array_equal(truth[drawn.x_train.ravel()], drawn.y_train)
    assert np.array_equal(truth[drawn.x_test.ravel()], drawn.y_test)
    assert (drawn.x_train < 75).all()
    twice = prepare.subsample(drawn, 3, 2)
    assert "3 training and 2 test samples, seed 0; drawn from a 10 training" in twice.provenance.subset
    with pytest.raises(DataError, match="35 test samples; 36 were asked for"):
        prepare.subsample(toy(), 10, 36)


def test_grey():
    image = np.zeros((1, 1, 4, 3), np.uint8)
    image[0, 0] = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]
    assert prepare.grey(image).ravel() == pytest.approx([0.299 * 255, 0.587 * 255, 0.114 * 255, 255])
    plain = RNG.integers(0, 256, (2, 3, 4), dtype=np.uint8)
    assert np.array_equal(prepare.grey(plain), plain)
    with pytest.raises(DataError, match="N × H × W × 3"):
        prepare.grey(np.zeros((2, 3, 4, 4)))


def test_resize():
    constant = np.full((2, 32, 32), 7, np.uint8)
    assert prepare.resize(constant, 28) == pytest.approx(np.full((2, 28, 28), 7.0))
    images = RNG.random((2, 28, 28))
    assert prepare.resize(images, 28) == pytest.approx(images, abs=1e-12)
    ramp = np.broadcast_to(np.arange(32.0), (1, 32, 32))
    small = prepare.resize(ramp, 16)  # linear stays linear; the centre of pixel j is j + ½
    assert small[0, 0, 2:-2] == pytest.approx(2 * np.arange(16)[2:-2] + 0.5)
    stripes = np.broadcast_to(np.arange(64) % 4 == 0, (1, 64, 64))  # shrinking must not step over pixels
    assert prepare.resize(stripes, 16)[0, 2:-2, 2:-2] == pytest.approx(np.full((12, 12), 0.25))
    colour = RNG.random((2, 32, 32, 3))
    assert prepare.resize(colour, 28)[..., 1] == pytest.approx(prepare.resize(colour[..., 1], 28))
    for bad, size in ((np.zeros((3, 3)), 28), (images, 0)):
        with pytest.raises(DataError):
            prepare.resize(bad, size)


def test_flatten():
    images = RNG.integers(0, 256, (3, 2, 2, 3), dtype=np.uint8)
    X = prepare.flatten(images)
    assert X.shape == (3, 12)
    assert X.dtype == np.float64
    assert np.array_equal(X.reshape(images.shape), images)


def test_unit_norm():
    X = RNG.standard_normal((5, 9))
    unit = prepare.unit_norm(X)
    assert np.linalg.norm(unit, axis=1) == pytest.approx(np.ones(5), abs=1e-14)
    assert unit == pytest.approx(X / np.linalg.norm(X, axis=1, keepdims=True))
    assert np.linalg.norm(prepare.unit_norm(X, "sqrt_d"), axis=1) == pytest.approx(3 * np.ones(5))
    extreme = np.array([[1e-300, 1e-300], [1e300, 1e300]])
    assert prepare.unit_norm(extreme) == pytest.approx(np.full((2, 2), 0.5**0.5))
    X[[1, 3]] = 0
    with pytest.raises(DataError, match=r"row 1 is zero and has no direction.*row 3"):
        prepare.unit_norm(X)
    X[1, 2] = np.nan
    with pytest.raises(DataError, match="row 1 holds NaN or infinity"):
        prepare.unit_norm(X)
    for norm in ("sqrt", 0.0, -1.0, np.inf, np.nan):
        with pytest.raises(DataError, match="norm must be a positive number or 'sqrt_d'"):
            prepare.unit_norm(np.eye(2), norm)
    with pytest.raises(DataError, match="flatten"):
        prepare.unit_norm(np.ones((2, 3, 3)))


def test_random_projection():
    X = RNG.standard_normal((4, 784))
    P = prepare.random_projection(X, 150, seed=7)
    R = np.random.default_rng(7).standard_normal((150, 784)) / np.sqrt(150)
    assert pytest.approx(X @ R.T) == P
    assert prepare.random_projection(X[2:], 150, seed=7) == pytest.approx(P[2:])  # one R for train and test
    basis = prepare.random_projection(np.eye(784), 150, seed=7)  # rows are the columns of R
    assert basis.std() * np.sqrt(150) == pytest.approx(1, abs=0.01)
    assert np.linalg.norm(basis, axis=1).mean() == pytest.approx(1, abs=0.01)


def test_teacher_targets():
    """The closed form is the fixed point that iteration reaches."""
    X, gamma = RNG.standard_normal((6, 15)), 0.8
    y = prepare.teacher_targets(X, gamma, seed=11)
    rng = np.random.default_rng(11)
    A, B = rng.standard_normal((15, 15)), rng.standard_normal((1, 15))
    S = np.exp(A) / np.exp(A).sum(axis=0)
    z = np.zeros(15)
    for _ in range(300):
        z = gamma * S @ z + X[4]
    noise = rng.standard_normal((6, 1))
    assert y.shape == (6, 1)
    assert y[4, 0] == pytest.approx(B[0] @ z + noise[4, 0], abs=1e-10)
    assert not np.array_equal(y, prepare.teacher_targets(X, gamma, seed=12))
    for bad in (0.0, 1.0, -0.5):
        with pytest.raises(DataError, match=r"gamma must lie in \(0, 1\)"):
            prepare.teacher_targets(X, bad)


def test_targets():
    y = np.array([0, 1, 1, 0])
    assert prepare.zero_one(y).tolist() == [0, 1, 1, 0]
    assert prepare.zero_one(np.array([3, 8]), (8, 3)).tolist() == [1, 0]
    assert prepare.one_hot(np.array([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert prepare.zero_one(y).dtype == np.float64
    with pytest.raises(DataError, match=r"row 2 has a label outside \[0, 1\]"):
        prepare.zero_one(np.array([0, 1, 2]))
    with pytest.raises(DataError, match="row 1 has a label outside"):
        prepare.one_hot(np.array([0, -1]), 2)
    with pytest.raises(DataError, match="row 0 has a label outside"):
        prepare.one_hot(np.array([0.5]), 2)
    with pytest.raises(DataError, match=r"shape \(N,\)"):
        prepare.zero_one(np.zeros((2, 1)))
