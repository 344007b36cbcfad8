"""Units of work: computed once, resumed, and never mistaken for one another."""

from __future__ import annotations

import json

import pytest

from equipoise.papers import catalogue
from equipoise.papers.experiments import Context, Experiment, Settings
from equipoise.papers.runner import run_one

TINY = Settings("tiny", ("digits",))


def test_a_unit_is_computed_once_and_found_again(tmp_path):
    calls = []

    def compute(progress):
        calls.append(1)
        return {"loss": [1.0, float("inf")], "n": 3}

    first = Context(TINY, tmp_path).unit("group", "name", {"width": 3}, compute)
    again = Context(TINY, tmp_path)
    assert again.unit("group", "name", {"width": 3}, compute) == first == {"loss": [1.0, None], "n": 3}
    assert len(calls) == 1
    assert again.seconds >= 0
    assert len(again.units) == 1
    again.unit("group", "name", {"width": 4}, compute)  # other settings are another unit
    assert len(calls) == 2


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda t: t[: len(t) // 2], lambda t: "", lambda t: "[]", lambda t: "{}"),
        lambda t: t.replace('"result": {"n": 1}', '"result": {"m": 1}'),
        lambda t: t.replace('"result": {"n": 1}', '"result": null').replace('"sha256"', '"other"'),
    ],
)
def test_a_damaged_unit_is_computed_again(tmp_path, damage):
    compute = lambda progress: {"n": 1}
    context = Context(TINY, tmp_path)
    context.unit("group", "name", {}, compute)
    (path,) = (tmp_path / "units" / "group").iterdir()
    path.write_text(damage(path.read_text()))
    assert Context(TINY, tmp_path).unit("group", "name", {}, compute) == {"n": 1}
    assert json.loads(path.read_text())["result"] == {"n": 1}


def test_a_unit_of_the_time_before_digests_is_read(tmp_path):
    Context(TINY, tmp_path).unit("group", "name", {}, lambda progress: {"n": 1})
    (path,) = (tmp_path / "units" / "group").iterdir()
    stored = json.loads(path.read_text())
    del stored["sha256"]
    path.write_text(json.dumps(stored))
    assert Context(TINY, tmp_path).unit("group", "name", {}, lambda progress: {"n": 2}) == {"n": 1}


def test_an_interrupted_unit_leaves_nothing_and_the_rest_is_kept(tmp_path):
    done = []

    def run(context):
        context.unit("g", "first", {}, lambda progress: done.append("first") or {"n": 1})
        context.unit("g", "second", {}, stop)
        return {}

    def stop(progress):
        raise KeyboardInterrupt

    entry = Experiment("gao2022.test", "a", "b", run, lambda m: [], lambda m, p: None)
    with pytest.raises(KeyboardInterrupt):
        run_one(entry, TINY, tmp_path)
    assert [p.name.split("-")[0] for p in (tmp_path / "units" / "g").iterdir()] == ["first"]
    with pytest.raises(KeyboardInterrupt):
        run_one(entry, TINY, tmp_path)
    assert done == ["first"]


def test_units_are_found_by_the_hashes_they_always_had(tmp_path, monkeypatch):
    """Those of stored galleries: a change here would compute hours of work again."""
    monkeypatch.setattr("equipoise.papers.experiments.__version__", "0.1.0")
    context = Context(TINY, tmp_path)
    assert context.source("digits") == {"name": "digits", "files": [], "subset": None}
    context.unit("hieu2022.start", "digits", {"data": context.source("digits"), "seed": 0}, lambda p: {})
    assert context.units == ["units/hieu2022.start/digits-e05670744b1e.json"]


def test_figures_share_their_curves(tmp_path):
    small = Settings("tiny", ("digits",))
    one = run_one(catalogue.experiment("gao2022.fig1"), small, tmp_path)
    other = run_one(catalogue.experiment("gao2022.fig4"), small, tmp_path)
    assert set(one.units) == set(other.units)
