"""The experiments of [ling2023]: each verdict follows from the numbers, and turns with them."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.papers import catalogue
from equipoise.papers.ling2023 import draw_fig1
from equipoise.papers.page import Page


def verdicts(key, measured):
    return [j.verdict for j in catalogue.experiment(f"ling2023.{key}").judge(measured)]


AGREE, DIFFERS, OPEN = "agree", "differs", "not reproducible here"


def curve(loss, *, norm=0.5, lambdas=(1.0, 0.9), stopped=""):
    return {
        "loss": [100.0, 10 * loss],
        "N": 10,
        "at": [0, 1],
        "norm": [0.5, norm],
        "lambda": lambdas,
        "stopped": stopped,
    }


def fig1(same, scaled, **last):
    """Losses of m = 5, 10, 20, n = 10: a number, or one a seed."""
    rows = lambda losses: {
        f"m = {m}": [curve(v, **(last if m == 20 else {"lambdas": (0.0, 0.0)})) for v in np.atleast_1d(some)]
        for m, some in zip((5, 10, 20), losses, strict=True)
    }
    row = {"step": 1e-4, "widths": [5, 10, 20], "same": rows(same), "scaled": rows(scaled)}
    return {"data": {"x": row}}


def test_width_must_help_with_steps_in_proportion_too():
    better, worse = (4.0, 2.0, 1.0), (0.5, 0.7, 1.0)
    assert verdicts("fig1", fig1(better, better)) == [AGREE] * 4
    assert verdicts("fig1", fig1(better, worse)) == [AGREE, AGREE, AGREE, DIFFERS]  # the trend is reversed
    assert (
        verdicts("fig1", fig1(better, (1.1, 1.0, 1.0)))[3] == DIFFERS
    )  # next to nothing is left of a factor 4
    assert verdicts("fig1", fig1(better, (2.03, 1.5, 1.0)))[3] == OPEN  # half, but for 5 %
    assert verdicts("fig1", fig1(worse, better)) == [DIFFERS, AGREE, AGREE, OPEN]  # no advantage to explain
    seeds = ((4.0, 4.2), (2.0, 2.2), (1.0, 1.1))
    assert verdicts("fig1", fig1(seeds, seeds)) == [AGREE] * 4
    assert verdicts("fig1", fig1(seeds, ((9.0, 1.1), (1.0, 1.0), (1.0, 1.1))))[3] == OPEN  # seeds disagree


def test_the_norm_and_the_gram_matrix_are_judged_along_the_path():
    same = (4.0, 2.0, 1.0)
    assert verdicts("fig1", fig1(same, same, norm=1.01))[1] == DIFFERS
    assert verdicts("fig1", fig1(same, same, lambdas=(1.0, 0.4, 0.9)))[2] == DIFFERS
    lost = verdicts("fig1", fig1(same, same, stopped="step 1"))
    assert lost == [DIFFERS, DIFFERS, AGREE, OPEN]
    narrow = fig1(same, same)
    for runs in narrow["data"]["x"]["same"].values():
        runs[0]["N"] = 11
    assert verdicts("fig1", narrow)[2] == OPEN  # no width m ≥ 2n: nothing was tried
    assert verdicts("fig1", fig1(same, same, lambdas=(1e-11, 1e-12)))[2] == OPEN  # ε²/η = 1.4e-10: rounding


@pytest.mark.parametrize(
    ("lambdas", "shown"), [((1.0, 0.5), "0.5"), ((1e-11, 3e-9), "–"), ((2.0, 1e-11, 1.0), "–")]
)
def test_a_ratio_of_rounding_is_not_shown(tmp_path, lambdas, shown):
    page = Page(tmp_path)
    draw_fig1(fig1((4.0, 2.0, 1.0), (4.0, 2.0, 1.0), lambdas=lambdas), page)
    assert [row[-1] for row in page.tables[0]["rows"]] == ["–", "–", shown]


def study(**changes):
    """Widths 10 and 40, two draws, four layers."""
    decaying = [[[0.3**l for l in range(4)]] * 2] * 2
    return {
        "widths": [10, 40],
        "draws": 20,
        "n": 5,
        "lambda_star": 0.7,
        "theorem_2": [0.2, 0.95],
        "decay": 0.3,
        "slope": -0.52,
        "layer_errors": decaying,
        **changes,
    }


def test_the_theorems_on_width_are_judged_by_their_fits():
    assert verdicts("theorem2", study()) == [AGREE]
    assert verdicts("theorem2", study(theorem_2=[0.95, 0.85])) == [DIFFERS]
    assert verdicts("theorem4", study()) == [AGREE]  # 2√2σ_w = .8
    assert verdicts("theorem4", study(decay=0.81)) == [DIFFERS]
    assert verdicts("theorem5", study()) == [AGREE, AGREE]
    assert verdicts("theorem5", study(slope=-0.37)) == [DIFFERS, AGREE]
    assert verdicts("theorem2", study(scale="tiny")) == [OPEN]  # three draws do not tell a probability
    assert verdicts("theorem4", study(scale="tiny")) == [AGREE]
    assert verdicts("theorem5", study(scale="tiny")) == [OPEN, OPEN]
    flat = [[[1.0, 0.5, 0.49, 0.48]] * 2] * 2  # .96 where .8² = .64 is promised
    assert verdicts("theorem5", study(layer_errors=flat)) == [AGREE, DIFFERS]


def drawn(proved, violations=0):
    margin = 2.0 if proved else 0.01
    margins = {"(7)": margin, "(8)": margin, "(9)": margin}
    return {"n": 2, "m": 4, "margins": margins, "proved": proved, "violations": violations}


def test_condition_1_is_judged_by_its_draws():
    of = lambda first, fixed: {"assumption1": first, "zero_readout": fixed, "width": 4, "steps": 3}
    yes, no = [drawn(True)] * 10, [drawn(False)] * 10
    assert verdicts("condition1", of(yes, yes)) == [AGREE, AGREE, AGREE]
    assert verdicts("condition1", of(no, yes)) == [DIFFERS, AGREE, AGREE]
    assert verdicts("condition1", of(no, [*yes[:7], *no[:3]])) == [DIFFERS, DIFFERS, AGREE]
    assert verdicts("condition1", of(no, no)) == [DIFFERS, DIFFERS, OPEN]  # no run to look at
    assert verdicts("condition1", of(yes, [*yes, drawn(True, violations=1)]))[2] == DIFFERS


def test_a_lost_run_is_a_word_and_a_curve_ends_at_the_number_of_the_table(tmp_path, monkeypatch):
    kept = {}
    monkeypatch.setattr(Page, "figure", lambda page, name, figure, caption: kept.update({name: figure}))
    seeds = ((4.0, 4.2), (2.0, 2.4), (1.0, 1.1))
    measured, page = fig1(seeds, seeds), Page(tmp_path)
    draw_fig1(measured, page)
    columns, rows = page.tables[0]["columns"], page.tables[0]["rows"]
    ends = [line.get_ydata()[-1] for line in kept["curves"].axes[0].get_lines()]
    assert [f"{v:.4g}" for v in ends] == [row[columns.index("loss / N, one η for all")] for row in rows]
    deviations = [row[columns.index("± sd, one η for all")] for row in rows]
    assert deviations == ["0.1414", "0.2828", "0.07071"]
    gone, page = fig1(seeds, seeds, stopped="step 1"), Page(tmp_path)
    draw_fig1(gone, page)
    lost = [dict(zip(page.tables[0]["columns"], row, strict=True)) for row in page.tables[0]["rows"]]
    assert [row["seeds"] for row in lost] == ["2"] * 3
    assert [row["lost, one η for all"] for row in lost][-1] == "2"
    assert [row["lost, η ∝ 1/m"] for row in lost][-1] == "2"
    found = catalogue.experiment("ling2023.fig1").judge(fig1(seeds, seeds, stopped="step 1"))
    assert "m = 20: lost" in found[0].measured
    assert not any("inf" in j.measured for j in found)


def test_settings_of_condition_1_are_series_of_their_own(tmp_path, monkeypatch):
    kept = {}
    monkeypatch.setattr(Page, "figure", lambda page, name, figure, caption: kept.update({name: figure}))
    first = [drawn(True), {**drawn(False), "n": 20}] * 3
    measured = {"assumption1": first, "zero_readout": [drawn(True)] * 3, "width": 4, "steps": 3}
    catalogue.experiment("ling2023.condition1").draw(measured, Page(tmp_path))
    lines = {line.get_label(): line.get_ydata().tolist() for line in kept["margins"].axes[0].get_lines()[:3]}
    assert lines == {
        "Assumption 1, n = 2": [2.0] * 3,
        "Assumption 1, n = 20": [0.01] * 3,
        "a(0) = 0, n = 2": [2.0] * 3,
    }
