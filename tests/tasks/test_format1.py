"""Runs of the first format: those that ended are read as ever, those that did not are unsealed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli.commands import call
from sklearn.datasets import load_digits

from equipoise import report, tasks
from equipoise.files import Damaged, OtherFormat
from equipoise.tasks import Run, list_runs


@pytest.fixture
def old(tmp_path, monkeypatch) -> Path:
    """Copies of the runs, which commands write reports and figures into."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(Path(__file__).parent / "format1", tmp_path / "old"))


@pytest.mark.parametrize("name", ["certified", "free"])
def test_a_network_of_a_run_that_ended_answers_as_it_did(old, name):
    run, fitted = Run.open(old / name), tasks.load(old / name)
    assert run.state == "finished"
    assert run.damaged() == run.unsealed() == []
    X, y = (a[np.random.default_rng(0).permutation(1797)[1437:]] for a in load_digits(return_X_y=True))
    right = np.mean(fitted.predict(X).astype(int) == y)
    assert right == pytest.approx(run.status["results"]["score"], abs=1 / 360)  # a tie may be rounded apart
    assert (fitted.certificate is not None) == (name == "certified")
    assert fitted.history.loss[-1] == run.status["results"]["loss"]
    assert fitted.history.seconds > 0


@pytest.mark.parametrize("name", ["certified", "free"])
def test_every_command_takes_a_run_that_ended(old, name):
    rows = load_digits().data[:3]
    np.savetxt("rows.csv", rows, delimiter=",", header=",".join(f"x{i}" for i in range(64)), comments="")
    for command in (
        ("predict", old / name, "rows.csv"),
        ("certify", old / name),
        ("diagnose", old / name),
        ("landscape", old / name, "--line", "--grid", "3"),
        ("report", old / name),
        ("fit", "--resume", old / name),
    ):
        told = call(*command)
        assert told.exit_code == 0, (command, told.output)
    page = (old / name / "report.html").read_text(encoding="utf-8")
    assert "unsealed" not in page
    assert "have been changed" not in page


def test_what_an_earlier_version_bounded_otherwise_is_said(old):
    """The floor of the loss was too low: the certificate is proved again, and says the right one."""
    told, listed = call("certify", old / "certified"), call("certify", old / "certified", "--json")
    assert "the earlier version that trained this run found floor = 4.7" in " ".join(told.stdout.split())
    before = json.loads((old / "certified" / "certificate.json").read_text())
    floors = [
        float.fromhex(c["numbers"]["floor"]["hex"]) for c in (json.loads(listed.stdout)["start"], before)
    ]
    assert floors[0] > floors[1] > 0


def test_a_change_in_a_run_that_ended_is_damage(old):
    path = old / "free" / "findings.json"
    path.write_text(path.read_text().replace('"accuracy": 0.1', '"accuracy": 0.9'))
    assert list(Run.open(old / "free").alterations()) == ["findings.json"]
    path = old / "certified" / "run.json"
    path.write_text(path.read_text().replace('"score": 0.', '"score": 1.'))
    with pytest.raises(Damaged, match="is damaged"):
        Run.open(old / "certified")


@pytest.mark.parametrize(("one", "other"), [("1", "2"), ("2", "1"), ("1", "3")])
def test_a_flipped_bit_of_the_version_is_damage(old, tmp_path, one, other):
    path = old / "free" if one == "1" else Run.create(tmp_path / "new", {}, {}).path
    text = (path / "run.json").read_text()
    (path / "run.json").write_text(text.replace(f"equipoise.run.{one}", f"equipoise.run.{other}"))
    with pytest.raises(Damaged, match="is damaged"):
        Run.open(path)


def test_a_run_that_did_not_end_is_unsealed_and_not_resumed(old):
    run, files = Run.open(old / "killed"), ["config.toml", "data.json", "metrics.jsonl"]
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    assert (run.state, run.damaged(), run.unsealed()) == ("interrupted", [], files)
    with pytest.raises(OtherFormat, match="cannot be resumed: an earlier version began it, whose unfinished"):
        run.resume()
    refused = call("fit", "--resume", run.path)
    assert refused.exit_code == 1
    assert "going on" not in refused.output
    assert "cannot be resumed" in " ".join(refused.stderr.replace("│", " ").split())  # lines are broken
    assert before == {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    page = report.write(run).read_text(encoding="utf-8")
    assert "as the run did not end: config.toml, data.json, metrics.jsonl" in page
    assert "have been changed" not in page


def test_a_list_holds_runs_of_both_formats(old):
    Run.create(old / "new", {}, {})
    listed = {run.path.name: run for run in list_runs(old)}
    assert {name: run.state for name, run in listed.items()} == {
        "certified": "finished",
        "free": "finished",
        "killed": "interrupted",
        "new": "interrupted",
    }
    assert not any(run.damaged for run in listed.values())
    assert [name for name, run in listed.items() if run.note] == ["killed"]
    told = call("runs", old, "--json")
    assert told.exit_code == 0
    notes = {Path(run["run"]).name: run["note"] for run in json.loads(told.stdout)}
    assert "unsealed" in notes["killed"]
