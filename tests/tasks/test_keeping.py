"""A fitted network survives its files, and no file that was changed is believed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris

from equipoise.tasks import Recipe, fit, load, save
from equipoise.tasks.keeping import FILES

X, Y = load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def fitted():
    words = np.array(["setosa", "versicolor", "virginica"])
    return fit(X, words[Y], "classification", Recipe(width=30, steps=4), test=(X[::3], words[Y[::3]]))


@pytest.fixture
def directory(fitted, tmp_path):
    save(fitted, tmp_path / "run")
    return tmp_path / "run"


def test_everything_comes_back(fitted, directory):
    again = load(directory)
    assert np.array_equal(again.predict(X), fitted.predict(X))
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert again.certificate == fitted.certificate
    assert again.wellposed == fitted.wellposed
    assert again.recipe == fitted.recipe
    assert again.validation == fitted.validation
    assert again.stopped == fitted.stopped == ""
    then, now = fitted.history, again.history
    assert np.array_equal(now.loss, then.loss)
    assert np.array_equal(now.promised, then.promised)
    assert np.array_equal(now.accepted["verified"], then.accepted["verified"])
    assert now.accepted["verified"].dtype == bool
    assert (now.movement, now.test_accuracy, now.travelled) == (
        then.movement,
        then.test_accuracy,
        then.travelled,
    )
    assert np.isnan(now.times).all()


def test_numbers_and_other_families_come_back(tmp_path):
    found = fit(X[:, :3], X[:, 3], "regression", Recipe("linear", steps=3, dtype="float32"))
    save(found, tmp_path)
    assert np.array_equal(load(tmp_path).predict(X[:, :3]), found.predict(X[:, :3]))
    assert load(tmp_path).model.A.dtype == torch.float32


@pytest.mark.parametrize("name", [*FILES, "fitted.json"])
@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_flipped_bit_is_noticed_and_the_file_named(directory, name, where):
    content = bytearray((directory / name).read_bytes())
    at = int(where * len(content))
    while name.endswith("json") and chr(content[at]).isspace():
        at += 1  # white space between JSON's words says nothing
    content[at] ^= 1
    (directory / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        load(directory)


@pytest.mark.parametrize("name", [*FILES, "fitted.json"])
def test_a_missing_file_is_named(directory, name):
    (directory / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        load(directory)


def test_a_file_of_another_fit_is_noticed(fitted, directory, tmp_path):
    other = fit(X, Y, "classification", Recipe(width=30, steps=4, seed=1))
    save(other, tmp_path / "other")
    (directory / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or of another fit"):
        load(directory)


def test_another_format_is_refused(directory):
    (directory / "fitted.json").write_text('{"format": "equipoise.fitted.9", "sha256": ""}')
    with pytest.raises(
        ValueError, match=r"must be of format 'equipoise\.fitted\.1'. Got 'equipoise\.fitted\.9'"
    ):
        load(directory)


def test_every_file_is_strict_json(directory):
    for path in directory.glob("*.json"):
        assert "NaN" not in path.read_text()
        assert "Infinity" not in path.read_text()
