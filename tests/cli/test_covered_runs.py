"""equipoise fit --coverage and what predict, the findings and the page then tell."""

import csv
import io
import json

import numpy as np
from scipy.stats import binom

from .commands import SMALL, call, write_flowers, write_houses


def test_a_run_with_a_coverage_predicts_sets_and_tells_them_by_class(tmp_path):
    table = write_flowers(tmp_path / "flowers.csv", 90)
    run = tmp_path / "run"
    told = call("fit", table, "--target", "species", "--coverage", 0.8, *SMALL, "--out", run)
    assert told.exit_code == 0, told.output
    assert "coverage" in told.output
    assert "80.00 % promised" in told.output
    found = json.loads((run / "findings.json").read_text())["coverage"]
    assert found["calibrating"] == 18
    assert json.loads((run / "findings.json").read_text())["scores"]["training"]["rows"] == 54
    assert {row["class"] for row in found["by class"]} == {"setosa", "versi color", "virgi,nica"}
    page = (run / "report.html").read_text()
    assert "Sets that hold the truth" in page
    assert "Nothing is promised of a class by itself." in page
    said = call("predict", run, table)
    rows = list(csv.DictReader(io.StringIO(said.stdout)))
    assert set(rows[0]) >= {"species", "set(setosa)", "set(versi color)", "p(setosa)"}
    assert {row["set(setosa)"] for row in rows} == {"True", "False"}
    answered = json.loads(call("predict", run, table, "--json").stdout)
    assert 0 <= answered["score"]["covered"] <= 1


def test_a_run_of_numbers_predicts_intervals(tmp_path):
    table = write_houses(tmp_path / "houses.csv", 60)
    run = tmp_path / "run"
    assert call("fit", table, "--coverage", 0.8, *SMALL, "--out", run).exit_code == 0
    page = (run / "report.html").read_text()
    assert "Intervals that hold the truth" in page
    assert "decided how large an interval must be" in page
    said = json.loads(call("predict", run, table, "--json").stdout)
    low, price, high = (np.array(said["answers"][n]) for n in ("price low", "price", "price high"))
    assert bool((low < price).all() and (price < high).all())
    assert binom.sf(60 * said["score"]["covered"], 60, 0.5) < 0.01
    wrong = call("fit", table, "--coverage", "90", "--out", tmp_path / "other")
    assert wrong.exit_code == 2
    assert "--coverage must be a finite number in (0, 1)" in wrong.output


def test_a_run_for_robust_answers_tells_what_is_proved_of_test_rows(tmp_path):
    table, run = write_flowers(tmp_path / "flowers.csv", 60), tmp_path / "run"
    how = ("--width", 8, "--epochs", 2, "--robust", 0.05)
    told = call("fit", table, "--target", "species", *how, "--out", run)
    assert told.exit_code == 0, told.output
    assert "near inputs" in told.output
    found = json.loads((run / "findings.json").read_text())["robust"]
    assert (found["norm"], found["epsilon"], found["rows"]) == ("l2", 0.05, 12)
    assert 0 <= found["proved"] <= found["right"] <= 1
    assert "proved to keep the right answer" in (run / "report.html").read_text()
    wrong = call("fit", table, "--target", "species", "--norm", "linf")
    assert wrong.exit_code == 2
    assert "--norm is used only with --robust" in wrong.output
