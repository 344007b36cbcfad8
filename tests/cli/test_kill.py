"""kill -9 and full disks through the command line: whatever the moment, resuming ends at the same bits."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from cli.commands import assert_same_outcome, call, write_flowers
from equipoise.tasks import Run
from processes import finish, small_files, start_signalled

LONG = ("--width", "64", "--steps", "40", "--eta", "0.05", "--no-report", "--quiet")
FIT = "from equipoise.cli.app import main\nsys.argv.insert(1, 'fit')\nmain()\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The run that nothing happened to; the table lies beside it."""
    at = tmp_path_factory.mktemp("whole")
    result = call("fit", write_flowers(at / "f.csv", rows=120), *LONG, "--out", at / "whole")
    assert result.exit_code == 0, result.output
    return at / "whole"


def resumed(run: Path, monkeypatch) -> None:
    """Resumed in this process, where it is looked for by its name."""
    monkeypatch.chdir(run.parent)
    result = call("fit", "--resume", run.name, "--no-report", "--quiet")
    assert result.exit_code == 0, result.output


def begun(run: Path) -> bool:
    """Whether there is a run to resume; if not, the directory is free for a new one."""
    try:
        return bool(Run.open(run).path)
    except FileNotFoundError:
        return False


def killed_and_resumed(run: Path, whole: Path, moments: Iterable[int], monkeypatch) -> None:
    again, anew = ("--resume", "a", *LONG[-2:]), (whole.parent / "f.csv", *LONG, "--out", "a")
    for at in moments:
        how = again if begun(run) else anew
        process = start_signalled(FIT, *how, number=signal.SIGKILL, at=at, within=run, cwd=run.parent)
        said = finish(process)
        assert process.returncode == -signal.SIGKILL, said
    resumed(run, monkeypatch)
    assert Run.open(run).state == "finished"
    assert_same_outcome(run, whole)
    assert not [p for p in run.rglob(".*") if p.suffix == ".part"]
    assert Run.open(run).damaged() == []


def test_killed_and_killed_again_when_resumed(tmp_path, whole, monkeypatch):
    """First while a step is written down, then while a file is put in place of another."""
    killed_and_resumed(tmp_path / "a", whole, (61, 24), monkeypatch)


@pytest.mark.slow
def test_killed_at_every_use_of_a_file_before_the_first_step(tmp_path, whole, monkeypatch):
    """Each kill leaves a directory in which the same command begins again, or a run that is resumed."""
    killed_and_resumed(tmp_path / "a", whole, (*range(1, 16), 61), monkeypatch)


@pytest.mark.slow
def test_killed_at_fifty_random_moments(tmp_path, whole, monkeypatch):
    draw = random.Random(1)
    for number in range(5):
        (tmp_path / str(number)).mkdir()
        moments = (draw.randrange(1, 150), *(draw.randrange(1, 25) for _ in range(9)))
        killed_and_resumed(tmp_path / str(number) / "a", whole, moments, monkeypatch)


def test_a_full_disk_loses_nothing(tmp_path, whole, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with small_files(12_000):  # of metrics some, of a checkpoint none
        full = call("fit", whole.parent / "f.csv", *LONG, "--out", "a")
    assert full.exit_code == 1
    assert "The disk is full" in full.stderr
    assert "--resume" in full.stderr
    run = Run.open(tmp_path / "a")
    assert run.state in ("failed", "interrupted")
    assert not [p for p in run.path.rglob(".*") if p.suffix == ".part"]
    resumed(run.path, monkeypatch)
    assert_same_outcome(tmp_path / "a", whole)


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGHUP, signal.SIGTERM))],
)
def test_a_wish_to_stop_saves_and_says_how_to_go_on(tmp_path, whole, number):
    process = start_signalled(
        *(FIT, whole.parent / "f.csv", *LONG[:-1], "--out", "a"),
        number=number, at=5, within=tmp_path / "a", name="metrics.jsonl", cwd=tmp_path,
    )  # fmt: skip
    said = " ".join(finish(process).replace("│", " ").split())
    assert process.returncode == 130
    assert ("Stopping after this step, to save it" in said) == (
        number != signal.SIGHUP
    )  # the terminal is gone
    assert "Go on with: equipoise fit --resume a" in said
    run = Run.open(tmp_path / "a")
    assert run.state == "interrupted"
    saved = run.checkpoints.latest()
    assert saved is not None
    assert saved.step == run.metrics.read()[-1]["step"]
