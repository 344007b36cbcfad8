"""What is made of rows that stay in their file is what is made of the same rows in memory, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.data import file_rows, read_table
from equipoise.data.encoding import Encoding
from equipoise.data.errors import DataError
from equipoise.tasks.fitted import tensors
from equipoise.tasks.preparation import Preparation
from equipoise.tasks.raw import Rows, calibrating, held_out
from equipoise.tasks.sources import digest_of_arrays
from equipoise.theory.certificate import fingerprint

N = 70


@pytest.fixture(params=["numbers", "columns"])
def rows(request, tmp_path, monkeypatch):
    """The rows of one file, left there and in memory: an array, and columns with gaps to be encoded."""
    monkeypatch.setattr(file_rows, "LARGE", 0)
    X = np.random.default_rng(0).standard_normal((N, 4))
    y, path = X[:, 0] * 2 + 1, tmp_path / "t.npz"
    if request.param == "numbers":
        np.savez(path, x=X, y=y)
    else:
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        path = tmp_path / "t.parquet"
        gaps = [None if i % 9 == 0 else float(v) for i, v in enumerate(X[:, 3])]
        parquet.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "gaps": gaps, "y": y}), path)
    found = []
    for left in (True, False):
        table = read_table(path, left=left)
        encoding = Encoding.of(table.X, table.columns) if table.columns else None
        found.append(Rows.of(table.X, table.y, "regression", np.arange(N) % 5, encoding))
    return found


def same(left, held):
    return np.array_equal(np.asarray(left.X), held.X, equal_nan=True) and np.array_equal(left.y, held.y)


def test_the_preparation_and_the_inputs(rows):
    left, held = rows
    assert left.encoding == held.encoding
    assert digest_of_arrays(left.X, left.y) == digest_of_arrays(held.X, held.y)
    made = [Preparation.of(r.X, r.y, r.kind, r.weights, encoding=r.encoding) for r in rows]
    for name in ("mean", "scale", "target_mean", "target_scale"):
        assert np.array_equal(*(getattr(one, name) for one in made))
    model = eq.GaussianReLU(made[0].inputs, 3, dtype=torch.float64)
    A, B = tensors(model, made[0], left)
    inputs, targets = tensors(model, made[1], held)
    assert isinstance(inputs, torch.Tensor)
    assert not isinstance(A, torch.Tensor)
    assert torch.equal(A[:], inputs)
    assert torch.equal(A[torch.tensor([5, 2])], inputs[[5, 2]])
    assert fingerprint(model, A, B) == fingerprint(model, inputs, targets)


def test_rows_that_are_held_out_or_weighted(rows):
    left, held = rows
    for chosen in (lambda r: held_out(r, 1), lambda r: calibrating(r, 0.8, 1), lambda r: (r.gathered(),)):
        for one, two in zip(chosen(left), chosen(held), strict=True):
            assert same(one, two)
            assert one.encoding == two.encoding


def test_what_is_not_finite_is_named(rows, monkeypatch):
    left, _ = rows
    monkeypatch.setattr(type(left.X.matrix), "read", lambda self, r, c: np.full((len(r), len(c)), np.inf))
    with pytest.raises(DataError, match="row 0, column 0: inf is NaN or infinite"):
        Rows.of(left.X, left.y, "regression")
