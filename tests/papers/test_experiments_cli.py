"""equipoise reproduce: lists, runs, resumes, says what is wrong."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from equipoise.cli.app import app
from equipoise.papers import catalogue

runner = CliRunner(env={"COLUMNS": "80"})


def call(*asked):
    return runner.invoke(app, ["reproduce", *map(str, asked)])


def test_the_list_names_every_experiment():
    result = call("list", "--json")
    assert result.exit_code == 0
    assert [row["key"] for row in json.loads(result.stdout)] == [e.key for e in catalogue.experiments()]
    shown = call("list").stdout  # of 80 columns
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert {e.key for e in catalogue.experiments()} <= set(shown.split())


def test_it_runs_writes_a_gallery_and_does_not_compute_twice(tmp_path):
    asked = ("kawaguchi2021.appendixB", "ling2023.theorem4", "--scale", "tiny", "--out", tmp_path)
    result = call(*asked, "--json")
    assert result.exit_code == 0, result.output
    assert {row["key"]: row["verdict"] for row in json.loads(result.stdout)} == {
        "kawaguchi2021.appendixB": "differs",
        "ling2023.theorem4": "agree",
    }
    assert (tmp_path / "index.html").exists()
    assert (tmp_path / "ling2023.theorem4" / "index.html").exists()
    units = {p: p.stat().st_mtime_ns for p in (tmp_path / "units").rglob("*.json")}
    assert units
    shown = call(*asked).stdout
    assert "agree" in shown
    assert "index.html" in shown.replace("\n", "")
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "units").rglob("*.json")} == units


def test_what_is_wrong_is_said(tmp_path):
    unknown = call("gao2022.figure1", "--out", tmp_path)
    assert unknown.exit_code == 2
    assert "gao2022.fig1" in unknown.output
    scale = call("gao2022.fig1", "--scale", "huge", "--out", tmp_path)
    assert scale.exit_code == 1
    assert "tiny, small, medium, paper" in scale.output.replace("\n", " ")
    assert not list(tmp_path.iterdir())


def test_the_data_are_listed_by_whole_names_and_damage_is_said(tmp_path):
    (tmp_path / "kmnist.npz").write_bytes(b"nothing that can be read")
    result = runner.invoke(app, ["data", "--data-dir", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "synthetic-negated-uniform" in result.stdout.split()
    (row,) = (line for line in result.stdout.splitlines() if line.split()[:1] == ["kmnist"])
    assert row.split()[1] == "damaged"
