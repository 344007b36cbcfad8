"""The official formats at toy size, and damaged copies of them."""

import gzip
import io
import pickle
import tarfile

import numpy as np
import pytest

from equipoise.data import DataError
from equipoise.data.load import load_source
from official_files import RNG, cifar10_members, idx, idx_files, mat, place, python2_batch, tar_gz


@pytest.mark.parametrize("layout", ["mnist", "."])
def test_idx(layout, tmp_path):
    contents, x, y = idx_files()
    source = place("mnist", contents, tmp_path / layout)
    data = load_source(source, tmp_path, download=False)
    assert np.array_equal(data.x_train, x)
    assert np.array_equal(data.y_train, y)
    assert np.array_equal(data.x_test, x[:3])
    assert data.x_train.flags.writeable
    assert data.provenance.files == source.files
    assert data.provenance.subset is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: gzip.compress(data)[:-20], "not a whole gzip file"),
        (lambda data: gzip.compress(data)[:200], "not a whole gzip file"),
        (lambda data: b"no gzip at all", "not a whole gzip file"),
        (lambda data: gzip.compress(b"\0\0\x08\x01" + data[4:]), "IDX magic 00000803"),
        (lambda data: gzip.compress(b"\0\0\x0d\x03" + data[4:]), "IDX magic 00000803"),
        (lambda data: gzip.compress(b""), "begins with nothing"),
        (lambda data: gzip.compress(data[:10]), "ends inside its header"),
        (lambda data: gzip.compress(data[:-1]), "only 5487 came"),
        (lambda data: gzip.compress(data + b"\0"), "more came"),
        (lambda data: gzip.compress(data[:4] + b"\xff" * 12), "more than"),
        (lambda data: gzip.compress(idx(np.zeros((7, 28, 27)))), r"uint8 of shape \(28, 28\)"),
        (lambda data: gzip.compress(idx(np.zeros((6, 28, 28)))), "one for each of 6 images"),
    ],
)
def test_malformed_idx(damage, message, tmp_path):
    contents, _, _ = idx_files()
    contents["train-images-idx3-ubyte.gz"] = damage(gzip.decompress(contents["train-images-idx3-ubyte.gz"]))
    source = place("mnist", contents, tmp_path)
    with pytest.raises(DataError, match=message):
        load_source(source, tmp_path, download=False)


def test_idx_label_out_of_range(tmp_path):
    contents, _, _ = idx_files()
    contents["train-labels-idx1-ubyte.gz"] = gzip.compress(idx(np.array([0, 1, 2, 10, 3, 4, 5])))
    with pytest.raises(DataError, match="label of row 3 is 10"):
        load_source(place("mnist", contents, tmp_path), tmp_path, download=False)


def test_crc_of_gzip_is_checked(tmp_path):
    contents, _, _ = idx_files()
    broken = bytearray(contents["t10k-labels-idx1-ubyte.gz"])
    broken[-6] ^= 1
    contents["t10k-labels-idx1-ubyte.gz"] = bytes(broken)
    with pytest.raises(DataError, match="not a whole gzip file"):
        load_source(place("mnist", contents, tmp_path), tmp_path, download=False)


def test_svhn_mat(tmp_path):
    x = RNG.integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    y = np.array([[10], [1], [9], [10]], dtype=np.uint8)
    source = place("svhn", {"train_32x32.mat": mat(x, y), "test_32x32.mat": mat(x[..., :2], y[:2])}, tmp_path)
    data = load_source(source, tmp_path, download=False)
    assert data.y_train.tolist() == [0, 1, 9, 0]
    assert np.array_equal(data.x_train[2], x[..., 2])
    assert data.x_test.shape == (2, 32, 32, 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no matlab file", "not a Matlab file"),
        (mat(np.zeros((32, 32, 3), np.uint8), np.ones((1, 1), np.uint8)), "must hold X"),
        (mat(np.zeros((32, 32, 3, 2)), np.ones((2, 1), np.uint8)), "images must be uint8"),
        (mat(np.zeros((32, 32, 3, 2), np.uint8), np.array([[1], [0]], np.uint8)), "label of row 1 is 0"),
        (mat(np.zeros((32, 32, 3, 2), np.uint8), np.array([[1]], np.uint8)), "one for each of 2 images"),
        (mat(np.zeros((31, 32, 3, 2), np.uint8), np.ones((2, 1), np.uint8)), r"of shape \(32, 32, 3\)"),
    ],
)
def test_malformed_mat(content, message, tmp_path):
    source = place("svhn", {"train_32x32.mat": content, "test_32x32.mat": content}, tmp_path)
    with pytest.raises(DataError, match=message):
        load_source(source, tmp_path, download=False)


