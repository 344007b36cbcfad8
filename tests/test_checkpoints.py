"""The checkpoints in docs/ are what their cards say: small, certified, accurate, and robust where proved."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

import equipoise as eq

FOLDER = Path(__file__).parent.parent / "docs" / "checkpoints"
_spec = importlib.util.spec_from_file_location("make_checkpoints", FOLDER / "make.py")
make = importlib.util.module_from_spec(_spec)
__import__("sys").modules["make_checkpoints"] = make  # where its dataclass looks for its own module
_spec.loader.exec_module(make)


def card(name):
    """(accuracy, ε, certified share) as the README has them."""
    (line,) = [
        line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith(f"| [{name}]")
    ]
    accuracy, epsilon, certified = re.search(r"\| ([\d.]+) % \| ([\d.]+) \| (\d+) % \|$", line).groups()
    return float(accuracy) / 100, float(epsilon), float(certified) / 100


def test_they_are_four_and_small():
    files = sorted(FOLDER.glob("*.safetensors"))
    assert [file.stem for file in files] == sorted(recipe.name for recipe in make.RECIPES)
    assert len(files) == 4
    assert sum(file.stat().st_size for file in FOLDER.iterdir() if file.is_file()) < 2e6


@pytest.mark.parametrize("recipe", make.RECIPES, ids=lambda r: r.name)
def test_a_checkpoint_is_what_its_card_says(recipe):
    model = eq.load(FOLDER / f"{recipe.name}.safetensors")
    X, _, new, y = recipe.rows()
    stored = eq.Certificate.load(FOLDER / f"{recipe.name}.certificate.json")
    assert stored.verify(model, X[:32]).proved  # anew, from the weights
    accuracy, epsilon, _ = card(recipe.name)
    assert epsilon == recipe.epsilon
    assert (model(new).argmax(1) == y).float().mean().item() == pytest.approx(accuracy, abs=1e-3)


@pytest.mark.parametrize("recipe", make.RECIPES, ids=lambda r: r.name)
def test_what_is_proved_of_a_row_holds_where_it_is_tried(recipe):
    """No corner of the cube around a proved row gets another class."""
    model = eq.load(FOLDER / f"{recipe.name}.safetensors")
    _, _, X, y = recipe.rows()
    X, y = X[:12], y[:12]
    proved = eq.verify_predictions(model, X, y, epsilon=recipe.epsilon, nodes=20).proved
    assert proved.sum() >= 6
    signs = torch.randn(40, *X.shape, generator=torch.Generator().manual_seed(0)).sign()
    moved = (X + recipe.epsilon * signs)[:, proved]
    assert (model(moved.flatten(0, 1)).argmax(1).reshape(40, -1) == y[proved]).all()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", make.RECIPES, ids=lambda r: r.name)
def test_the_share_that_is_certified_is_that_of_the_card(recipe):
    found = make.measured(recipe, eq.load(FOLDER / f"{recipe.name}.safetensors"))
    assert found["certified"] == pytest.approx(card(recipe.name)[2], abs=0.011)


@pytest.mark.slow
def test_one_command_makes_them_again(tmp_path):
    make.main(tmp_path)
    for recipe in make.RECIPES:
        assert eq.Certificate.load(tmp_path / f"{recipe.name}.certificate.json").proved
    assert len((tmp_path / "README.md").read_text()) == pytest.approx(
        len((FOLDER / "README.md").read_text()), abs=40
    )
