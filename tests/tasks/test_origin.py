"""A trained network that goes on with new rows: what is promised, what it keeps, what is refused."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from cli.commands import assert_same_outcome, call

from equipoise.cli.watching import Watch
from equipoise.data.errors import DataError
from equipoise.estimators import EquilibriumClassifier, EquilibriumRegressor
from equipoise.recipe import Recipe
from equipoise.tasks import load, save
from equipoise.tasks.fitting import fit
from equipoise.tasks.origin import Origin

QUICK = {"epochs": 4, "width": 16}


def rows(N, shift=0.0, seed=0):
    X = np.random.default_rng(seed).normal(size=(N, 3))
    return X, np.where(X[:, 0] * X[:, 1] + shift > 0, "yes", "no")


@pytest.fixture(scope="module")
def first():
    return fit(*rows(80), "classification", Recipe(**QUICK))


def continued(first, recipe=None):
    origin = Origin(first.model, first.preparation)
    return origin, origin.continued(recipe or Recipe(epochs=4), first.recipe)


def test_what_goes_on_is_anchored_at_the_network_and_its_readout_of_the_new_rows(first, tmp_path):
    X, y = rows(50, 0.4, seed=1)
    before = {name: t.clone() for name, t in first.model.state_dict().items()}
    origin, recipe = continued(first)
    found = fit(X, y, "classification", recipe, origin=origin)
    assert found.certificate.proved
    assert found.history.anchored["F_end"][1] <= found.certificate.constants["F_start"]
    assert found.recipe.width == 16
    assert found.recipe.rate == pytest.approx(0.2 * first.recipe.rate)
    assert found.preparation.mean is first.preparation.mean
    assert all(torch.equal(t, before[name]) for name, t in first.model.state_dict().items())
    assert not torch.equal(found.model.W, first.model.W)
    save(found, tmp_path)
    again = load(tmp_path)
    assert torch.equal(again.start().W, first.model.W)
    assert again.certificate.verify(again.start(), *again.training(X, y)).proved
    assert (again.predict(X) == found.predict(X)).all()


@pytest.mark.parametrize(
    ("X", "y", "kind", "words"),
    [
        (rows(20)[0][:, :2], rows(20)[1], "classification", "3 columns. Got 2 columns"),
        (rows(20)[0], np.arange(20.0), "regression", "kind trained on, classification. Got regression"),
        (rows(20)[0], ["no", "perhaps"] * 10, "classification", "Got 'perhaps'"),
    ],
)
def test_other_rows_are_refused_in_words(first, X, y, kind, words):
    origin, recipe = continued(first)
    with pytest.raises(DataError, match=words):
        fit(X, y, kind, recipe, origin=origin)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 17}, "width is that of the network to begin from, 16. Got 17"),
        ({"model": "monotone"}, "model is that of the network to begin from, gaussian-relu"),
        ({"loss": "hinge"}, "loss is that of the network"),
        ({"theorem": "safeguarded"}, "by theorem anchored or without one"),
    ],
)
def test_another_network_is_refused(first, options, words):
    with pytest.raises(ValueError, match=words):
        continued(first, Recipe(**options))


def table(path, N, shift=0.0, seed=0):
    X, y = rows(N, shift, seed)
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(word=np.where(X[:, 2] > 0, "up", "down"), out=y)
    frame.to_csv(path, index=False)
    return frame


def test_a_run_goes_on_from_another_and_needs_it_no_more(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table("old.csv", 80)
    table("new.csv", 50, 0.4, seed=1)
    few = ("--epochs", "2", "--no-report")
    assert call("fit", "old.csv", *few, "--width", "16", "--out", "one").exit_code == 0
    said = call("fit", "new.csv", "--from", "one", *few, "--out", "two")
    assert said.exit_code == 0, said.output
    refused = call("fit", "--resume", "two", "--from", "one")
    assert refused.exit_code == 2
    assert "--from" in refused.output
    table("new.csv", 50, 0.4, seed=1).rename(columns={"c": "d"}).to_csv("other.csv", index=False)
    refused = call("fit", "other.csv", "--from", "one")
    assert refused.exit_code == 3
    assert "Missing: 'c'" in refused.output
    shutil.rmtree("one")
    assert call("certify", "two").exit_code == 0
    assert call("predict", "two", "new.csv").exit_code == 0
    (tmp_path / "two" / "origin.safetensors").unlink()
    damaged = call("certify", "two")
    assert damaged.exit_code == 5
    assert "origin.safetensors" in damaged.output


def test_a_run_that_goes_on_from_another_is_resumed_without_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table("old.csv", 80)
    table("new.csv", 50, 0.4, seed=1)
    few = ("--epochs", "4", "--no-report")
    assert call("fit", "old.csv", *few, "--width", "16", "--out", "one").exit_code == 0
    assert call("fit", "new.csv", "--from", "one", *few, "--out", "whole").exit_code == 0
    original = Watch.record

    def record(self, measured):
        self.interrupted = measured["epoch"] == 2
        original(self, measured)

    monkeypatch.setattr(Watch, "record", record)
    assert call("fit", "new.csv", "--from", "one", *few, "--out", "part").exit_code == 130
    monkeypatch.setattr(Watch, "record", original)
    shutil.rmtree("one")
    said = call("fit", "--resume", "part", "--no-report")
    assert said.exit_code == 0, said.output
    assert_same_outcome(tmp_path / "part", tmp_path / "whole")


def test_estimators_are_tuned_on_new_rows():
    X, y = rows(60)
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(word=np.where(X[:, 2] > 0, "up", "down"))
    made = EquilibriumClassifier(random_state=0, **QUICK).fit(frame, y)
    before = made.model_.W.detach().clone()
    made.fine_tune(frame[::-1], y[::-1])
    assert made.certificate_.proved
    assert torch.equal(made.fitted_.start().W, before)
    assert set(made.predict(frame)) <= {"yes", "no"}
    with pytest.raises(ValueError, match="Got maybe"):
        made.fine_tune(frame, ["maybe"] * 60)
    with pytest.raises(DataError, match="word"):
        made.fine_tune(frame.drop(columns="word"), y)
    numbers = EquilibriumRegressor(random_state=0, **QUICK).fit(X, X[:, 0]).fine_tune(X + 0.1, X[:, 0])
    assert numbers.certificate_.proved
