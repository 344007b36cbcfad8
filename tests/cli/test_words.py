"""The command line speaks of itself: its options by their own names, each explained by a sentence."""

from __future__ import annotations

import dataclasses
import re

import pytest
import typer
from typer.testing import CliRunner

from equipoise.cli.app import app
from equipoise.recipe import Recipe

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained_by_a_sentence(name):
    for parameter in COMMANDS[name].params:
        words = parameter.help or ""
        where = f"{name} {parameter.name}: {words!r}"
        assert re.fullmatch(r".{8,}\.", words, re.DOTALL), where
        assert not re.search(r"^(Of|Where|Which) |\w+=", words), where


@pytest.mark.parametrize(
    "wrong",
    [
        "--sigma-w2 0.5",
        "--batch-size 0",
        "--eta 0.5 --epochs 3",
        "--uncertified --theorem anchored",
        "--model linear --width 5",
        "--gamma 0.5",
        "--resume nowhere --class-weight balanced",
    ],
)
def test_a_wrong_option_is_called_as_it_was_typed(wrong):
    data = [] if "--resume" in wrong else ["digits"]
    found = CliRunner().invoke(app, ["fit", *data, *wrong.split()], env={"COLUMNS": "200"})
    assert found.exit_code == 2
    told = found.output.partition("equipoise fit --help")[0]
    options = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Recipe)]
    assert any(option in told for option in options)
    for field in dataclasses.fields(Recipe):
        assert not re.search(rf"(?<![\w-]){field.name} (must|instead|as well)|{field.name}=", told), told
