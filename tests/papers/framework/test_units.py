"""Units of work: computed once, resumed, and never mistaken for one another."""

from __future__ import annotations

import json

import pytest

from equipoise.papers import catalogue
from equipoise.papers.framework import experiments
from equipoise.papers.framework.experiments import Context, Experiment, Settings
from equipoise.papers.framework.gallery import computed_again, write_page
from equipoise.papers.framework.runner import run_one

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
    again = Context(TINY, tmp_path)
    assert again.unit("group", "name", {}, compute) == {"n": 1}
    assert again.recomputed == ["group name: the file was damaged"]
    assert json.loads(path.read_text())["result"] == {"n": 1}


def test_a_unit_of_the_time_before_digests_is_read(tmp_path):
    compute = lambda progress: {"n": 1}
    Context(TINY, tmp_path).unit("group", "name", {}, compute)
    (path,) = (tmp_path / "units" / "group").iterdir()
    stored = json.loads(path.read_text())
    del stored["sha256"]
    path.write_text(json.dumps(stored | {"result": {"n": 2}}))
    assert Context(TINY, tmp_path).unit("group", "name", {}, compute) == {"n": 2}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ({"models": "old", "solve": "same"}, "its code has changed in models"),
        ({"solve": "same", "train": "gone"}, "its code has changed in models, train"),
        (None, "which code computed it was not on record"),
    ],
)
def test_numbers_of_other_code_are_not_served(tmp_path, monkeypatch, code, why):
    """A unit of before is computed again, and the result, the page and the terminal say why."""
    now = {"models": "new", "solve": "same"}
    run = lambda context: context.unit("g", "u", {}, lambda progress: {"n": len(now)})
    entry = Experiment("gao2022.test", "a", "b", run, lambda m: [], lambda m, p: None)
    monkeypatch.setattr(experiments, "code_of", lambda compute: code)
    assert run_one(entry, TINY, tmp_path).recomputed == []
    monkeypatch.setattr(experiments, "code_of", lambda compute: now)
    result = run_one(entry, TINY, tmp_path)
    assert result.recomputed == [f"g u: {why}"]
    assert computed_again(result) == [f"computed again, for {why}: g u"]
    assert f"Computed again: g u: {why}." in write_page(result, tmp_path).read_text()
    assert run_one(entry, TINY, tmp_path).recomputed == []
    monkeypatch.setattr(experiments, "code_of", lambda compute: None)
    assert run_one(entry, TINY, tmp_path).recomputed == ["g u: the source of its code cannot be read"]


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


def test_figures_share_their_curves(tmp_path):
    small = Settings("tiny", ("digits",))
    one = run_one(catalogue.experiment("gao2022.fig1"), small, tmp_path)
    other = run_one(catalogue.experiment("gao2022.fig4"), small, tmp_path)
    assert set(one.units) == set(other.units)
