"""The page of a run under way: it is written seldom, says that the run goes on, and loads itself again."""

from __future__ import annotations

import shutil

import pytest
from parsed_page import Page

from equipoise import report
from equipoise.report import following
from equipoise.report.following import FIRST, SHARE, Following, left_behind
from equipoise.tasks import Run


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("cost", [0.001, 0.5, 3.0])
def test_pages_cost_a_small_share_of_the_time(monkeypatch, tmp_path, cost):
    clock, written = Clock(), []

    def write(run):
        written.append(clock.now)
        clock.now += cost

    monkeypatch.setattr(following, "write", write)
    follow = Following(Run(tmp_path), clock)
    while clock.now < 3000:
        clock.now += 0.01
        follow()
    assert written[0] == pytest.approx(FIRST, abs=0.02)
    assert len(written) * cost <= SHARE * 3000 + cost
    assert (
        len(written) * (cost / SHARE + cost + 0.02) >= 3000 - FIRST - cost / SHARE - 1
    )  # no seldomer than that


def test_a_page_that_cannot_be_written_ends_no_training(monkeypatch, tmp_path):
    clock = Clock()

    def write(run):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(following, "write", write)
    follow = Following(Run(tmp_path), clock)
    clock.now = FIRST
    follow()


@pytest.fixture
def under_way(runs, tmp_path) -> Run:
    run = Run(shutil.copytree(runs["killed"], tmp_path / "run"))
    run.metrics.append({"epoch": 9, "loss": 2.0, "test_accuracy": 0.75})
    return run


def test_a_run_under_way_says_so_and_loads_itself_again(under_way):
    with under_way.working():
        text = report.write(under_way).read_text(encoding="utf-8")
    page = Page(text)
    assert "Still running" in page.words[""]
    assert "is being trained" in page.words[""]
    assert "Accuracy so far" in page.words[""]
    assert "75.0" in page.words[""]
    assert "without a guarantee" not in page.words[""]
    assert "The run is still under way" in page.words["guarantee"]
    assert ("meta", {"http-equiv": "refresh", "content": "5"}) in page.tags
    assert left_behind(under_way.path / "report.html")


def test_a_page_of_a_run_that_ended_stays_as_it_is(under_way, runs):
    text = report.write(under_way).read_text(encoding="utf-8")  # nobody works in it: it was killed
    assert "Interrupted" in text
    assert 'http-equiv="refresh"' not in text
    assert not left_behind(under_way.path / "report.html")
    assert not left_behind(under_way.path / "absent.html")
