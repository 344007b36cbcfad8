"""Runs side by side: each with its own numbers, and a word where they cannot be compared."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from parsed_page import Page

from equipoise import report
from equipoise.report import comparison
from equipoise.report.reading import read
from equipoise.tasks import Run


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory) -> Page:
    target = tmp_path_factory.mktemp("compared") / "comparison.html"
    names = ("classification", "anchored", "killed")
    return Page(report.compare([runs[name] for name in names], target).read_text(encoding="utf-8"))


def test_every_run_stands_with_its_scores_losses_and_certificates(page, runs):
    assert "3 runs side by side" in page.words[""]
    for name in ("classification", "anchored"):
        found = json.loads((runs[name] / "findings.json").read_text())["scores"]["test"]["accuracy"]
        assert f"{100 * found:.1f}" in page.words["results"]
    for name in ("classification", "anchored", "killed"):
        assert name in page.words["results"]
        assert name in page.words["fig-losses"]
        assert name in page.words["guarantee"]
    assert "killed" not in page.words["fig-progress"]  # it has no score
    assert "safeguarded" in page.words["guarantee"]
    assert "this run has no certificate" in page.words["guarantee"]
    assert "killed is interrupted" in page.words[""]
    assert "not trained and tested on the same rows" in page.words[""]


def test_it_loads_nothing_and_leads_to_the_reports(page):
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in page.tags}
    links = [href for href in page.attributes("href") if not href.startswith("#")]
    assert len(links) == 3
    assert all(href.endswith("report.html") for href in links)


def test_options_that_differ_are_listed_and_no_others(runs):
    records = {name: read(runs[name]) for name in ("classification", "anchored")}
    table = {row["Option"]: (row["classification"], row["anchored"]) for row in comparison.differing(records)}
    assert table["width"] == ("64", "32")
    assert table["theorem"] == ("safeguarded", "anchored")
    assert "seed" not in table
    assert comparison.differing({"a": records["anchored"], "b": records["anchored"]}) == []


def test_the_best_is_named_where_the_rows_are_the_same(runs):
    one = read(runs["anchored"])
    found = {**one.findings, "scores": {"test": {"rows": 100, "accuracy": 0.999}}}
    better = replace(one, findings=found)
    assert comparison._lead({"a": one, "b": better}).startswith("b has the best accuracy, 99.9")
    assert "is that of a and of c" in comparison._lead({"a": better, "b": one, "c": better})
    elsewhere = replace(better, data={**one.data, "sha256": "0"})
    assert comparison._lead({"a": one, "b": elsewhere}) == ""
    assert any("same rows" in words for words in comparison._cautions({"a": one, "b": elsewhere}))
    assert comparison._cautions({"a": one, "b": better}) == []


def test_losses_of_one_kind_are_shown_as_they_are_and_others_as_shares(runs):
    one, other = read(runs["anchored"]), read(runs["classification"])
    same = comparison.losses({"a": one, "b": one}).figure.axes[0]
    assert same.get_ylabel() == "training loss"
    assert same.get_lines()[0].get_ydata().tolist() == one.history["loss"][1:]
    mixed = comparison.losses({"a": one, "b": other}).figure.axes[0]
    assert mixed.get_xlabel() == "share of the training"
    assert [line.get_ydata()[0] for line in mixed.get_lines()] == [1.0, 1.0]
    assert [line.get_xdata()[-1] for line in mixed.get_lines()] == [1.0, 1.0]


def test_runs_of_one_name_are_told_apart_and_one_run_is_not_two(runs, tmp_path):
    for place in ("here", "there"):
        shutil.copytree(runs["killed"], tmp_path / place / "killed")
    paths = [tmp_path / place / "killed" for place in ("here", "there")]
    text = report.compare(paths, tmp_path / "c.html").read_text(encoding="utf-8")
    assert all(name in text for name in ("here/killed", "there/killed"))
    with pytest.raises(ValueError, match="given twice"):
        report.compare([paths[0], paths[0]], tmp_path / "c.html")
    with pytest.raises(ValueError, match="two to 10 runs"):
        report.compare(paths[:1], tmp_path / "c.html")


def test_what_was_altered_is_said(runs, tmp_path):
    shutil.copytree(runs["anchored"], tmp_path / "altered")
    (tmp_path / "altered" / "findings.json").write_text("{}")
    assert Run(tmp_path / "altered").damaged()
    text = report.compare([runs["anchored"], tmp_path / "altered"], tmp_path / "c.html").read_text()
    assert "altered: " in text
    assert "findings.json is damaged" in text


def test_names_that_mean_harm_are_words(runs, tmp_path):
    text = report.compare([runs["hostile"], runs["anchored"]], tmp_path / "c.html").read_text()
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text
