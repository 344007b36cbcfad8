"""kill -9 and full disks through the command line: whatever the moment, resuming ends at the same bits."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import equipoise as eq
from cli.commands import assert_same_outcome, write_flowers
from equipoise.runs import Run

LONG = ("--width", "64", "--steps", "40", "--eta", "0.05", "--no-report", "--quiet")
SOURCE = str(Path(eq.__file__).parents[1])


def start(*args: object, cwd: Path, **more) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "equipoise.cli", "fit", *map(str, args)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def finish(process: subprocess.Popen[str]) -> str:
    _, said = process.communicate()
    return said


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The run that nothing happened to; the table lies beside it."""
    at = tmp_path_factory.mktemp("whole")
    process = start(write_flowers(at / "f.csv", rows=120), *LONG, "--out", "whole", cwd=at)
    assert (finish(process), process.returncode) == ("", 0)
    return at / "whole"


def killed_and_resumed(tmp_path: Path, whole: Path, kills: int, seed: int) -> None:
    table, run, draw, killed = whole.parent / "f.csv", tmp_path / "a", random.Random(seed), 0
    for _ in range(6 * kills + 3):
        begun = (run / "run.json").exists()
        how = ("--resume", "a", "--no-report", "--quiet") if begun else (table, *LONG, "--out", "a")
        process = start(*how, cwd=tmp_path)
        if killed < kills:
            _wait_for_a_moment(process, run, draw)
            process.send_signal(signal.SIGKILL)
            killed += 1
        said = finish(process)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, said
    assert killed == kills
    assert Run.open(run).state == "finished"
    assert_same_outcome(run, whole)
    assert not [p for p in run.rglob(".*") if p.suffix == ".part"]
    assert Run.open(run).damaged() == []


def measured(run: Path) -> int:
    """The lines of its metrics."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _wait_for_a_moment(process: subprocess.Popen[str], run: Path, draw: random.Random) -> None:
    """Until a few more lines were measured, and then some milliseconds: in a step, or in a save."""
    time.sleep(draw.choice([0.0, 0.0, 1.0]))
    before, more = measured(run), draw.randrange(0, 8)
    while process.poll() is None and measured(run) < min(before + more, 35):
        time.sleep(0.002)
    time.sleep(draw.uniform(0.0, 0.03))


def test_killed_at_random_moments(tmp_path, whole):
    killed_and_resumed(tmp_path, whole, kills=2, seed=0)


@pytest.mark.slow
def test_killed_at_fifty_random_moments(tmp_path, whole):
    killed_and_resumed(tmp_path, whole, kills=50, seed=1)


def test_a_full_disk_loses_nothing(tmp_path, whole):
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))  # of metrics some, of a checkpoint none

    full = start(whole.parent / "f.csv", *LONG, "--out", "a", cwd=tmp_path, preexec_fn=small_files)
    said = finish(full)
    assert full.returncode == 1
    assert "The disk is full" in said
    assert "--resume" in said
    run = Run.open(tmp_path / "a")
    assert run.state in ("failed", "interrupted")
    assert not [p for p in run.path.rglob(".*") if p.suffix == ".part"]
    again = start("--resume", "a", "--no-report", "--quiet", cwd=tmp_path)
    assert (finish(again), again.returncode) == ("", 0)
    assert_same_outcome(tmp_path / "a", whole)


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, whole):
    process = start(whole.parent / "f.csv", *LONG[:-1], "--out", "a", cwd=tmp_path)
    while process.poll() is None and measured(tmp_path / "a") < 4:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    said = " ".join(finish(process).replace("│", " ").split())
    assert process.returncode == 130
    assert "Stopping after this step, to save it" in said
    assert "Go on with: equipoise fit --resume a" in said
    run = Run.open(tmp_path / "a")
    assert run.state == "interrupted"
    saved = run.checkpoints.latest()
    assert saved is not None
    assert saved.step == run.metrics.read()[-1]["step"]
