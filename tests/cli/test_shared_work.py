"""predict and verify by several workers: the same answers in the same order, each once, also after a kill."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest

from equipoise import engines
from equipoise.engines import WorkerLost, Workers, each, in_order
from equipoise.tasks import Stored, predicting
from equipoise.tasks.predicting import decided
from processes import finish, start_signalled

from .commands import call, write_flowers


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    place = tmp_path_factory.mktemp("shared")
    table = write_flowers(place / "flowers.csv")
    said = call("fit", table, "--width", 8, "--epochs", 2, "--out", place / "run", "--no-report")
    assert said.exit_code == 0, said.output
    return place / "run", table


def test_two_workers_answer_as_one_process_does(fitted, tmp_path):
    run, table = fitted
    plain, shared = tmp_path / "plain.csv", tmp_path / "shared.csv"
    assert call("predict", run, table, "--out", plain).exit_code == 0
    said = call("predict", run, table, "--out", shared, "--workers", 2)
    assert said.exit_code == 0, said.output
    assert shared.read_bytes() == plain.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plain.csv", "shared.csv"]  # nothing is left
    assert call("predict", run, table, "--workers", 2).stdout == plain.read_text()


def test_wrong_workers_are_refused(fitted):
    run, table = fitted
    for option in (("--workers", 0), ("--engine", "dask")):
        said = call("predict", run, table, *option)
        assert said.exit_code == 2
        assert f"{option[0]} must be" in " ".join(said.output.split())


def counted(monkeypatch):
    """The parts that are computed from now on."""
    asked, outputs = [], predicting._outputs
    monkeypatch.setattr(predicting, "_outputs", lambda shared, at: asked.append(at) or outputs(shared, at))
    return asked


def test_parts_are_answered_once_and_in_order_after_a_kill(fitted, tmp_path, monkeypatch):
    stored = Stored.load(fitted[0])
    X = np.random.default_rng(0).normal(size=(40, 2))
    monkeypatch.setattr(predicting, "BATCH", 7)
    whole = decided(stored, X, Workers()).outputs
    program = (
        "import sys, numpy as np; from pathlib import Path\n"
        "from equipoise.engines import Workers; from equipoise.tasks import Stored, predicting\n"
        "predicting.BATCH = 7\n"
        "X = np.random.default_rng(0).normal(size=(40, 2))\n"
        "predicting.decided(Stored.load(Path(sys.argv[1])), X, Workers(), Path(sys.argv[2]))\n"
    )
    out = tmp_path / "answers.csv"
    process = start_signalled(
        program, fitted[0], out, number=signal.SIGKILL, at=10, within=tmp_path, name=".part"
    )
    finish(process)
    assert process.returncode == -signal.SIGKILL
    done = json.loads((tmp_path / ".answers.csv.npy.json").read_text())["done"]
    assert 0 < len(done) < 6
    asked = counted(monkeypatch)
    again = decided(stored, X, Workers(), out)
    assert len(asked) == 6 - len(done)
    assert np.array_equal(again.outputs.numpy(), whole.numpy())
    with pytest.raises(FileExistsError, match="it differs in rows"):
        decided(stored, X + 1, Workers(), out)
    again.written()
    assert not list(tmp_path.iterdir())


def test_verify_by_two_workers_finds_the_same(tmp_path):
    place = tmp_path / "run"
    options = ("--rows", 60, "--model", "monotone", "--width", 8, "--epochs", 1)
    assert call("fit", "digits", *options, "--out", place, "--no-report").exit_code == 0
    found = []
    for name, more in (("one", ()), ("two", ("--workers", 2))):
        options = ("--data", "digits", "--rows", 60, "--epsilon", "0.001", "--epsilon", "0.01")
        said = call("verify", place, *options, "--out", tmp_path / name, "--nodes", 20, *more)
        assert said.exit_code == 0, said.output
        found.append(json.loads((tmp_path / name / "verified.json").read_text()))
    for at in (*found[0]["epsilons"].values(), *found[1]["epsilons"].values()):
        assert len(at.pop("time")) == 60
    assert found[0] == found[1]


# -- the engine itself ---------------------------------------------------------------------------------------


def square(shared, task):
    """What a worker does: fail, die, or multiply."""
    if task == "fail":
        raise ValueError("a task failed")
    if task == "die":
        import os

        os._exit(3)
    return shared * task


@pytest.mark.parametrize("count", [1, 2])
def test_results_come_with_their_numbers_and_in_order(count):
    found = dict(each(square, 3, range(9), Workers(count)))
    assert found == {i: 3 * i for i in range(9)}
    late = [(2, "c"), (0, "a"), (1, "b"), (3, "d")]
    assert list(in_order(iter(late))) == ["a", "b", "c", "d"]


def test_no_more_tasks_wait_than_workers_need():
    drawn = []

    def tasks():
        for i in range(50):
            drawn.append(i)
            yield i

    found = each(square, 1, tasks(), Workers(2))
    next(found)
    assert len(drawn) <= 3 * engines.AHEAD
    found.close()


def test_an_error_of_a_task_is_raised_and_a_lost_process_is_named():
    with pytest.raises(ValueError, match="a task failed"):
        list(each(square, 1, [1, "fail", 2], Workers(2)))
    with pytest.raises(WorkerLost, match="a process of the run was killed"):
        list(each(square, 1, ["die", 1], Workers(2)))
