"""Official formats at toy size: the same code and hash check, with a registry of the test's own files."""

import dataclasses
import gzip
import hashlib
import http.server
import io
import struct
import sys
import tarfile
import threading

import numpy as np
import pytest
from scipy.io import savemat

from equipoise.data import DataError, MissingData, available, data_directory, load
from equipoise.data.dataset import SourceFile
from equipoise.data.load import load_source
from equipoise.data.registry import SOURCES

RNG = np.random.default_rng(0)


# -- writers of the official formats --------------------------------------------------------------


def idx(array):
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def idx_files():
    x, y = RNG.integers(0, 256, (7, 28, 28)), np.arange(7)
    content = {
        "train-images-idx3-ubyte.gz": idx(x),
        "train-labels-idx1-ubyte.gz": idx(y),
        "t10k-images-idx3-ubyte.gz": idx(x[:3]),
        "t10k-labels-idx1-ubyte.gz": idx(y[:3]),
    }
    return {name: gzip.compress(data) for name, data in content.items()}, x, y


def python2_string(data):
    return b"U" + bytes([len(data)]) + data if len(data) < 256 else b"T" + struct.pack("<I", len(data)) + data


def python2_array(x):
    """The opcodes with which Python 2 pickled a uint8 array of two dimensions."""
    shape = b"".join(b"J" + struct.pack("<i", n) for n in x.shape) + b"\x86"
    dtype = b"cnumpy\ndtype\n" + python2_string(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + python2_string(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + python2_string(b"b") + b"\x87R"
    )
    return array + b"(K\x01" + shape + dtype + b"\x89" + python2_string(x.tobytes()) + b"tb"


def python2_batch(x, labels, key=b"labels"):
    items = python2_string(b"data") + python2_array(x)
    items += python2_string(key) + b"](" + b"".join(b"K" + bytes([i]) for i in labels) + b"e"
    items += python2_string(b"batch_label") + python2_string(b"a batch")
    return b"\x80\x02}(" + items + b"u."


def tar_gz(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def cifar10_members(x, y):
    train = {
        f"cifar-10-batches-py/data_batch_{i + 1}": python2_batch(x[i : i + 1], y[i : i + 1]) for i in range(5)
    }
    return train | {"cifar-10-batches-py/test_batch": python2_batch(x[5:], y[5:])}


def mat(x, y):
    buffer = io.BytesIO()
    savemat(buffer, {"X": x, "y": y})
    return buffer.getvalue()


def place(name, contents, folder, base="http://127.0.0.1:9/"):
    """Write the files and return the registry entry that expects exactly them."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in contents.items():
        (folder / file).write_bytes(content)
    files = tuple(
        SourceFile(file, hashlib.sha256(content).hexdigest(), base + file)
        for file, content in contents.items()
    )
    return dataclasses.replace(SOURCES[name], files=files)


# -- the formats ----------------------------------------------------------------------------------


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
    for content in (b"1 0 1\n", b"0.0 " * 266 + b"\n", b"0.0 " * 256 + b"1 0 0 0 0 0 0 0 0 x\n", b"2 " * 266):
        with pytest.raises(DataError, match=r"semeion\.data must hold"):
            load_source(place("semeion", {"semeion.data": content}, tmp_path), tmp_path, download=False)


# -- finding, subsets, hashes ---------------------------------------------------------------------


def test_a_wrong_file_is_refused_by_hash(tmp_path):
    contents, _, _ = idx_files()
    source = place("mnist", contents, tmp_path / "mnist")
    wrong = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    wrong.write_bytes(b"something else")
    with pytest.raises(DataError) as error:
        load_source(source, tmp_path, download=True)
    expected = next(file.sha256 for file in source.files if file.name == wrong.name)
    for part in (str(wrong), expected, hashlib.sha256(b"something else").hexdigest()):
        assert part in str(error.value)
    assert wrong.read_bytes() == b"something else"  # never overwritten by a download


def test_flat_files_of_a_sister_are_not_damage(tmp_path, monkeypatch):
    contents, x, _ = idx_files()
    mnist = place("mnist", contents, tmp_path)
    monkeypatch.setitem(SOURCES, "mnist", mnist)
    with pytest.raises(MissingData, match="fashion_mnist is not in"):
        load("fashion_mnist", tmp_path, download=False)
    assert np.array_equal(load("mnist", tmp_path, download=False).x_train, x)


def subset(path, **changes):
    x, y = np.zeros((4, 28, 28), np.uint8), np.arange(4, dtype=np.uint8)
    arrays = {"x_train": x, "y_train": y, "x_test": x[:2], "y_test": y[:2]} | changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})


@pytest.mark.parametrize("file", ["kmnist.npz", "kmnist_partial.npz", "kmnist/kmnist.npz"])
def test_a_subset_is_declared(file, tmp_path):
    (tmp_path / "kmnist").mkdir()
    subset(tmp_path / file)
    data = load("kmnist", tmp_path)
    assert data.y_train.tolist() == [0, 1, 2, 3]
    assert "subset" in data.provenance.subset
    assert "4 training and 2 test" in data.provenance.subset
    got = hashlib.sha256((tmp_path / file).read_bytes()).hexdigest()
    assert [item.sha256 for item in data.provenance.files] == [got]
    assert {item.name: item.found for item in available(tmp_path)}["kmnist"] == "subset"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "missing: .*y_test"),
        ({"x_train": np.zeros((4, 28, 28))}, "must be uint8"),
        ({"x_train": np.zeros((4, 14, 14), np.uint8)}, r"of shape \(28, 28\)"),
        ({"y_train": np.array([0, 1, 2])}, "one for each of 4 images"),
        ({"y_train": np.array([0, -1, 2, 3])}, "label of row 1 is -1"),
        ({"y_train": np.array([0.0, 1, 2, 3])}, "must be integers"),
        ({"y_train": np.array([{}, 1, 2, 3], dtype=object)}, "plain arrays"),
    ],
)
def test_malformed_subset(changes, message, tmp_path):
    subset(tmp_path / "kmnist.npz", **changes)
    with pytest.raises(DataError, match=message):
        load("kmnist", tmp_path, download=False)


def test_official_files_come_before_a_subset(tmp_path):
    contents, _, _ = idx_files()
    source = place("kmnist", contents, tmp_path / "kmnist")
    subset(tmp_path / "kmnist.npz")
    assert len(load_source(source, tmp_path, download=False).x_train) == 7
    (tmp_path / "kmnist" / "t10k-images-idx3-ubyte.gz").unlink()
    assert len(load_source(source, tmp_path, download=False).x_train) == 4


# -- the network ----------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    """Files of a folder over HTTP, on this machine."""
    folder = tmp_path / "served"

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield folder, f"http://127.0.0.1:{httpd.server_port}/"
        httpd.shutdown()
        thread.join()


def test_download_by_hash(server, tmp_path):
    pytest.importorskip("pooch")
    folder, base = server
    contents, x, _ = idx_files()
    source = place("mnist", contents, folder, base)
    cache = tmp_path / "cache"
    assert np.array_equal(load_source(source, cache, download=True).x_train, x)
    assert sorted(path.name for path in (cache / "mnist").iterdir()) == sorted(contents)
    assert np.array_equal(load_source(source, cache, download=False).x_train, x)


def test_a_wrong_download_is_refused_and_not_kept(server, tmp_path):
    pytest.importorskip("pooch")
    folder, base = server
    contents, _, _ = idx_files()
    source = place("mnist", contents, folder, base)
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"tampered")
    cache = tmp_path / "cache"
    with pytest.raises(MissingData, match="hash") as error:
        load_source(source, cache, download=True)
    assert [path.name for path in (cache / "mnist").iterdir()] == ["train-images-idx3-ubyte.gz"]
    assert "train-labels-idx1-ubyte.gz  sha256" in str(error.value)
    assert "train-images-idx3-ubyte.gz  sha256" not in str(error.value)  # that one has arrived


def test_without_network_the_message_says_what_to_put_where(tmp_path):
    contents, _, _ = idx_files()
    source = place("mnist", contents, tmp_path / "elsewhere")  # port 9 of this machine answers nobody
    cache = tmp_path / "cache"
    for download in (True, False):
        with pytest.raises(MissingData) as error:
            load_source(source, cache, download=download)
        message = str(error.value)
        assert str(cache / "mnist") in message
        assert "EQUIPOISE_DATA" in message
        for file in source.files:
            assert file.name in message
            assert file.sha256 in message
            assert file.url in message
    assert isinstance(error.value, FileNotFoundError)


def test_without_pooch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    assert data_directory().parts[-2:] == (".cache", "equipoise")
    with pytest.raises(MissingData, match=r"equipoise\[data\]"):
        load("svhn", tmp_path)


# -- names and directories ------------------------------------------------------------------------


def test_data_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    assert data_directory() == tmp_path
    assert data_directory(tmp_path / "other") == tmp_path / "other"
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="must be a directory"):
        data_directory(tmp_path / "file")
    monkeypatch.setenv("EQUIPOISE_DATA", "")
    assert data_directory().name == "equipoise"


def test_unknown_name():
    with pytest.raises(
        DataError, match=r"no data set is called 'minst'; did you mean 'mnist'\? Known: digits"
    ):
        load("minst")


def test_available_lists_every_name_load_knows(tmp_path):
    found = {item.name: item.found for item in available(tmp_path)}
    assert {name for name, state in found.items() if state == "missing"} == set(SOURCES)
    for name, state in found.items():
        if state == "embedded":
            data = load(name, tmp_path, download=False)
            assert data.name == name
            assert len(data.x_train) == len(data.y_train) > 0
            assert len(data.x_test) == len(data.y_test) > 0


def test_digits_are_the_same_everywhere():
    data = load("digits")
    assert data.x_train.shape == (1437, 8, 8)
    assert data.x_train.dtype == np.uint8
    assert data.x_train.max() == 16
    assert len(data.x_test) == 360
    counts = np.bincount(np.concatenate([data.y_train, data.y_test]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    digest = hashlib.sha256(data.x_train.tobytes() + data.y_train.astype("<i8").tobytes()).hexdigest()
    assert digest == "9066d95fb2903250ef73161f7d0c5bcf25f0bfeca2fde3e8d174494eedb86e68"
