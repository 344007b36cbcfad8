"""Kernels in files: the dense ones, tile by tile, by any number of workers, gone on with after a kill."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.kernels import TileFile, population_gram, tangent_kernel, tiles
from processes import finish, start_signalled


def rows(N, d=3, seed=0):
    return torch.randn(N, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def network(kind="affine", outputs=1):
    generator = torch.Generator().manual_seed(1)
    if kind == "affine":
        return eq.GaussianReLU(3, 5, outputs=outputs, dtype=torch.float64, generator=generator)
    if kind == "opteq":
        return eq.OptEq(3, 5, 6, outputs=outputs, dtype=torch.float64, generator=generator)
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", ["affine", "opteq", "module"])
def test_a_kernel_in_a_file_is_the_dense_one(kind, outputs, tmp_path):
    net, X, X2 = network(kind, outputs), rows(7), rows(4, seed=2)
    for other in (None, X2):
        dense = tangent_kernel(net, X, other).matrix
        out = TileFile(tmp_path / f"{other is None}.npy", side=3)
        found = tangent_kernel(net, X, other, out=out)
        torch.testing.assert_close(found.total, dense, rtol=1e-12, atol=1e-12)
        assert np.array_equal(np.load(tmp_path / f"{other is None}.npy"), found.matrix.numpy())
        if other is None:
            assert torch.equal(found.total, found.total.T)
            assert found.lambda_min == pytest.approx(float(torch.linalg.eigvalsh(dense)[0]), abs=1e-12)


@pytest.mark.parametrize("depth", [None, 3])
def test_a_gram_matrix_of_infinite_width_in_a_file_is_the_dense_one(depth, tmp_path):
    X, X2 = rows(9), rows(4, seed=2)
    for other in (None, X2):
        dense = population_gram(X, 0.1, depth, other)
        found = population_gram(X, 0.1, depth, other, out=TileFile(tmp_path / f"{other is None}.npy", side=4))
        torch.testing.assert_close(found, dense, rtol=1e-13, atol=1e-14)


def test_each_tile_above_the_diagonal_is_computed_once_and_a_whole_file_is_read(tmp_path, monkeypatch):
    asked, total = [], tiles._total
    monkeypatch.setattr(tiles, "_total", lambda tile, pair: asked.append(pair) or total(tile, pair))
    told = []
    out = TileFile(tmp_path / "k.npy", side=3)
    found = tangent_kernel(network(), rows(8), out=out, progress=lambda *said: told.append(said))
    assert len(asked) == 6  # of 3 × 3 tiles
    assert told == [(i, 6) for i in range(1, 7)]
    again = tangent_kernel(network(), rows(8), out=out)
    assert len(asked) == 6
    assert torch.equal(found.total, again.total)
    again.total[0, 0] = 7  # which does not reach the file
    assert np.load(tmp_path / "k.npy")[0, 0] == found.total[0, 0]


def test_a_file_of_another_kernel_is_refused(tmp_path):
    out, net, X = tmp_path / "k.npy", network(), rows(5)
    tangent_kernel(net, X, out=out)
    with pytest.raises(FileExistsError, match=r"k\.npy was begun for something else: it differs in X"):
        tangent_kernel(net, X + 1e-9, out=out)
    with torch.no_grad():
        net.a[0] += 1
    with pytest.raises(FileExistsError, match="it differs in model"):
        tangent_kernel(net, X, out=out)
    with pytest.raises(FileExistsError, match="sigma_w2"):
        population_gram(X, 0.1, out=out)
    with pytest.raises(FileExistsError, match="it differs in parts, side"):
        tangent_kernel(network(), X, out=TileFile(out, side=2))
    np.save(tmp_path / "other.npy", np.zeros(3))
    with pytest.raises(FileExistsError, match="no record says what it is of"):
        tangent_kernel(net, X, out=tmp_path / "other.npy")
    assert np.array_equal(np.load(tmp_path / "other.npy"), np.zeros(3))
    with pytest.raises(ValueError, match=r"must end in \.npy\. Got k\.csv"):
        tangent_kernel(net, X, out=tmp_path / "k.csv")
    with pytest.raises(ValueError, match="engine must be one of 'local', 'ray'"):
        TileFile(out, engine="dask")


def test_two_processes_give_the_same_bits_as_one(tmp_path):
    net, X = network(outputs=2), rows(40)
    one = tangent_kernel(net, X, out=TileFile(tmp_path / "1.npy", side=8))
    two = tangent_kernel(net, X, out=TileFile(tmp_path / "2.npy", side=8, workers=2))
    assert torch.equal(one.total, two.total)


PROGRAM = """
import sys, torch, equipoise as eq
from equipoise.kernels import TileFile
X = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
eq.population_gram(X, 0.1, out=TileFile(sys.argv[1], side=8))
"""


@pytest.mark.parametrize("at", [1, 5, 12])
def test_a_killed_process_is_gone_on_from(tmp_path, at, monkeypatch):
    """Killed as the record of a tile is put in its place, the tile is computed again, and no other is."""
    out = tmp_path / "k.npy"
    process = start_signalled(PROGRAM, out, number=signal.SIGKILL, at=at, within=tmp_path, name=".part")
    finish(process)
    assert process.returncode == -signal.SIGKILL
    assert not out.exists()
    record = tmp_path / "k.npy.json"
    done = json.loads(record.read_text())["done"] if record.exists() else []
    asked, total = [], tiles._total
    monkeypatch.setattr(tiles, "_total", lambda tile, pair: asked.append(pair) or total(tile, pair))
    found = population_gram(rows(40), 0.1, out=TileFile(out, side=8))
    assert len(asked) == 15 - len(done)
    torch.testing.assert_close(found, population_gram(rows(40), 0.1), rtol=1e-13, atol=1e-14)


def test_a_disk_that_is_too_small_is_said_before_anything_is_computed(tmp_path, monkeypatch):
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(OSError, match=r"takes 200 bytes, but only 100 bytes are free"):
        population_gram(rows(5), 0.1, out=tmp_path / "k.npy")
    assert list(tmp_path.iterdir()) == []
