"""Official formats at toy size: the same code and hash check, with a registry of the test's own files."""

import hashlib
import http.server
import sys
import threading

import numpy as np
import pytest

from equipoise.data import DataError, MissingData, available, data_directory, load
from equipoise.data.load import load_source
from equipoise.data.registry import DIGITS_SHA256, SOURCES
from official_files import idx_files, place

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
        ({"x_test": np.zeros((0, 28, 28), np.uint8), "y_test": np.zeros(0, int)}, "Got 4 and 0 instead"),
        ({"x_train": np.zeros((0, 28, 28), np.uint8), "y_train": np.zeros(0, int)}, "Got 0 and 2 instead"),
    ],
)
def test_malformed_subset(changes, message, tmp_path):
    subset(tmp_path / "kmnist.npz", **changes)
    with pytest.raises(DataError, match=message) as error:
        load("kmnist", tmp_path, download=False)
    found = {item.name: item for item in available(tmp_path)}["kmnist"]
    assert found.found == "damaged"
    assert found.where == str(error.value)
    assert str(tmp_path / "kmnist.npz") in found.where


def test_some_official_files_are_incomplete(tmp_path, monkeypatch):
    contents, _, _ = idx_files()
    monkeypatch.setitem(SOURCES, "mnist", place("mnist", contents, tmp_path / "mnist"))
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz").unlink()
    found = {item.name: item for item in available(tmp_path)}
    assert found["mnist"].found == "incomplete"
    assert found["mnist"].where == "missing: t10k-images-idx3-ubyte.gz"
    assert found["fashion_mnist"].found == "missing"
    subset(tmp_path / "mnist.npz")
    assert {item.name: item.found for item in available(tmp_path)}["mnist"] == "subset"


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
        assert "--data-dir" in message
        assert "EQUIPOISE_DATA" in message
        assert "mnist.npz with the arrays x_train, y_train, x_test, y_test" in message
        assert ("was not downloaded (no connection to 127.0.0.1)." in message) == download
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
    (content,) = data.provenance.files
    assert content.sha256 == DIGITS_SHA256
    assert digest == "9066d95fb2903250ef73161f7d0c5bcf25f0bfeca2fde3e8d174494eedb86e68"
