"""The optimisation view of [xie2021]: every verdict comes out the other way with other numbers."""

from __future__ import annotations

import pytest

from equipoise.papers import xie2021
from equipoise.papers.page import Page


def verdicts(judge, measured):
    return [j.verdict for j in judge(measured)]


def test_a_minimiser_must_be_one_and_the_objective_fall():
    row = lambda off=1e-9, rises=0: {"off": off, "rises": rises, "gap": [1.0, 0.0]}
    both = lambda **how: {"one layer": row(**how), "two layers, α = .5": row()}
    assert verdicts(xie2021.judge_objective, both()) == ["agree"] * 4
    assert verdicts(xie2021.judge_objective, both(off=1e-3)) == ["differs", "agree", "agree", "agree"]
    assert verdicts(xie2021.judge_objective, both(rises=1)) == ["agree", "differs", "agree", "agree"]


@pytest.mark.parametrize(("power", "verdict"), [(1.0, "agree"), (0.5, "differs"), (2.0, "differs")])
def test_the_limit_must_be_reached_as_alpha(power, verdict):
    alphas = [0.3, 0.1, 0.03, 0.01, 0.003]
    assert verdicts(xie2021.judge_theorem3, {"alphas": alphas, "off": [a**power for a in alphas]}) == [
        verdict
    ]


def test_sam_must_come_nearer_and_soon():
    of = lambda *sam: {"counts": [20, 100, 1000], "SAM": list(sam), "plain": [1.0, 1.0, 1.0]}
    assert verdicts(xie2021.judge_sam, of(0.05, 0.02, 0.01)) == ["agree", "agree"]
    assert verdicts(xie2021.judge_sam, of(0.9, 0.8, 0.7)) == ["differs", "differs"]
    slow = xie2021.judge_sam(of(0.5, 0.1, 0.01))
    assert [j.verdict for j in slow] == ["agree", "differs"]
    assert "the power -1.00" in slow[1].reason
    assert not xie2021.judge_sam(of(0.05, 0.02, 0.01))[1].reason


def test_rounding_is_not_drawn(tmp_path, monkeypatch):
    kept = {}
    monkeypatch.setattr(Page, "figure", lambda page, name, figure, caption: kept.update({caption: figure}))
    row = lambda *gap: {"off": 0.0, "rises": 0, "gap": list(gap)}
    measured = {"one layer": row(1.0, 1e-9, -8e-14, 1e-16), "two layers, α = .5": row(1.0, 0.1, 0.01, 1e-3)}
    xie2021.draw_objective(measured, Page(tmp_path))
    ((caption, figure),) = kept.items()
    one, two = (line.get_ydata().tolist() for line in figure.axes[0].get_lines())
    assert one == [1.0, 1e-9]
    assert two == [1.0, 0.1, 0.01, 1e-3]
    assert "-8.0e-14" in caption
