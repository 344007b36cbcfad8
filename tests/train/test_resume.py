"""A certified run that is killed and resumed equals one that was not, bit for bit."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import equipoise as eq
from certifiable import FAMILIES, instance
from equipoise.train.checkpoint import Checkpoints, CheckpointWarning
from processes import finish, start, start_signalled

STEPS = 23


class Crash(Exception):
    """Stands for a kill, within one process."""


def train(problem, checkpoints=None, crash_at=None, every=4, record=None, steps=STEPS, **options):
    """A run from its beginning, or from the last checkpoint; the model it leaves, and its history."""
    model, X, y = problem()
    certificate = eq.certify(model, X, y, theorem="safeguarded", **options)

    def progress(k, loss):
        if k == crash_at:
            raise Crash

    history = eq.safeguarded_descent(
        model,
        X,
        y,
        steps,
        certificate,
        X_test=X[:3],
        y_test=y[:3],
        measure=5,
        progress=progress,
        checkpoints=checkpoints,
        every=every,
        record=record,
    )
    return model, history


def assert_same(found, whole):
    for name, value in whole[0].state_dict().items():
        assert torch.equal(found[0].state_dict()[name], value), name
    told, expected = found[1].to_dict(), whole[1].to_dict()
    del told["seconds"], expected["seconds"]
    np.testing.assert_equal(told, expected)


@pytest.mark.parametrize("readout", ["gradient", "gauss-newton"])
@pytest.mark.parametrize(("N", "slack"), [(10, 0.0), (40, 0.5)])
@pytest.mark.parametrize("family", FAMILIES)
def test_resumed_equals_uninterrupted(family, N, slack, readout, tmp_path):
    problem = lambda: instance(family, N, outputs=3)
    options = {"readout": readout, "slack": slack}
    whole = train(problem, **options)
    assert whole[1].accepted["hidden"].max() > 0
    checkpoints = Checkpoints(tmp_path)
    for at in (1, 7, 18):
        with pytest.raises(Crash):
            train(problem, checkpoints, crash_at=at, **options)
    assert_same(train(problem, checkpoints, **options), whole)
    assert_same(train(problem, checkpoints, **options), whole)  # of a finished run nothing is left to do


def test_float32_weights_and_saving_at_every_step(tmp_path):
    def problem():
        model, X, y = instance("ling2023")
        return model.float(), X.float(), y.float()

    whole = train(problem)
    checkpoints = Checkpoints(tmp_path)
    for at in range(1, STEPS, 3):
        with pytest.raises(Crash):
            train(problem, checkpoints, crash_at=at, every=1)
    assert_same(train(problem, checkpoints, every=1), whole)


def test_a_run_that_ended_at_rounding_level_goes_on_ending_there(tmp_path):
    problem = lambda: instance("ling2023")
    whole = train(problem, steps=60, eta=1.0)
    assert "rounding level" in whole[1].stopped
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(Crash):
        train(problem, checkpoints, crash_at=58, steps=60, eta=1.0)
    assert_same(train(problem, checkpoints, steps=60, eta=1.0), whole)


def test_each_step_is_recorded_once_and_whole(tmp_path):
    problem = lambda: instance("ling2023", 40)
    seen: list[dict] = []
    model, history = train(problem, record=seen.append, slack=0.5)
    assert [r["step"] for r in seen] == list(range(STEPS + 1))
    for r in seen:
        k = r["step"]
        assert r["loss"] == history.loss[k]
        assert r["plain_loss"] == history.plain_loss[k]
        assert r["promised"] == history.promised[k]
        assert r["sigma_min"] == history.sigma_min[k]
        assert r["contraction"] == history.contraction[k] < 1
        assert ("test_loss" in r) == (k in history.test_loss)
        assert ("hidden" in r) == (k > 0)
    assert seen[7]["hidden"] == history.accepted["hidden"][6]
    q = float(torch.linalg.matrix_norm(model.W.detach(), ord=2))
    assert q <= history.contraction[STEPS] <= 1.2 * q

    again: list[dict] = []
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(Crash):
        train(problem, checkpoints, crash_at=10, record=again.append, slack=0.5)
    kept = [r for r in again if r["step"] <= checkpoints.latest().step]
    train(problem, checkpoints, record=kept.append, slack=0.5)
    for r in (*seen, *kept):
        del r["seconds"]
    assert kept == seen


def test_an_interrupt_saves_the_step_it_came_at(tmp_path):
    problem = lambda: instance("ling2023")

    def interrupt(record):
        if record["step"] == 6:
            raise KeyboardInterrupt

    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(problem, checkpoints, record=interrupt, every=100)
    assert checkpoints.latest().step == 6
    assert_same(train(problem, checkpoints), train(problem))


def test_the_previous_checkpoint_serves_where_the_last_is_damaged(tmp_path):
    problem = lambda: instance("hieu2022")
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(Crash):
        train(problem, checkpoints, crash_at=18)
    last = tmp_path / "step-00000016.safetensors"
    spoilt = bytearray(last.read_bytes())
    spoilt[len(spoilt) // 2] ^= 4
    last.write_bytes(spoilt)
    with pytest.warns(CheckpointWarning, match="step-00000016.safetensors is damaged"):
        found = train(problem, checkpoints)
    assert_same(found, train(problem))


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    train(lambda: instance("ling2023"), checkpoints)
    with pytest.raises(ValueError, match="other weights"):
        train(lambda: instance("gao2022"), checkpoints)
    with pytest.raises(ValueError, match="other options"):
        train(lambda: instance("ling2023"), checkpoints, eta=0.5)
    model, X, y = instance("ling2023")
    with pytest.raises(ValueError, match="steps must be at least 23"):
        eq.safeguarded_descent(model, X, y, 10, checkpoints=checkpoints)
    with pytest.raises(ValueError, match="every"):
        eq.safeguarded_descent(model, X, y, 30, checkpoints=checkpoints, every=0)
    with pytest.raises(ValueError, match="direction='gradient'"):
        eq.safeguarded_descent(model, X, y, 30, checkpoints=checkpoints, direction=dict)


# -- kill -9 ------------------------------------------------------------------------------------------------

SCRIPT = """
from pathlib import Path
import torch
from certifiable import instance
import equipoise as eq
from equipoise.train.checkpoint import Checkpoints
out, checkpoints = Path(sys.argv[1]), Checkpoints(sys.argv[2]) if sys.argv[2] else None
model, X, y = instance("hieu2022", 40, 120, outputs=3)
certificate = eq.certify(model, X, y, theorem="safeguarded", slack=0.5)
h = eq.safeguarded_descent(model, X, y, 150, certificate, checkpoints=checkpoints, every=2)
model.save(out)
torch.tensor(h.loss).numpy().tofile(out.with_suffix(".loss"))
"""


def killed_and_resumed(tmp_path: Path, moments: Iterable[int]) -> None:
    """Killed each time it has used files of its checkpoints so often, and not the last time."""
    out, directory = tmp_path / "model.safetensors", tmp_path / "c"
    whole = start("-c", "import sys" + SCRIPT, tmp_path / "whole.safetensors", "")
    for at in (*moments, 0):
        process = start_signalled(SCRIPT, out, directory, number=signal.SIGKILL, at=at, within=directory)
        said = finish(process)
        assert process.returncode == (-signal.SIGKILL if at else 0), said
    said = finish(whole)
    assert whole.returncode == 0, said
    for name, value in load_file(tmp_path / "whole.safetensors").items():
        assert torch.equal(load_file(out)[name], value), name
    assert out.with_suffix(".loss").read_bytes() == (tmp_path / "whole.loss").read_bytes()
    assert not [p for p in directory.iterdir() if p.suffix == ".part"]
    assert Checkpoints(directory).latest().step == 150


@pytest.mark.slow  # two kills through the command line, in tests/cli/test_kill.py, are not
def test_killed_at_fifty_random_moments(tmp_path):
    draw = random.Random(1)
    killed_and_resumed(tmp_path, [draw.randrange(1, 16) for _ in range(50)])  # a save takes ten
