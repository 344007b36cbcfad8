"""equipoise sweep: trials that are runs, a choice by validation rows, a kill that loses nothing, Ray."""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
from pathlib import Path

import pytest

from equipoise.cli import sweep
from equipoise.tasks import Asked, Run, RunBusy, read
from equipoise.tasks.sweep import EARLY, Sweep
from processes import finish, start, start_signalled

from .commands import call as run

SMALL = ("sweep", "digits", "--rows", "80", "--width", "4,8", "--epochs", "2", "--uncertified")
PROGRAM = "from equipoise.cli import main; main()"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweep") / "one"
    said = run(*SMALL, "--seeds", "2", "--out", path, "--json")
    assert said.exit_code == 0, said.output
    return path, json.loads(said.stdout)


def test_trials_are_runs_and_the_best_is_chosen_by_its_validation_rows(made):
    path, said = made
    trials = said["trials"]
    assert [t["state"] for t in trials] == ["finished"] * 4
    means = {c["configuration"]: c["score"] for c in said["configurations"]}
    for number, mean in means.items():
        scores = [t["score"] for t in trials if t["configuration"] == number]
        assert mean == pytest.approx(sum(scores) / 2)
    assert said["configurations"][0]["score"] == max(means.values())
    best = Run.open(path / "best")
    width = said["configurations"][0]["options"]["width"]
    assert best.config["recipe"]["width"] == width
    assert best.data["rows"] == sum(Run.open(path / "trials/c0-s0").data[n] for n in ("rows", "test_rows"))
    assert said["best"]["part"] == "test"
    assert said["best"]["score"] == best.status["results"]["score"]


def test_the_page_shows_every_trial_and_one_picture(made):
    page = (made[0] / "sweep.html").read_text()
    assert page.count("<svg") == 1
    for trial in made[1]["trials"]:
        assert trial["trial"] in page
    assert "no\ntrial has seen a test row" in page
    assert "best/report.html" in page


def test_a_trial_can_be_reported_and_predicted_with(made):
    trial = made[0] / "trials/c0-s0"
    assert run("report", trial).exit_code == 0
    assert run("predict", trial, "digits", "--json").exit_code == 0


def test_a_finished_sweep_resumes_to_the_same(made):
    before = (made[0] / "best/model.safetensors").read_bytes()
    said = run("sweep", "--resume", made[0], "--json")
    assert json.loads(said.stdout)["best"] == made[1]["best"]
    assert (made[0] / "best/model.safetensors").read_bytes() == before


def test_a_killed_sweep_goes_on_to_the_same_result(made, tmp_path):
    path = tmp_path / "killed"
    arguments = [*SMALL, "--seeds", "2", "--out", path, "-q"]
    process = start_signalled(
        PROGRAM, *arguments, number=signal.SIGKILL, at=9, within=path / "trials", name="run.json"
    )
    finish(process)
    assert process.returncode == -signal.SIGKILL
    states = [Sweep.load(path).outcome(t)["state"] for t in Sweep.load(path).trials]
    assert 0 < states.count("finished") < 4
    said = run("sweep", "--resume", path, "--json")
    assert said.exit_code == 0, said.output
    whole = json.loads(said.stdout)
    assert [t["score"] for t in whole["trials"]] == [t["score"] for t in made[1]["trials"]]
    assert (path / "best/model.safetensors").read_bytes() == (made[0] / "best/model.safetensors").read_bytes()


def test_wrong_usage_is_said(made, tmp_path):
    assert "What is to be trained on" in run("sweep").output
    said = run("sweep", "digits", "--width", "4,x", "--out", tmp_path / "s")
    assert said.exit_code == 2
    assert "--width must be a value, several as in 256,512" in " ".join(said.output.split())
    assert run("sweep", "--resume", made[0], "--width", "3").exit_code == 2
    assert run(*SMALL, "--out", made[0]).exit_code == 2
    assert run("sweep", "digits", "--engine", "dask", "--out", tmp_path / "s").exit_code != 0
    assert "No such option: --from" in run("sweep", "digits", "--from", made[0]).output
    assert not (tmp_path / "s").exists()


def test_a_trial_that_fails_is_kept_and_the_others_go_on(tmp_path, monkeypatch):
    from equipoise.cli import training

    fit = training.fit_network

    def fails(X, y, kind, recipe, **more):
        if recipe.width == 4:
            raise ArithmeticError("no number is left")
        return fit(X, y, kind, recipe, **more)

    monkeypatch.setattr(training, "fit_network", fails)
    said = json.loads(run(*SMALL, "--out", tmp_path / "s", "--json").stdout)
    assert [t["state"] for t in said["trials"]] == ["failed", "finished"]
    assert "no number is left" in said["trials"][0]["reason"]
    assert said["best"]["options"]["width"] == 8
    none = run("sweep", "digits", "--rows", "80", "--width", "4", "--out", tmp_path / "none")
    assert none.exit_code == 1
    assert "no number is left" in none.output


def test_a_trial_that_another_process_still_holds_is_left_alone(tmp_path):
    """Such as one on a node that Ray gave up for lost."""
    asked = Sweep(tmp_path / "s", Asked.of("digits", validation=0.2, rows=80).to_dict(), {"width": "4"})
    asked.save()
    (trial,) = asked.trials
    config = {"data": asked.data, "recipe": trial.recipe.to_dict()}
    run = Run.create(asked.run_of(trial), config, read(asked.asked).provenance)
    with run.working():
        before = (run.path / "run.json").read_bytes()
        with pytest.raises(RunBusy):
            sweep._train(asked, trial)
        assert (run.path / "run.json").read_bytes() == before


def test_without_ray_the_engine_says_how_it_is_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    said = run(*SMALL, "--engine", "ray", "--out", tmp_path / "s")
    assert said.exit_code == 1
    assert "pip install 'equipoise[ray]'" in " ".join(said.output.split())
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_ray_runs_the_trials_and_stops_those_that_fall_behind(tmp_path):
    options = ["--rate", "1e-5,2e-5,3e-5,1e-2", "--rows", "200", "--epochs", "9", "--width", "16"]
    process = start("-c", PROGRAM, "sweep", "digits", *options, "--engine", "ray", "--out", tmp_path / "s")
    told = finish(process)
    assert process.returncode == 0, told
    asked = Sweep.load(tmp_path / "s")
    found = [asked.outcome(t) for t in asked.trials]
    assert found[3]["state"] == "finished"
    early = [one for one in found if one["state"] == "early"]
    assert early
    assert all(one["steps"] < 9 and one["reason"] == EARLY for one in early)
    assert Run.open(Path(tmp_path) / "s/best").config["recipe"]["rate"] == 1e-2
