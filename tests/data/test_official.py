"""The official files and the declared subsets, where they are present."""

import shutil

import numpy as np
import pytest

from equipoise.data import DataError, available, load, prepare

HISTOGRAM = {  # label counts of the official training and test parts
    "mnist": (
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ),
    "fashion_mnist": ([6000] * 10, [1000] * 10),
    "kmnist": ([6000] * 10, [1000] * 10),
    "cifar10": ([5000] * 10, [1000] * 10),
    "cifar100": ([500] * 100, [100] * 100),
    "svhn": (
        [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659],
        [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595],
    ),
}
IMAGE = {"mnist": (28, 28), "fashion_mnist": (28, 28), "kmnist": (28, 28)}


def _state(name, data_dir):
    return {item.name: item.found for item in available(data_dir)}[name]


@pytest.mark.parametrize("name", sorted(HISTOGRAM))
def test_public_images(name, data_dir):
    state = _state(name, data_dir)
    if state == "missing":
        pytest.skip(f"{name} is not in the data directory")
    data = load(name, data_dir, download=False)
    counts = [np.bincount(y, minlength=len(data.classes)) for y in (data.y_train, data.y_test)]
    for got, official in zip(counts, HISTOGRAM[name], strict=True):
        if state == "official":
            assert got.tolist() == official
        else:
            assert (got <= official).all()
            assert (got > 0).all()
    assert (data.provenance.subset is None) == (state == "official")
    assert all(len(file.sha256) == 64 for file in data.provenance.files)
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        assert x.dtype == np.uint8
        assert x.shape == (len(y), *IMAGE.get(name, (32, 32, 3)))
        assert y.dtype == np.int64
        assert x.max() == 255


def test_first_digits_of_mnist(data_dir):
    if _state("mnist", data_dir) != "official":
        pytest.skip("official mnist is not in the data directory")
    data = load("mnist", data_dir, download=False)
    assert data.y_train[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert data.y_test[:5].tolist() == [7, 2, 1, 0, 4]
    assert data.x_train.mean() / 255 == pytest.approx(0.1307, abs=1e-4)  # known mean and deviation
    assert data.x_train.std() / 255 == pytest.approx(0.3081, abs=1e-4)


def test_semeion(data_dir):
    if _state("semeion", data_dir) != "official":
        pytest.skip("semeion is not in the data directory")
    data = load("semeion", data_dir, download=False)
    assert (len(data.x_train), len(data.x_test)) == (1274, 319)
    assert data.x_train.shape[1:] == (16, 16)
    counts = np.bincount(np.concatenate([data.y_train, data.y_test]))
    assert counts.tolist() == [161, 162, 159, 159, 161, 159, 161, 158, 155, 158]  # semeion.names
    assert set(np.unique(data.x_train)) == {0, 1}
    again = load("semeion", data_dir, download=False)
    assert np.array_equal(data.x_train, again.x_train)
    assert "permutation" in data.provenance.split


@pytest.mark.parametrize("damage", ["flipped byte", "truncated"])
def test_a_damaged_official_file_is_refused(damage, data_dir, tmp_path):
    if _state("mnist", data_dir) != "official":
        pytest.skip("official mnist is not in the data directory")
    shutil.copytree(data_dir / "mnist", tmp_path / "mnist", copy_function=shutil.copyfile)
    path = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        del content[-100:]
    else:
        content[1000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        load("mnist", tmp_path)
    message = str(error.value)
    assert str(path) in message
    assert "expected sha256 f7ae60f92e00" in message
    assert "got      sha256 " in message
    assert _state("mnist", tmp_path) == "damaged"


def test_the_protocol_of_gao2022_on_a_subset(data_dir):
    if _state("cifar10", data_dir) == "missing":
        pytest.skip("cifar10 is not in the data directory")
    data = prepare.two_classes(load("cifar10", data_dir, download=False), seed=1)
    X = prepare.unit_norm(prepare.flatten(prepare.resize(prepare.grey(data.x_train), 28)))
    assert X.shape == (1000, 784)
    assert np.allclose(np.linalg.norm(X, axis=1), 1, atol=1e-12)
    assert np.bincount(data.y_test).tolist() == [500, 500]
    rows = [x.tobytes() for x in np.concatenate([data.x_train, data.x_test])]
    assert len(set(rows)) == len(rows)
