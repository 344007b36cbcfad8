"""The optimisation view of [xie2021]: every verdict comes out the other way with other numbers."""

from __future__ import annotations

import pytest

from equipoise.papers.framework.page import Page
from equipoise.papers.xie2021 import optimisation as xie2021


def verdicts(judge, measured):
    return [j.verdict for j in judge(measured)]


def test_a_minimiser_must_be_one():
    row = lambda off=1e-9: {"off": off, "rises": 1, "gap": [1.0, 0.0]}
    both = lambda **how: {"one layer": row(**how), "two layers, α = .5": row()}
    assert verdicts(xie2021._judge_objective, both()) == ["agree"] * 2
    assert verdicts(xie2021._judge_objective, both(off=1e-3)) == ["differs", "agree"]


@pytest.mark.parametrize(("power", "verdict"), [(1.0, "agree"), (0.5, "differs"), (2.0, "agree")])
def test_the_limit_must_be_reached(power, verdict):
    """At what rate the paper does not say: .003^½ = .05 is not near it."""
    alphas = [0.3, 0.1, 0.03, 0.01, 0.003]
    of = lambda *off: verdicts(xie2021._judge_theorem3, {"alphas": alphas, "off": off})
    assert of(*(a**power for a in alphas)) == [verdict]
    assert of(0.1, 0.01, 0.02, 0.005, 0.001) == ["differs"]  # it turns back on the way


def test_sam_must_come_ever_nearer(tmp_path, monkeypatch):
    of = lambda *sam: {"counts": [20, 100, 1000], "SAM": list(sam), "plain": [1.0, 1.0, 1.0]}
    assert verdicts(xie2021._judge_sam, of(0.5, 0.1, 0.01)) == ["agree"]  # however slowly
    assert verdicts(xie2021._judge_sam, of(0.9, 0.8, 0.7)) == ["differs"]
    assert verdicts(xie2021._judge_sam, of(0.1, 0.2, 0.01)) == ["differs"]
    monkeypatch.setattr(Page, "figure", lambda *args: None)
    page = Page(tmp_path)
    xie2021._draw_sam(of(0.5, 0.1, 0.01), page)
    assert "0.5 away after 20 steps" in page.notes[0]
    assert "the power -1.00" in page.notes[0]


def test_rounding_is_not_drawn(tmp_path, monkeypatch):
    kept = {}
    monkeypatch.setattr(Page, "figure", lambda page, name, figure, caption: kept.update({caption: figure}))
    row = lambda *gap: {"off": 0.0, "rises": 0, "gap": list(gap)}
    measured = {"one layer": row(1.0, 1e-9, -8e-14, 1e-16), "two layers, α = .5": row(1.0, 0.1, 0.01, 1e-3)}
    xie2021._draw_objective(measured, Page(tmp_path))
    ((caption, figure),) = kept.items()
    one, two = (line.get_ydata().tolist() for line in figure.axes[0].get_lines())
    assert one == [1.0, 1e-9]
    assert two == [1.0, 0.1, 0.01, 1e-3]
    assert "-8.0e-14" in caption
