"""Commands run in this process, and small tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from equipoise.cli.app import app
from equipoise.tasks import Run

SMALL = ("--width", "24", "--steps", "6")


def call(*args: object):
    """The result of a command: exit_code, stdout, stderr."""
    return CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": "100"})


def write_flowers(path: Path, rows: int = 45, seed: int = 0) -> Path:
    """Three classes with words for names, one of which needs quoting; columns of different scale."""
    draw = np.random.default_rng(seed)
    label = np.arange(rows) % 3
    length, width = 10 * label + draw.normal(size=rows), 0.1 * label + 0.05 * draw.normal(size=rows)
    names = ["setosa", "versi color", '"virgi,nica"']
    lines = [f"{a:.6f},{b:.6f},{names[c]}" for a, b, c in zip(length, width, label, strict=True)]
    path.write_text("\n".join(["length,width,species", *lines]) + "\n")
    return path


def write_houses(path: Path, rows: int = 40, seed: int = 0) -> Path:
    draw = np.random.default_rng(seed)
    area, age = draw.uniform(30, 200, rows), draw.uniform(0, 50, rows)
    price = 1000 * area - 500 * age + draw.normal(size=rows)
    lines = [f"{a:.4f},{b:.4f},{c:.4f}" for a, b, c in zip(area, age, price, strict=True)]
    path.write_text("\n".join(["area,age,price", *lines]) + "\n")
    return path


def assert_same_outcome(run: Path, whole: Path) -> None:
    """Two runs came to the same, bit for bit, but for the time they took."""
    one, other = Run.open(run), Run.open(whole)
    assert one.state == other.state == "finished"
    assert one.damaged() == other.damaged() == []
    assert one.status["files"] == other.status["files"]
    assert {"model.safetensors", "metrics.jsonl", "history.json"} < one.status["files"].keys()
