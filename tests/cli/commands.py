"""Commands run in this process, and small tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from equipoise.cli.app import app
from equipoise.runs import Run

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
    for name in ("certificate.json", "wellposed.json"):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name
    for name in ("model.safetensors", "preparation.safetensors"):  # whose headers are in no fixed order
        one, other = load_file(run / name), load_file(whole / name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), name
    for path in (run, whole):
        assert Run.open(path).state == "finished"
    one, other = (Run.open(path).metrics.read() for path in (run, whole))
    for record in (*one, *other):
        del record["seconds"]
    np.testing.assert_equal(one, other)
    one, other = (json.loads((path / "history.json").read_text()) for path in (run, whole))
    del one["seconds"], other["seconds"]
    assert one == other
