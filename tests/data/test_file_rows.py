"""Rows that stay in their file are, to the last bit, those that are read into memory."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from equipoise.data import file_rows, read_table
from equipoise.data.columns import ColumnOptions
from equipoise.data.errors import DataError
from equipoise.data.file_rows import FileRows, chosen

N, D = 60, 5


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    monkeypatch.setattr(file_rows, "LARGE", 0)


def numbers(dtype=np.float64):
    return np.random.default_rng(0).standard_normal((N, D)).astype(dtype)


def write_npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def write_parquet(path, columns, groups=4):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table(columns), path, row_group_size=N // groups)
    return path


def a_table(path):
    """Numbers of each type with values that are missing, a constant column and one that counts the rows."""
    X = numbers()
    gaps = [None if i % 7 == 0 else float(v) for i, v in enumerate(X[:, 0])]
    columns = {"a": X[:, 1], "b": X[:, 2].astype(np.float32), "gaps": gaps, "flag": (X[:, 3] > 0).tolist()}
    columns |= {"few": np.arange(N) % 3, "same": np.ones(N), "count": np.arange(N), "w": abs(X[:, 4])}
    return write_parquet(path, columns | {"y": X[:, 0] + X[:, 1]})


def both(path, **options):
    """The table with its rows left in the file, and in memory."""
    left, held = read_table(path, left=True, **options), read_table(path, **options)
    assert isinstance(left.X, FileRows)
    assert isinstance(held.X, np.ndarray)
    return left, held


@pytest.mark.filterwarnings("ignore:.*equal inputs")
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16, np.bool_, ">f8"])
def test_an_array_of_an_npz(tmp_path, dtype):
    X = numbers(dtype)
    left, held = both(write_npz(tmp_path / "t.npz", other=np.arange(7), x=X, y=np.arange(N) + 0.25))
    assert np.array_equal(np.asarray(left.X), X.astype(np.float64))
    assert np.array_equal(left.X[:], held.X)
    assert left.X.shape == held.X.shape == (N, D)
    assert left.features == held.features


def test_what_is_indexed_is_as_of_an_array(tmp_path):
    X = numbers()
    left = read_table(write_npz(tmp_path / "t.npz", x=X, y=X[:, 0]), left=True).X
    mask = X[:, 1] > 0
    for at in (3, -1, slice(4, 9), slice(None, None, 7), [5, 2, 2], mask, (slice(None), 2), (mask, 1),
               (slice(2, 9), [0, 3]), (4, 1), np.array([], dtype=int)):  # fmt: skip
        assert np.array_equal(left[at], X[at]), at
        assert left[at].shape == X[at].shape
    some = chosen(left, mask)
    assert isinstance(some, FileRows)
    assert np.array_equal(chosen(some, np.array([3, 0]))[:], X[mask][[3, 0]])
    assert np.array_equal(left.only([4, 1])[:], X[:, [4, 1]])
    assert np.array_equal(left.only(slice(-1)).only([2])[1:3], X[1:3, [2]])
    assert np.array_equal(pickle.loads(pickle.dumps(some))[:], X[mask])
    assert [list(row) for row in left] == X.tolist()
    with pytest.raises(IndexError):
        left[N]


def test_rows_that_are_chosen_by_their_targets(tmp_path):
    X = numbers()
    path = write_npz(tmp_path / "t.npz", x=X, y=np.arange(N) % 3)
    some = lambda found, columns: np.flatnonzero(found.y > 0)
    left, held = both(path, choose=some)
    assert np.array_equal(left.X[:], X[np.arange(N) % 3 > 0])
    assert [left.place(i) for i in (0, 2)] == [held.place(i) for i in (0, 2)] == ["row 1", "row 4"]


@pytest.mark.parametrize("weight", [None, "w"])
def test_a_parquet_file_of_numbers(tmp_path, weight):
    path = a_table(tmp_path / "t.parquet")
    left, held = both(path, options=ColumnOptions(weight=weight))
    assert np.array_equal(left.X[:], held.X, equal_nan=True)
    assert np.isnan(left.X[:]).any()
    assert left.columns == held.columns
    assert left.dropped == held.dropped
    assert {"same", "count"} == set(left.dropped)
    assert np.array_equal(left.y, held.y)
    if weight:
        assert np.array_equal(left.weights, held.weights)
    for at in (slice(10, 40), np.arange(N)[::-1], [0, 59, 17]):
        assert np.array_equal(left.X[at], held.X[at], equal_nan=True)


def test_files_that_cannot_be_read_in_parts_are_held(tmp_path):
    X = numbers()
    np.savez_compressed(tmp_path / "small.npz", x=X, y=X[:, 0])
    write_npz(tmp_path / "columns.npz", x=np.asfortranarray(X), y=X[:, 0])
    words = {"a": X[:, 0], "word": ["u", "v"] * (N // 2), "y": X[:, 1]}
    for path in ("small.npz", "columns.npz", write_parquet(tmp_path / "words.parquet", words)):
        assert isinstance(read_table(tmp_path / path, left=True).X, np.ndarray)
    categories = ColumnOptions(categorical=("few",))
    found = read_table(a_table(tmp_path / "t.parquet"), left=True, options=categories)
    assert isinstance(found.X, np.ndarray)


def test_few_numbers_are_held(tmp_path, monkeypatch):
    X = numbers()
    path = write_npz(tmp_path / "t.npz", x=X, y=X[:, 0])
    monkeypatch.setattr(file_rows, "LARGE", X.size)
    assert isinstance(read_table(path, left=True).X, np.ndarray)


def test_an_infinite_number_is_named_by_its_row_and_column(tmp_path):
    X = numbers()
    X[[7, 33], [1, 4]] = np.inf
    path = write_npz(tmp_path / "t.npz", x=X, y=np.arange(N) * 1.5)
    said = []
    for left in (True, False):
        with pytest.raises(DataError) as error:
            read_table(path, left=left)
        said.append(str(error.value))
    assert said[0] == said[1]
    assert "'x1': infinite value in row 7" in said[0]
    assert "'x4': infinite value in row 33" in said[0]
