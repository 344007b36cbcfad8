"""Commands in a directory of their own, and one finished run that other commands look at."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from cli.commands import SMALL, call, write_flowers


@pytest.fixture
def equipoise(tmp_path, monkeypatch):
    """Commands in a directory of their own."""
    monkeypatch.chdir(tmp_path)
    return call


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> SimpleNamespace:
    """A finished run on flowers; tests that change it copy it first."""
    at = tmp_path_factory.mktemp("trained")
    table, before = write_flowers(at / "flowers.csv"), os.getcwd()
    os.chdir(at)
    try:
        result = call("fit", table, *SMALL, "--out", at / "run")
    finally:
        os.chdir(before)
    assert result.exit_code == 0, result.output
    return SimpleNamespace(path=at / "run", table=table, result=result)
