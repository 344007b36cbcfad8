"""equipoise reproduce: lists, runs, resumes, says what is wrong."""

from __future__ import annotations

import errno
import json
import os

from typer.testing import CliRunner

from equipoise.cli.app import app
from equipoise.papers import catalogue
from equipoise.papers.framework.experiments import Context, Settings

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
    for asked in (("list", "gao2022"), ("gao2022", "list")):
        some = call(*asked, "--json")
        assert [row["key"] for row in json.loads(some.stdout)] == [
            e.key for e in catalogue.experiments("gao2022")
        ]


def test_it_runs_writes_a_gallery_and_does_not_compute_twice(tmp_path):
    asked = ("kawaguchi2021.appendixB", "ling2023.theorem4", "--scale", "tiny", "--out", tmp_path)
    asked += ("--jobs", "1")  # workers have their own tests, and take long to come up
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
    for asked, said in (
        (("--scale", "huge"), "'tiny', 'small'"),
        (("--data", "digits,mnst"), "did you mean 'mnist'"),
        (("--data", ""), "no data set is called ''"),
        (("--data-dir", tmp_path / "nodir"), "must be one that exists"),
    ):
        result = call("kawaguchi2021.fig3", *asked, "--out", tmp_path)
        assert result.exit_code == 2
        assert said in result.output.replace("\n", " ")
    assert not list(tmp_path.iterdir())
    (tmp_path / "index.html").write_text("mine")
    result = call("ling2023.theorem4", "--out", tmp_path)
    assert result.exit_code == 2
    assert "is not of a gallery" in " ".join(result.output.replace("│", "").split())
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]


def test_a_full_disk_says_how_to_go_on(tmp_path, monkeypatch):
    def full(*asked, **how):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "unit"))

    monkeypatch.setattr(catalogue, "reproduce", full)
    result = call("ling2023.theorem4", "--out", tmp_path)
    assert result.exit_code == 1
    assert "The disk is full" in result.stderr
    assert "the same command continues" in " ".join(result.stderr.replace("│", "").split())
    assert "--resume" not in result.stderr


def test_what_was_not_used_is_said_on_stderr_and_on_the_page(tmp_path):
    asked = ("--scale", "tiny", "--seeds", 5, "--data", "digits", "--json", "--out", tmp_path)
    result = call("ling2023.theorem4", *asked)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    page = (tmp_path / "ling2023.theorem4" / "index.html").read_text()
    for words in ("the data digits", "the number of seeds, 5"):
        assert any(words in told for told in row["warnings"])
        assert words in " ".join(result.stderr.split())
        assert words in page


def test_data_that_cannot_be_used_are_said_in_a_sentence(tmp_path):
    """Exit code 3, no traceback, and the page of before is there still."""
    asked = ("kawaguchi2021.fig5", "--scale", "tiny", "--out", tmp_path / "out")
    assert call(*asked, "--data", "digits").exit_code == 0
    (tmp_path / "kmnist.npz").write_bytes(b"nothing that can be read")
    result = call(*asked, "--data", "kmnist", "--data-dir", tmp_path, "--quiet")
    assert result.exit_code == 3
    assert f"{tmp_path / 'kmnist.npz'}isnotan.npz" in "".join(result.stderr.split())  # of 80 columns
    assert not result.stdout
    page = (tmp_path / "out" / "kawaguchi2021.fig5" / "index.html").read_text()
    for shown in (result.output, page):
        assert "Traceback" not in shown
        assert "site-packages" not in shown
    assert "agree" in page
    assert "A later run failed" in page


def test_an_interrupt_says_what_is_stored(tmp_path, monkeypatch):
    def interrupted(what, settings, out, watcher, jobs):
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue, "reproduce", interrupted)
    first = call("gao2022.fig1", "--out", tmp_path)
    assert first.exit_code == 130
    assert "nothing is stored" in first.output
    context = Context(Settings(), tmp_path)
    for name in ("a", "b", "c"):
        context.unit("group", name, {"name": name}, lambda progress: {})
    later = call("gao2022.fig1", "--out", tmp_path)
    assert later.exit_code == 130
    words = " ".join(later.output.replace("│", "").split())
    assert "3 units of work are stored" in words
    assert "the same command goes on from there" in words


def test_the_data_are_listed_by_whole_names_and_damage_is_said(tmp_path):
    (tmp_path / "kmnist.npz").write_bytes(b"nothing that can be read")
    result = runner.invoke(app, ["data", "--data-dir", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "synthetic-negated-uniform" in result.stdout.split()
    (row,) = (line for line in result.stdout.splitlines() if line.split()[:1] == ["kmnist"])
    assert row.split()[1] == "damaged"
