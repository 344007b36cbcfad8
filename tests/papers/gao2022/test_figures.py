"""The experiments of [gao2022]: each verdict follows from the numbers, and turns with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from equipoise.papers import catalogue
from equipoise.papers.framework.images import TwoClasses
from equipoise.papers.framework.page import Page
from equipoise.papers.gao2022.table import MOST_BETA, PRECISION, TABLE_1, _certified, _scaled

AGREE, DIFFERS, OPEN = "agree", "differs", "undecided"


def judge(key, measured):
    return catalogue.experiment(f"gao2022.{key}").judge(measured)


def verdicts(key, measured):
    return [j.verdict for j in judge(key, measured)]


def run(loss, *, test=0.5, norm=0.1, stopped="", way=()):
    return {
        "loss": [100.0, *way, loss],
        "at": [0, 1],
        "test_loss": [1.0, test],
        "norm": [0.1, norm],
        "N": 10,
        "stopped": stopped,
        "stable_step": 0.3,
    }


def seeds(*losses, **more):
    return [run(loss, **more) for loss in losses]


@pytest.mark.parametrize("key", ["fig1", "fig4"])
def test_width_is_judged_by_the_losses_of_the_seeds(key):
    of = lambda narrow, wide: {"data": {"x": {"m = 1": narrow, "m = 2": wide}}}
    narrow, wide = seeds(2.0, 2.1, test=0.5), seeds(1.0, 1.1, test=0.4, norm=0.11)
    assert verdicts(key, of(narrow, wide)) == [AGREE] * 3
    assert verdicts(key, of(wide, narrow)) == [DIFFERS, DIFFERS, AGREE]
    assert verdicts(key, of(seeds(1.0, 3.0), seeds(1.9, 1.9))) == [OPEN, OPEN, AGREE]
    assert verdicts(key, of(narrow, seeds(1.0, 1.1, test=0.4, norm=0.13)))[2] == DIFFERS


@pytest.mark.parametrize("key", ["fig2", "fig6"])
def test_a_larger_gamma_must_have_the_lower_loss(key):
    curves = {f"γ = {g}": seeds(3.0 - g, 3.1 - g, test=1.0 - g) for g in (0.1, 0.3, 0.5)}
    of = lambda largest, some=curves: {"data": {"x": {**some, "γ = 0.8": largest, "calm": seeds(1.0)}}}
    assert verdicts(key, of(seeds(2.0, 2.1))) == [AGREE] * 3
    reverse = dict(zip(curves, reversed(curves.values()), strict=True))
    assert verdicts(key, of(seeds(2.0, 2.1), reverse)) == [DIFFERS, DIFFERS, AGREE]
    assert verdicts(key, of(seeds(2.7, 2.8)))[2] == DIFFERS  # above γ = .5, surely
    assert verdicts(key, of(seeds(2.3, 2.72)))[2] == OPEN  # the seeds of γ = .8 do not agree
    assert verdicts(key, of(seeds(2.0, 2.1, stopped="step 7: no equilibrium")))[2] == OPEN  # two seeds


@pytest.mark.parametrize("key", ["fig3", "fig5"])
def test_a_step_size_is_judged_by_rises(key):
    of = lambda large, paper, small: {"data": {"x": {"10": large, "1": paper, "0.1": small}}}
    rising, good, slow = seeds(200.0, 200.0), seeds(1.0, 1.1), seeds(50.0, 51.0)
    assert verdicts(key, of(rising, good, slow)) == [AGREE] * 2  # of η = .1/N the paper says nothing
    assert verdicts(key, of(rising, seeds(1.0, 1.1, way=(0.9,)), slow))[0] == DIFFERS
    assert verdicts(key, of(good, good, slow))[1] == DIFFERS


# -- table 1 -------------------------------------------------------------------------------------------------


def start(N=1000, **changed):
    counts = dict(zip(("0.1", "0.3", "0.5", "0.8"), (5, 8, 13, 36), strict=True))
    rows = {g: {"batch": b, "predicted": b, "sample": b / 2} for g, b in counts.items()}
    return {"N": N, **rows, **changed}


def training(*ranges, N=1000, sample=0.5, first=(5.0, 5.0), last=(6.0, 6.0)):
    """A row a γ: least and largest count."""
    rows = ranges or ((5, 5), (8, 9), (13, 14), (36, 70))
    return {
        f"γ = {g}": {
            "N": N,
            "first": list(first),
            "last": list(last),
            "batch": (low + high) / 2,
            "batch_range": [low, high],
            "sample": sample * (low + high) / 2,
            "sample_range": [sample * low, sample * high],
        }
        for g, (low, high) in zip(TABLE_1, rows, strict=True)
    }


def table(begun, along, name="mnist"):
    return verdicts("table1", {"data": {name: [begun, along]}})


def test_table_1_is_judged_against_the_counts_of_training():
    assert table(start(), training()) == [AGREE] * 3
    assert table(start(), training((5, 5), (8, 9), (12, 13.9), (36, 70)))[2] == DIFFERS  # 15 is out of reach
    assert table(start(), training((5, 5), (8, 9), (13, 14), (50, 70)))[2] == DIFFERS  # 47.5 as well
    assert table(start(), training(N=100))[2] == OPEN  # a mean over training, and none of ours
    assert table(start(N=200), training(N=200)) == [AGREE, AGREE, "cannot be tried here"]
    fewer = start(**{"0.8": {"batch": 13, "predicted": 13, "sample": 6.0}})
    assert table(fewer, training())[0] == DIFFERS  # no more than γ = .5 takes
    found = judge("table1", {"data": {"mnist": [start(), training()]}})[2]
    assert "with that of one sample means 2.5 / 4.25 / 6.75 / 26.5" in found.measured


def test_counts_grow_for_one_gamma_and_shrink_for_none():
    still = training(last=(5.0, 5.0))
    assert table(start(), still)[1] == OPEN
    assert table(start(), {**still, "γ = 0.8": training()["γ = 0.8"]})[1] == AGREE
    shrinks = training(last=(4.0, 4.0))["γ = 0.1"]
    assert table(start(), {**training(), "γ = 0.1": shrinks})[1] == DIFFERS
    assert table(start(), training(last=(5.0, 9.0)))[1] == OPEN  # one seed of two grows


# -- conditions ----------------------------------------------------------------------------------------------


def at(margin, allowed, beta=1.0):
    margins = {"(17)": margin, "(18)": 9.0, "(19)": 9.0}
    return {"margins": margins, "allowed": allowed, "beta": beta, "gamma": 1 / (2 * (beta + 1))}


def test_the_conditions_are_judged_where_the_start_is_scaled():
    of = lambda plain, scaled: {"data": {"x": {"plain": plain, "scaled": scaled, "N": 100, "width": 100}}}
    below, above = at(0.99, 0.1), at(1.01, 1e-9, beta=1e5)
    found = judge("conditions", of(below, above))
    assert [j.verdict for j in found] == [AGREE, DIFFERS]
    assert "β = 1e+05" in found[0].measured
    assert "η < 1e-09" in found[1].measured
    assert "7.8e-09" in found[1].reason  # 1/(128·100³)
    assert verdicts("conditions", of(below, at(1.01, 0.02, beta=1e5))) == [AGREE, AGREE]
    assert verdicts("conditions", of(below, at(0.99, 0.02, beta=1e60))) == [DIFFERS, OPEN]
    assert verdicts("conditions", of(at(1.0, 0.02), above)) == [AGREE, AGREE]  # no β is needed


def test_the_smallest_beta_is_found_and_gamma_falls_with_it():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(4, 6, dtype=torch.float64, generator=generator)
    X = X / X.norm(dim=1, keepdim=True)
    y = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    split, shares = TwoClasses(X, y, X, y), []
    found = _scaled(split, 8, shares.append)
    least = lambda beta: min(_certified(split, 8, beta, 1 / (2 * (beta + 1)))["margins"].values())
    assert 10 < found["beta"] < MOST_BETA / 10
    assert least(found["beta"]) >= 1 > least(found["beta"] / (1 + PRECISION))
    assert found["gamma"] * (found["beta"] + 1) == pytest.approx(0.5)
    assert 0 < found["allowed"] <= 1 / (128 * 4**3)  # what (19) and (20) force
    assert shares == sorted(shares)
    again = _certified(split, 8, 1.0, 0.1)
    assert least(1.0) < 1
    assert again["allowed"] > found["allowed"]


# -- drawing -------------------------------------------------------------------------------------------------


def drawn(tmp_path, monkeypatch, curves):
    """The figure and the page of curves."""
    kept: list[Figure] = []
    page = Page(tmp_path)
    monkeypatch.setattr(page, "figure", lambda _, figure, words: [kept.append(figure), page.note(words)])
    catalogue.experiment("gao2022.fig5").draw({"data": {"x": curves}}, page)
    return kept[0], page


def test_a_run_learned_did_not_learn_or_was_lost(tmp_path, monkeypatch):
    """One that came to the end without learning has a loss, which is shown; one that was lost has none."""
    idle, lost = run(100.01, test=1.0, norm=0.9), run(200.0, norm=40.0, stopped="step 3: no equilibrium")
    curves = {"10": [idle, idle, lost], "1": seeds(1.0, 3.0), "0.1": [lost, lost]}
    _, page = drawn(tmp_path, monkeypatch, curves)
    columns, rows = page.tables[0]["columns"], page.tables[0]["rows"]
    table = [dict(zip(columns, row, strict=True)) for row in rows]
    states = [[row[name] for name in ("seeds", "learned", "did not learn", "lost")] for row in table]
    assert states == [["3", "0", "2", "1"], ["2", "2", "0", "0"], ["2", "0", "0", "2"]]
    shown = [[row["training loss / N"], row["± sd of training loss / N"], row["γ‖A‖"]] for row in table]
    partial = ["10, 2 of 3 seeds", "0", "0.9, 2 of 3 seeds"]
    assert shown == [partial, ["0.2", "0.1414", "0.1"], ["–", "–", "–"]]
    found = judge("fig5", {"data": {"x": curves}})
    assert (
        "of 3 seeds 1 were lost, 2 came to the end with a loss no lower than the first; in 1 the loss rose"
        in found[1].measured
    )
    assert "the loss at the end: 10 ± 0, 1 of 3 lost;" in found[1].measured
    some = {
        "γ = 0.1": [idle, idle],
        "γ = 0.3": [lost, idle],
        "γ = 0.5": [lost, lost],
        "γ = 0.8": [idle, lost],
    }
    for j in judge("fig2", {"data": {"x": {**some, "calm": [lost]}}}):
        assert "inf" not in j.measured + j.reason
        assert "lost" in j.measured


def test_a_mean_of_some_seeds_says_how_many(tmp_path, monkeypatch):
    """A run that learned may have test samples without an equilibrium."""
    some = [run(1.0, test=0.5), run(1.0, test=None), run(1.0, test=0.7)]
    _, page = drawn(tmp_path, monkeypatch, {"10": some, "1": seeds(1.0, 3.0), "0.1": seeds(2.0)})
    row = dict(zip(page.tables[0]["columns"], page.tables[0]["rows"][0], strict=True))
    assert (row["learned"], row["lost"]) == ("3", "0")
    assert (row["training loss / N"], row["test loss / N"]) == ("0.1", "0.6, 2 of 3 seeds")
    assert "A test curve also ends where test samples have no equilibrium" in page.notes[0]


def test_a_curve_ends_at_the_number_of_the_table(tmp_path, monkeypatch):
    """The arithmetic mean; the shade, a standard deviation to either side, ends at the smallest seed."""
    losses = seeds(10.0, 1e-2, 2e-2)
    figure, page = drawn(tmp_path, monkeypatch, {"10": losses, "1": losses, "0.1": losses})
    line, band = figure.axes[0].get_lines()[0], figure.axes[0].collections[0]
    mean, sd = np.mean([1.0, 1e-3, 2e-3]), np.std([1.0, 1e-3, 2e-3], ddof=1)
    assert line.get_ydata()[-1] == pytest.approx(mean)
    assert page.tables[0]["rows"][0][6:8] == [f"{mean:.4g}", f"{sd:.4g}"]
    heights = band.get_paths()[0].vertices
    at_the_end = heights[heights[:, 0] == 1][:, 1]
    assert at_the_end.max() == pytest.approx(mean + sd)
    assert at_the_end.min() == pytest.approx(1e-3)


def test_a_verdict_can_be_computed_from_what_is_shown():
    """Means, deviations, and the differences with the errors that are compared, paired by seed."""
    curves = {"m = 1": seeds(20.0, 30.0), "m = 2": seeds(10.0, 21.0)}
    found = judge("fig1", {"data": {"x": curves}})[0]
    assert "m = 1: 2.5 ± 0.71, m = 2: 1.55 ± 0.78" in found.measured
    assert "from each to the next −0.95 ± 0.05 (± standard error)" in found.measured
    assert found.verdict == AGREE  # 19 standard errors of two seeds, and 12.7 are needed


def test_what_differs_has_a_reason():
    late, early = (*range(90, 72, -1), 0.5), (0.5, *np.linspace(9.0, 3.0, 18))
    worse = {"test": 0.6, "norm": 0.2}
    reasons = lambda way: judge(
        "fig1", {"data": {"x": {"m = 1": seeds(1, 1.1, way=way), "m = 2": seeds(2, 2.1, way=way, **worse)}}}
    )
    train, test, norm = reasons(late)
    assert train.verdict == test.verdict == norm.verdict == DIFFERS
    assert "in 4 of 4 runs the training loss rose within the last 10% of the epochs" in train.reason
    assert test.reason == "measured, and not explained"  # a rise of the training loss says nothing of it
    assert reasons(early)[0].reason == "measured, and not explained"
    assert "furthest away at epoch 1, in a run whose training loss is 0.21" in norm.reason
    gone = {"m = 1": seeds(1.0), "m = 2": seeds(1.0, norm=0.2, stopped="step 2: no equilibrium")}
    assert judge("fig1", {"data": {"x": gone}})[2].reason.endswith("in a run that was lost")
    steady = {"m = 1": seeds(1.0, 1.1), "m = 2": seeds(2.0, 2.1)}
    assert judge("fig1", {"data": {"x": steady}})[0].reason == "measured, and not explained"
    apart = {"m = 1": seeds(2.0, 2.1, test=0.4), "m = 2": seeds(1.0, 1.1, test=0.5)}
    assert "training loss falls" in judge("fig1", {"data": {"x": apart}})[1].reason


def test_nothing_is_decided_by_runs_of_six_epochs():
    measured = {"data": {"x": {"m = 1": seeds(1.0, 1.1), "m = 2": seeds(2.0, 2.1)}}}
    assert verdicts("fig1", {**measured, "scale": "tiny"}) == [OPEN] * 3
    found = judge("fig1", {**measured, "scale": "tiny"})[0]
    assert found.reason == "undecided: runs of the scale tiny are too short or small to tell"
    assert replace(found, verdict=DIFFERS, reason="") == replace(judge("fig1", measured)[0], reason="")
    assert verdicts("fig1", {**measured, "scale": "small"}) == verdicts("fig1", measured)
