"""Commands in a directory of their own, and one finished run that other commands look at."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from once import made_once

from cli.commands import SMALL, call, write_flowers


@pytest.fixture
def equipoise(tmp_path, monkeypatch):
    """Commands in a directory of their own."""
    monkeypatch.chdir(tmp_path)
    return call


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> SimpleNamespace:
    """A finished run on flowers, made once a session; tests that change it copy it first."""
    at = made_once(tmp_path_factory, "flowers", fit_flowers)
    said = {name: (at / name).read_text(encoding="utf-8") for name in ("stdout", "stderr")}
    return SimpleNamespace(path=at / "run", table=at / "flowers.csv", result=SimpleNamespace(**said))


def fit_flowers(at: Path) -> None:
    table, before = write_flowers(at / "flowers.csv"), os.getcwd()
    os.chdir(at)
    try:
        result = call("fit", table, *SMALL, "--out", at / "run")
    finally:
        os.chdir(before)
    assert result.exit_code == 0, result.output
    for name in ("stdout", "stderr"):
        (at / name).write_text(getattr(result, name), encoding="utf-8")
