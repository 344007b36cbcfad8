"""A verdict follows from the numbers, by the test that is stated: what is wrong differs."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.papers import catalogue
from equipoise.papers.experiments import Result, plain
from equipoise.papers.hieu2022_multiscale import minima
from equipoise.papers.verdicts import (
    BELOW,
    FALLING,
    Judgement,
    below,
    falling,
    impossible,
    joint,
    judged,
    standard_error,
    with_error,
)


def test_a_verdict_is_that_of_its_judgements():
    agree = judged("c", True, paper="p", measured="m", tolerance="t")
    differs = judged("c", False, paper="p", measured="m", tolerance="t")
    untried = impossible("c", paper="p", reason="no data")
    undecided = judged("c", None, paper="p", measured="m", tolerance="t", reason="One seed.")
    of = lambda *js, error="": Result("gao2022.x", "t", "c", {}, js, [], [], [], {}, [], 0.0, error).verdict
    assert of(agree, untried) == "agree"
    assert of(agree, undecided) == of(undecided, agree, untried) == "not reproducible here"
    assert of(agree, differs, untried) == of(agree, undecided, differs) == "differs"
    assert of(untried) == of(undecided) == of() == "not reproducible here"
    assert of(agree, error="boom") == "failed"
    assert differs.verdict == "differs"
    assert undecided.verdict == untried.verdict == "not reproducible here"
    assert [j.undecided for j in (agree, differs, untried, undecided)] == [False, False, False, True]
    assert undecided.reason.startswith("undecided at this size")
    assert undecided.reason.endswith("One seed.")
    assert isinstance(untried, Judgement)


def test_a_comparison_needs_two_standard_errors_and_is_else_undecided():
    assert below([1.0, 1.1, 1.2], [2.0, 2.1, 2.3]) is True
    assert below([2.0, 2.1, 2.3], [1.0, 1.1, 1.2]) is False
    assert below([1.0, 3.0], [1.9, 2.3]) is None  # the seeds do not agree
    assert below([1.0, 5.0], [1.1, 5.1]) is True  # paired by seed they do
    assert below([1.0], [1.04]) is None  # one seed: within 5 %
    assert below([1.0], [1.06]) is True
    assert below([1.0], [1.06], margin=0.1) is None
    assert below([1.0, 1.0], [1.0, 1.0]) is None
    assert below([1.0, 1.0], [1.0 + 1e-9, 1.0 + 1e-9]) is None  # rounding
    assert below([1.0], [1.2, 1.3, 1.4]) is True
    assert below([1.15], [1.2, 1.3, 1.4]) is None  # one seed is taken to spread like the others
    assert below([-2.0], [-1.0]) is True
    for lost in (float("inf"), float("nan")):
        assert below([1.0], [lost]) is True
        assert below([lost, 1.0], [9.0, 9.0]) is False
        assert below([lost], [lost]) is None


def test_the_test_that_is_stated_is_the_one_that_is_made():
    """Seeds are paired where there are as many: unpaired, the same numbers would be undecided."""
    assert below([1.0, 5.0], [1.1, 5.1]) is True
    assert below([1.0, 5.0], [1.1, 5.1, 3.1]) is None
    for words in (BELOW, FALLING):
        assert "standard errors of the difference, paired by seed where both have as many" in words


def test_noise_is_seldom_a_verdict():
    rng = np.random.default_rng(0)
    said = [below(*(1 + 0.3 * rng.standard_normal((2, 3)))) for _ in range(2000)]
    assert said.count(None) > 0.75 * 2000  # two standard errors of three pairs: t with two degrees of freedom
    said = [falling(1 + 0.3 * rng.standard_normal((4, 3))) for _ in range(2000)]
    assert said.count(True) < 0.1 * 2000


def test_means_fall():
    assert falling([[3.0], [2.0], [1.0]]) is True
    assert falling([[3.0], [3.05], [1.0]]) is True  # 2 % is nothing
    assert falling([[3.0], [3.2], [1.0]]) is False
    assert falling([[3.0, 3.4], [3.1, 3.3], [1.0, 1.1]]) is True  # within the spread of its seeds
    assert falling([[3.0, 3.01], [3.5, 3.51], [1.0, 1.1]]) is False
    assert falling([[3.0, 3.4], [3.05, 3.45]]) is False  # it rises, a little but surely
    assert falling([[1.0, 3.0], [1.9, 1.9]]) is None
    assert falling([[1.0], [1.015], [1.03], [0.9999]]) is None
    for lost in (float("inf"), float("nan")):
        assert falling([[3.0, 3.1], [lost, 1.0]]) is False
        assert falling([[lost], [1.0]]) is None  # a lost run is no evidence that the others are lower
        assert falling([[3.0, lost], [2.0, 2.1], [1.0, 1.1]]) is None


def test_one_value_has_no_error_and_adds_nothing_to_a_tolerance():
    assert standard_error([1.0, 3.0]) == pytest.approx(1.0)
    assert standard_error([1.0, 2.0, 3.0]) == pytest.approx(3**-0.5)
    assert standard_error([5.0]) is None
    assert joint(3.0, 4.0) == 5.0
    assert joint(None, 4.0) == 4.0
    assert joint(None, None) == 0.0
    assert with_error(97.234, 0.06, ".2f") == "97.23 ± 0.06"
    assert with_error(97.234, None) == "97.2 (one seed)"


def verdicts(key, measured):
    return [j.verdict for j in catalogue.experiment(key).judge(measured)]


def run(loss, test, norm=0.1, stopped=""):
    return {
        "loss": [100.0, loss],
        "test_loss": [1.0, test],
        "norm": [0.1, norm],
        "at": [0, 1],
        "N": 10,
        "stopped": stopped,
        "stable_step": 0.3,
    }


def test_width_is_judged_by_the_losses():
    good = {"data": {"x": {"m = 1": [run(2.0, 0.5)], "m = 2": [run(1.0, 0.4)]}}}
    assert verdicts("gao2022.fig1", good) == ["agree"] * 3
    worse = {"data": {"x": {"m = 1": [run(1.0, 0.4)], "m = 2": [run(2.0, 0.3)]}}}
    assert verdicts("gao2022.fig1", worse) == ["differs", "agree", "agree"]
    drift = {"data": {"x": {"m = 1": [run(2.0, 0.5)], "m = 2": [run(1.0, 0.4, norm=0.14)]}}}
    assert verdicts("gao2022.fig1", drift) == ["agree", "agree", "differs"]
    lost = {"data": {"x": {"m = 1": [run(2.0, 0.5)], "m = 2": [run(1.0, 0.4, stopped="step 1")]}}}
    assert verdicts("gao2022.fig1", lost) == ["differs", "differs", "agree"]


def test_a_lost_gamma_differs_and_says_why():
    curves = {f"γ = {g}": [run(3.0 - g, 1.0 - g)] for g in (0.1, 0.3, 0.5)}
    kept = {**curves, "γ = 0.8": [run(1.0, 0.1)], "calm": [run(1.0, 0.1)]}
    assert verdicts("gao2022.fig2", {"data": {"x": kept}}) == ["agree"] * 3
    lost = {**kept, "γ = 0.8": [run(1.0, 0.1, stopped="step 7: no equilibrium")]}
    found = catalogue.experiment("gao2022.fig2").judge({"data": {"x": kept}})
    assert "below the least of γ = .1, .3 and .5" in found[-1].tolerance
    near = {**kept, "γ = 0.8": [run(2.4, 0.1)]}  # the least is 2.5, and 5 % decide
    assert verdicts("gao2022.fig2", {"data": {"x": near}})[-1] == "not reproducible here"
    above = {**kept, "γ = 0.8": [run(2.65, 0.1)]}
    assert verdicts("gao2022.fig2", {"data": {"x": above}})[-1] == "differs"
    found = catalogue.experiment("gao2022.fig2").judge({"data": {"x": lost}})
    assert found[-1].verdict == "differs"
    assert "step 7" in found[-1].measured
    assert "0.30/N" in found[-1].reason


def test_step_sizes_are_judged_by_rises():
    large, paper, small = run(200.0, 1.0), run(1.0, 0.1), run(50.0, 0.9)
    good = {"data": {"x": {"10": [large], "1": [paper], "0.1": [small]}}}
    assert verdicts("gao2022.fig3", good) == ["agree"] * 3
    assert verdicts("gao2022.fig3", {"data": {"x": {"10": [paper], "1": [large], "0.1": [small]}}}) == [
        "differs",
        "differs",
        "differs",
    ]


def test_basins_are_judged_with_their_errors():
    of = lambda *shares, known=1.0: [
        {"slices": [{"share": s, "known": known, "open": 1 - known}]} for s in shares
    ]  # a seed each
    clear = {
        "repeat-6": of(0.1, 0.11),
        "repeat-11": of(0.2, 0.21),
        "repeat-18": of(0.3, 0.31),
        "DEQ": of(0.4, 0.41),
    }
    assert verdicts("hieu2022.fig4.4", {"models": clear}) == ["agree", "agree"]
    judge = lambda **models: verdicts("hieu2022.fig4.4", {"models": {**clear, **models}})
    undecided = "not reproducible here"
    assert judge(DEQ=of(0.01, 0.9)) == [undecided] * 2
    assert judge(DEQ=of(0.05, 0.06)) == ["differs"] * 2
    assert judge(**{"repeat-11": of(0.41, 0.42)}) == ["differs", "agree"]  # not in order
    single = {words: of(share) for words, share in zip(clear, (0.1, 0.3, 0.6, 0.9), strict=True)}
    assert judge(**single) == ["agree", "agree"]
    assert judge(**{words: of(0.5) for words in clear}) == [undecided] * 2
    assert judge(DEQ=of(0.05, 0.06, known=0.5)) == [undecided] * 2  # the points that are open decide
    assert judge(DEQ=of(0.05, 0.06, known=0.98)) == ["differs"] * 2


def test_the_minima_of_a_slice_are_counted():
    x = np.linspace(-1, 1, 11)
    bowl = x[:, None] ** 2 + x[None] ** 2
    assert minima(bowl) == [(5, 5)]
    assert len(minima(np.cos(2 * np.pi * x)[:, None] + x[None] ** 2)) == 2
    assert minima(x[:, None] + x[None]) == [(0, 0)]  # lowest at a corner
    assert minima(x[:, None] ** 2 - x[None]) == [(5, 10)]  # at an edge
    assert minima(np.full((3, 3), np.nan)) == []
    holed = np.where(bowl < 0.05, np.nan, bowl)
    assert (5, 5) not in minima(holed)
    run = lambda loss, known=1.0, share=0.5: {
        "axis": x.tolist(), "loss": plain(loss), "known": known, "share": share,
    }  # fmt: skip
    of = lambda loss, tied=0.4, **how: {"data": "d", "runs": [run(loss, **how)], "tied": [{"share": tied}]}
    judge = lambda *a, **how: verdicts("hieu2022.fig4.5", of(*a, **how))[1:]
    assert judge(bowl) == ["agree", "agree"]
    edge = np.where((x[:, None] == 1) & (x[None] == 1), -1.0, bowl)
    assert judge(edge)[0] == "differs"
    beside = (x[:, None] - 0.8) ** 2 + x[None] ** 2
    assert judge(beside)[0] == "differs"
    assert judge(bowl, tied=0.6)[1] == "differs"
    assert judge(bowl, tied=0.51)[1] == "not reproducible here"
    assert judge(bowl, tied=0.6, known=0.8)[1] == "not reproducible here"  # what is open may be low
    for loss in (bowl, edge):
        rare = catalogue.experiment("hieu2022.fig4.5").judge(of(loss, known=0.8))[1]
        assert rare.verdict == "not reproducible here"
        assert "not found" in rare.reason
