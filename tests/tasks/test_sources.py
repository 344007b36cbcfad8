"""DATA of a command: which rows are asked for, and what they cost, is known before they are read."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.data.columns import Column
from equipoise.tasks.sources import Asked, read
from equipoise.tasks.splitting import held_out


@pytest.fixture
def table(tmp_path):
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(90, 3)), generator.integers(0, 3, 90)
    np.savez(tmp_path / "t.npz", x=X, y=y)
    return tmp_path / "t.npz", X, y


def test_the_rows_are_those_drawn_from_the_part_to_train_on(table):
    path, X, y = table
    words = np.array([str(k) for k in y])
    sample = read(Asked(str(path), test_share=0.2, rows=20, split_seed=3))
    held = held_out(words, 90, 0.2, 3)
    drawn = ~held_out(words[~held], int((~held).sum()), 1 - 20 / (~held).sum(), 3)
    assert np.array_equal(sample.train[0], X[~held][drawn])
    assert sample.train[1].tolist() == words[~held][drawn].tolist()
    assert np.array_equal(sample.test[0], X[held])
    assert sample.provenance["rows"] == 20 == len(sample.train[0])
    assert sample.provenance["split"].endswith("; of 72 rows to train on, 20 drawn at random")


@pytest.mark.parametrize("rows", [None, 20])
def test_what_rows_cost_is_asked_before_they_are_read(table, rows, monkeypatch):
    seen = []

    def check(count, columns):
        seen.append((count, columns))
        raise MemoryError("too much")

    monkeypatch.setattr("equipoise.data.tables.require_rows", lambda *_: pytest.fail("went on to read"))
    asked = Asked(str(table[0]), test_share=0.2, rows=rows, split_seed=0)
    with pytest.raises(MemoryError, match="too much"):
        read(asked, check)
    assert seen == [(rows or 72, 3)]
    with pytest.raises(MemoryError):
        read(Asked("synthetic-moons", rows=10, split_seed=0), check)
    assert seen[1] == (10, 2)


def test_rows_are_read_of_a_table_that_does_not_fit_as_a_whole(table, monkeypatch):
    monkeypatch.setattr("equipoise.memory.available", lambda: 16.0 * 3 * 40)
    monkeypatch.setattr("equipoise.memory.disk", lambda: 0.0)
    assert len(read(Asked(str(table[0]), test_share=0.2, rows=20, split_seed=0)).train[0]) == 20
    with pytest.raises(ValueError, match="of which 90 rows of 3 numbers are wanted, is too large"):
        read(Asked(str(table[0]), test_share=0.2, split_seed=0))


def test_a_run_of_before_columns_were_told_apart_reads_what_it_read(tmp_path):
    """Its columns were numbers, each of them, whether it tells something or not."""
    (tmp_path / "t.csv").write_text("id,x,y\n" + "".join(f"{i},{i * i},{i}.5\n" for i in range(30)))
    asked = Asked.of(str(tmp_path / "t.csv"))
    now = read(asked)
    assert now.provenance["features"] == ["x"]
    assert now.encoding.dropped == {"id": "a row number"}
    before = read(asked, columns=(Column("id"), Column("x")))
    assert before.encoding is None
    assert before.train[0].shape == (24, 2)
    assert np.array_equal(before.train[0][:, 1:], now.train[0])


def test_weights_are_divided_as_the_rows_are(tmp_path):
    (tmp_path / "t.csv").write_text("x,w,y\n" + "".join(f"{i * i},{i},{i}.5\n" for i in range(30)))
    sample = read(Asked.of(str(tmp_path / "t.csv"), weight="w"))
    assert sample.provenance["features"] == ["x"]
    assert np.array_equal(sample.weights, sample.train[1] - 0.5)
    assert len(sample.weights) == 24