def test_cifar10_written_by_python2(tmp_path):
    x = RNG.integers(0, 256, (8, 3072), dtype=np.uint8)
    y = [3, 1, 4, 1, 5, 9, 2, 6]
    contents = {"cifar-10-python.tar.gz": tar_gz(cifar10_members(x, y))}
    data = load_source(place("cifar10", contents, tmp_path), tmp_path, download=False)
    assert data.y_train.tolist() == y[:5]
    assert data.y_test.tolist() == y[5:]
    for channel in range(3):  # the file stores one plane of 1024 pixels after the other
        plane = data.x_train[2, :, :, channel]
        assert np.array_equal(plane.ravel(), x[2, 1024 * channel : 1024 * (channel + 1)])


def test_cifar100_reads_fine_labels(tmp_path):
    x = RNG.integers(0, 256, (3, 3072), dtype=np.uint8)
    members = {
        "cifar-100-python/train": python2_batch(x, [99, 0, 50], b"fine_labels"),
        "cifar-100-python/test": python2_batch(x[:1], [7], b"fine_labels"),
    }
    source = place("cifar100", {"cifar-100-python.tar.gz": tar_gz(members)}, tmp_path)
    data = load_source(source, tmp_path, download=False)
    assert data.y_train.tolist() == [99, 0, 50]
    assert len(set(data.classes)) == 100
    assert data.classes[7] == "beetle"


ZERO = np.zeros((1, 3072), np.uint8)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (None, "must hold cifar-10-batches-py/data_batch_2"),
        (b"junk", "is refused"),
        (b"\x80\x02].", "a list instead of"),
        (b"\x80\x02}.", "must hold 'data'"),
        (python2_batch(ZERO, [1], b"label"), "must hold 'labels'"),
        (python2_batch(ZERO, [10]), "label of row 0 is 10"),
        (pickle.dumps({"data": ZERO, "labels": [2**80]}, 3), "labels must be integers"),
        (python2_batch(ZERO, [1, 2]), "one for each of 1 images"),
        (python2_batch(ZERO[:, 1:], [1]), r"uint8 array \(N, 3072\)"),
    ],
)
def test_malformed_cifar(batch, message, tmp_path):
    members = cifar10_members(np.zeros((6, 3072), np.uint8), [0] * 6)
    del members["cifar-10-batches-py/data_batch_2"]
    if batch is not None:
        members["cifar-10-batches-py/data_batch_2"] = batch
    source = place("cifar10", {"cifar-10-python.tar.gz": tar_gz(members)}, tmp_path)
    with pytest.raises(DataError, match=message):
        load_source(source, tmp_path, download=False)


def test_a_folder_in_the_tar_is_refused(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        folder = tarfile.TarInfo("cifar-100-python/train")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    source = place("cifar100", {"cifar-100-python.tar.gz": buffer.getvalue()}, tmp_path)
    with pytest.raises(DataError, match="not a regular file"):
        load_source(source, tmp_path, download=False)


@pytest.mark.parametrize("cut", [40, -30])
def test_truncated_tar(cut, tmp_path):
    whole = tar_gz(cifar10_members(np.zeros((6, 3072), np.uint8), [0] * 6))
    source = place("cifar10", {"cifar-10-python.tar.gz": whole[:cut]}, tmp_path)
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz"):
        load_source(source, tmp_path, download=False)


def test_malformed_semeion(tmp_path):
    for content in (
        b"1 0 1\n",
        b"0.0 " * 266 + b"\n",
        b"0.0 " * 256 + b"1 0 0 0 0 0 0 0 0 x\n",
        b"2 " * 266,
        b"",
    ):
        with pytest.raises(DataError, match=r"semeion\.data must hold"):
            load_source(place("semeion", {"semeion.data": content}, tmp_path), tmp_path, download=False)
