"""A verdict follows from the numbers, by the test that is stated: what is wrong differs."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest

from equipoise.papers import catalogue
from equipoise.papers.framework.experiments import Result
from equipoise.papers.framework.units import plain
from equipoise.papers.framework.verdicts import (
    ALL_BELOW,
    BELOW,
    FALLING,
    LEVEL,
    Judgement,
    all_below,
    below,
    falling,
    impossible,
    joint,
    judged,
    standard_error,
    with_error,
)
from equipoise.papers.hieu2022.multiscale import minima

WORDS = {"paper": "p", "measured": "m", "tolerance": "t"}


def test_a_verdict_is_that_of_its_judgements():
    agree = judged("c", True, paper="p", measured="m", tolerance="t")
    differs = judged("c", False, paper="p", measured="m", tolerance="t")
    untried = impossible("c", paper="p", reason="no data")
    undecided = judged("c", None, paper="p", measured="m", tolerance="t", reason="One seed.")
    of = lambda *js, error="": Result("gao2022.x", "t", "c", {}, js, [], [], [], {}, [], 0.0, error).verdict
    assert of(agree, untried) == "agree"
    assert of(agree, undecided) == of(undecided, agree, untried) == "undecided in part"
    assert of(undecided) == of(undecided, untried) == "undecided"
    assert of(agree, differs, untried) == of(agree, undecided, differs) == "differs"
    assert of(untried) == of() == "cannot be tried here"
    assert of(agree, error="boom") == "failed"
    assert [j.verdict for j in (differs, undecided, untried)] == [
        "differs",
        "undecided",
        "cannot be tried here",
    ]
    assert undecided.reason.startswith("undecided at this size")
    assert undecided.reason.endswith("One seed.")
    assert isinstance(untried, Judgement)


def test_a_stored_verdict_of_before_is_read_in_the_words_of_today():
    for verdict, of in (("undecided", None), ("cannot be tried here", "untried")):
        made = impossible("c", paper="p", reason="r") if of else judged("c", None, **WORDS)
        stored = {**asdict(made), "verdict": "not reproducible here"}
        assert Judgement.from_dict(stored).verdict == verdict
    assert Judgement.from_dict(asdict(judged("c", True, **WORDS))).verdict == "agree"


def test_a_comparison_needs_students_t_and_is_else_undecided():
    assert below([1.0, 1.1, 1.2], [2.0, 2.1, 2.3]) is True
    assert below([2.0, 2.1, 2.3], [1.0, 1.1, 1.2]) is False
    assert below([1.0, 3.0], [1.9, 2.3]) is None  # the seeds do not agree
    assert below([1.0, 5.0], [1.1, 5.1]) is True  # paired by seed they do
    for two in ([1.0, 2.1], [1.0, 2.2]):  # t of one degree of freedom is 12.7: 1 and 1 + 2/12.7 are its edge
        assert below([0.0, 0.0], two) is None
    assert below([0.0, 0.0], [1.0, 1.16]) is True
    assert below([0.0, 0.0], [1.0, 1.18]) is None
    assert below([1.0, 1.0], [1.0, 1.0]) is None
    assert below([1.0, 1.0], [1.0 + 1e-9, 1.0 + 1e-9]) is None  # rounding
    assert below([-2.0, -2.1], [-1.0, -1.1]) is True


@pytest.mark.parametrize("other", [[9.0], [9.0, 9.1, 9.2], [math.inf], [math.inf] * 5])
def test_one_seed_decides_nothing(other):
    assert below([1.0], other) is None
    assert below(other, [1.0]) is None


@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_lost_runs_decide_where_all_of_one_side_were_lost(lost):
    """Of equal pairs, runs lost with probability p, (p(1 − p))ⁿ ≤ 4⁻ⁿ have it each way: 3.1 % of three."""
    assert below([1.0, 1.0, 1.0], [lost] * 3) is True
    assert below([lost] * 3, [9.0, 9.0, 9.0]) is False
    assert below([1.0, 1.0], [lost] * 2) is None  # 12.5 %
    assert below([lost, 1.0, 1.0], [9.0, 9.0, 9.0]) is None
    assert below([lost] * 3, [lost] * 3) is None
    assert below([1.0] * 3, [lost] * 3, level=0.03) is None


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_pairs_are_decided_at_the_level_that_is_stated(seeds):
    """The share of 4000 pairs that is decided, within four standard errors of LEVEL; half each way."""
    rng = np.random.default_rng(seeds)
    common = rng.standard_normal((4000, 1, seeds))  # what runs of one seed have in common
    said = [below(*pair) for pair in 1 + common + 0.3 * rng.standard_normal((4000, 2, seeds))]
    error = math.sqrt(LEVEL * (1 - LEVEL) / 4000)
    assert abs(1 - said.count(None) / 4000 - LEVEL) <= 4 * error
    assert abs(said.count(True) / 4000 - LEVEL / 2) <= 4 * error


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_share_of_equal_pairs_decided_is_exact(seeds):
    """P(|t| > edge) by the density of t itself, of the edge at which `below` changes its mind."""
    spread = np.arange(seeds) - (seeds - 1) / 2  # differences of mean 0
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        decided = below([0.0] * seeds, (spread + middle).tolist()) is not None
        low, high = (low, middle) if decided else (middle, high)
    edge = high / (np.std(spread, ddof=1) / math.sqrt(seeds))
    n = seeds - 1
    angles = np.linspace(0, math.atan(edge / math.sqrt(n)), 200_001)
    inside = np.trapezoid(np.cos(angles) ** (n - 1), angles)
    whole = math.sqrt(math.pi) * math.gamma(n / 2) / math.gamma((n + 1) / 2) / 2
    assert 1 - inside / whole == pytest.approx(LEVEL, abs=1e-6)


@pytest.mark.parametrize(("one", "other"), [(2, 3), (2, 5), (3, 5)])
@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
def test_the_level_holds_for_seeds_that_are_not_paired(one, other, spread):
    rng = np.random.default_rng(one + other)
    draws = zip(spread * rng.standard_normal((2000, one)), rng.standard_normal((2000, other)), strict=True)
    said = [below(a.tolist(), b.tolist()) for a, b in draws]
    assert 1 - said.count(None) / 2000 <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / 2000)


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("groups", [2, 4])
def test_the_level_holds_for_many_groups_together(groups, seeds):
    rng = np.random.default_rng(groups + seeds)
    most = LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / 1000)
    said = [falling(some) for some in 9 + 0.3 * rng.standard_normal((1000, groups, seeds))]
    assert 1 - said.count(None) / 1000 <= most
    pairs = rng.standard_normal((1000, groups, 2, seeds))
    said = [all_below([(a.tolist(), b.tolist()) for a, b in some]) for some in pairs]
    assert 1 - said.count(None) / 1000 <= most


def test_the_test_that_is_stated_is_the_one_that_is_made():
    """Seeds are paired where there are as many: unpaired, the same numbers would be undecided."""
    assert below([1.0, 5.0], [1.1, 5.1]) is True
    assert below([1.0, 5.0], [1.1, 5.1, 3.1]) is None
    for words in (BELOW, FALLING, ALL_BELOW):
        assert "Student's t, two-sided at 5 %, paired by seed where both have as many" in words
        assert "one seed decides nothing" in words


def test_means_fall():
    near = lambda *means: [[m, m + 1e-3, m - 1e-3] for m in means]
    assert falling(near(3.0, 2.0, 1.0)) is True
    assert falling(near(3.0, 3.05, 1.0)) is True  # 2 % is nothing
    assert falling(near(3.0, 3.2, 1.0)) is False
    assert falling([[3.0, 3.4], [3.1, 3.3], [1.0, 1.41]]) is True  # within the spread of its seeds
    assert falling([[3.0, 3.01], [3.5, 3.51], [1.0, 1.1]]) is False
    assert falling([[3.0, 3.4], [3.05, 3.45]]) is False  # it rises, a little but surely
    assert falling([[1.0, 3.0], [1.9, 1.9]]) is None
    assert falling([[3.0], [2.0], [1.0]]) is falling([[1.0], [2.0], [3.0]]) is None  # one seed
    for lost in (float("inf"), float("nan")):
        assert falling([[3.0, 3.1, 3.2], [lost] * 3]) is False
        assert falling([[3.0, 3.1], [lost, 1.0]]) is None
        assert falling([[lost] * 3, [1.0] * 3]) is None  # no evidence that the others are lower
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


def three(*args, **more):
    return [run(*args, **more)] * 3


def test_width_is_judged_by_the_losses():
    of = lambda narrow, wide: {"data": {"x": {"m = 1": narrow, "m = 2": wide}}}
    assert verdicts("gao2022.fig1", of(three(2.0, 0.5), three(1.0, 0.4))) == ["agree"] * 3
    assert verdicts("gao2022.fig1", of(three(1.0, 0.4), three(2.0, 0.3))) == ["differs", "agree", "agree"]
    drift = of(three(2.0, 0.5), three(1.0, 0.4, norm=0.14))
    assert verdicts("gao2022.fig1", drift) == ["agree", "agree", "differs"]
    lost = of(three(2.0, 0.5), three(1.0, 0.4, stopped="step 1"))
    assert verdicts("gao2022.fig1", lost) == ["differs", "differs", "agree"]
    single = of([run(2.0, 0.5)], [run(1.0, 0.4)])  # one seed compares nothing, and drifts or not all the same
    assert verdicts("gao2022.fig1", single) == ["undecided", "undecided", "agree"]


def test_a_lost_gamma_differs_and_says_why():
    curves = {f"γ = {g}": three(3.0 - g, 1.0 - g) for g in (0.1, 0.3, 0.5)}
    judge = lambda largest: catalogue.experiment("gao2022.fig2").judge(
        {"data": {"x": {**curves, "γ = 0.8": largest, "calm": three(1.0, 0.1)}}}
    )
    assert [j.verdict for j in judge(three(1.0, 0.1))] == ["agree"] * 3
    assert "a run that is lost or does not learn is above all" in judge(three(1.0, 0.1))[-1].tolerance
    assert judge([run(v, 0.1) for v in (2.4, 2.6, 2.5)])[-1].verdict == "undecided"  # γ = .5 ends at 2.5
    assert judge(three(2.65, 0.1))[-1].verdict == "differs"
    lost = run(1.0, 0.1, stopped="step 7: no equilibrium")
    found = judge([lost] * 3)
    assert found[-1].verdict == "differs"
    assert "step 7" in found[-1].measured
    assert "0.30/N" in found[-1].reason
    assert judge([lost, lost, run(150.0, 0.1)])[-1].verdict == "differs"  # one did not learn
    assert judge([lost, lost, run(1.0, 0.1)])[-1].verdict == "undecided"


def test_step_sizes_are_judged_by_rises():
    large, paper, small = run(200.0, 1.0), run(1.0, 0.1), run(50.0, 0.9)
    good = {"data": {"x": {"10": [large], "1": [paper], "0.1": [small]}}}
    assert verdicts("gao2022.fig3", good) == ["agree"] * 2
    wrong = {"data": {"x": {"10": [paper], "1": [large], "0.1": [small]}}}
    assert verdicts("gao2022.fig3", wrong) == ["differs"] * 2


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
    undecided = "undecided"
    assert judge(DEQ=of(0.01, 0.9)) == [undecided] * 2
    assert judge(DEQ=of(0.05, 0.06)) == ["differs"] * 2
    assert judge(**{"repeat-11": of(0.41, 0.42)}) == ["differs", "agree"]  # not in order
    single = {words: of(share) for words, share in zip(clear, (0.1, 0.3, 0.6, 0.9), strict=True)}
    assert judge(**single) == [undecided] * 2
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
    of = lambda loss, **how: {"data": "d", "runs": [run(loss, **how)]}
    judge = lambda *a, **how: verdicts("hieu2022.fig4.5", of(*a, **how))[1:]
    assert judge(bowl) == ["agree"]
    edge = np.where((x[:, None] == 1) & (x[None] == 1), -1.0, bowl)
    assert judge(edge)[0] == "differs"
    beside = (x[:, None] - 0.8) ** 2 + x[None] ** 2
    assert judge(beside)[0] == "differs"
    for loss in (bowl, edge):
        rare = catalogue.experiment("hieu2022.fig4.5").judge(of(loss, known=0.8))[1]
        assert rare.verdict == "undecided"
        assert "not found" in rare.reason
