"""The experiments of [ling2023]: each verdict follows from the numbers, and turns with them."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.papers import catalogue
from equipoise.papers.framework.page import Page
from equipoise.papers.ling2023.figures import _draw_fig1 as draw_fig1


def verdicts(key, measured):
    return [j.verdict for j in catalogue.experiment(f"ling2023.{key}").judge(measured)]


AGREE, DIFFERS, OPEN = "agree", "differs", "undecided"


def curve(loss, *, norm=0.5, lambdas=(1.0, 0.9), moved=0.1, stopped=""):
    return {
        "loss": [100.0, 10 * loss],
        "N": 10,
        "at": [0, 1],
        "norm": [0.5, norm],
        "lambda": lambdas,
        "moved": [0.0, moved, moved / 2],
        "stopped": stopped,
    }


def fig1(same, scaled, moved=(0.3, 0.2, 0.1), **last):
    """Losses of m = 5, 10, 20, n = 10, a number or one a seed; how far Gram matrices move, by width."""
    rows = lambda losses: {
        f"m = {m}": [
            curve(v, moved=way, **(last if m == 20 else {"lambdas": (0.0, 0.0)})) for v in np.atleast_1d(some)
        ]
        for m, some, way in zip((5, 10, 20), losses, moved, strict=True)
    }
    row = {"step": 1e-4, "widths": [5, 10, 20], "same": rows(same), "scaled": rows(scaled)}
    return {"data": {"x": row}}


SEEDS = ((4.0, 4.2), (2.0, 2.2), (1.0, 1.2))


def test_wider_networks_must_end_lower():
    assert verdicts("fig1", fig1(SEEDS, SEEDS)) == [AGREE] * 3
    assert verdicts("fig1", fig1(SEEDS[::-1], SEEDS))[0] == DIFFERS
    assert verdicts("fig1", fig1(((4.0, 1.0), (2.0, 2.2), (1.0, 1.2)), SEEDS))[0] == OPEN  # seeds disagree
    assert verdicts("fig1", fig1((4.0, 2.0, 1.0), SEEDS))[0] == OPEN  # one seed


def test_that_gram_matrices_are_more_stable_is_measured_on_them():
    """And not by losses, whatever the step sizes."""
    moved = lambda *by_width, scaled=SEEDS: verdicts("fig1", fig1(SEEDS, scaled, moved=by_width))[2]
    assert moved(0.3, 0.2, 0.1) == moved(0.3, 0.2, 0.1, scaled=SEEDS[::-1]) == AGREE
    assert moved(0.1, 0.2, 0.3) == DIFFERS
    assert moved(0.2, 0.2, 0.2) == OPEN


def test_the_norm_is_judged_along_the_path():
    assert verdicts("fig1", fig1(SEEDS, SEEDS, norm=1.01))[1] == DIFFERS
    assert verdicts("fig1", fig1(SEEDS, SEEDS, stopped="step 1"))[1] == DIFFERS


def test_what_width_gains_is_shown_for_both_step_sizes(tmp_path):
    page = Page(tmp_path)
    draw_fig1(fig1((4.0, 2.0, 1.0), (0.5, 0.7, 1.0)), page)
    assert "x 4 with one η for all, 0.5 with η ∝ 1/m" in page.notes[0]


@pytest.mark.parametrize(
    ("lambdas", "shown"), [((1.0, 0.5), "0.5"), ((1e-11, 3e-9), "–"), ((2.0, 1e-11, 1.0), "–")]
)
def test_a_ratio_of_rounding_is_not_shown(tmp_path, lambdas, shown):
    page = Page(tmp_path)
    draw_fig1(fig1((4.0, 2.0, 1.0), (4.0, 2.0, 1.0), lambdas=lambdas), page)
    assert [row[-2] for row in page.tables[0]["rows"]] == ["–", "–", shown]


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
    assert verdicts("theorem5", study()) == [AGREE]
    assert verdicts("theorem2", study(scale="tiny")) == [OPEN]  # three draws do not tell a probability
    assert verdicts("theorem4", study(scale="tiny")) == [AGREE]
    assert verdicts("theorem5", study(scale="tiny")) == [OPEN]
    flat, above = [1.0, 0.5, 0.49, 0.48], [1.0, 0.5, 0.49, 2.1]  # 5 · .8⁴ = 2.05 at the last layer
    assert verdicts("theorem5", study(layer_errors=[[flat] * 2] * 2)) == [AGREE]  # it need not fall with l
    assert verdicts("theorem5", study(layer_errors=[[flat] * 2, [flat, above]])) == [DIFFERS]
    assert verdicts("theorem5", study(layer_errors=[[above] * 2, [flat] * 2])) == [AGREE]  # wide enough


def drawn(proved, violations=0):
    margin = 2.0 if proved else 0.01
    margins = {"(7)": margin, "(8)": margin, "(9)": margin}
    return {"n": 2, "m": 4, "margins": margins, "proved": proved, "violations": violations}


def test_condition_1_is_judged_by_its_draws():
    of = lambda first, fixed: {"assumption1": first, "zero_readout": fixed, "width": 4, "steps": 3}
    yes, no = [drawn(True)] * 10, [drawn(False)] * 10
    assert verdicts("condition1", of(yes, yes)) == [AGREE, AGREE]
    assert verdicts("condition1", of(no, [*yes[:7], *no[:3]])) == [DIFFERS, AGREE]
    assert verdicts("condition1", of(no, no)) == [DIFFERS, OPEN]  # no run to look at
    assert verdicts("condition1", of(yes, [*yes, drawn(True, violations=1)]))[1] == DIFFERS


def test_a_lost_run_is_a_word_and_a_curve_ends_at_the_number_of_the_table(tmp_path, monkeypatch):
    kept = {}
    monkeypatch.setattr(Page, "figure", lambda page, name, figure, caption: kept.update({name: figure}))
    seeds = ((4.0, 4.2), (2.0, 2.4), (1.0, 1.1))
    measured, page = fig1(seeds, seeds), Page(tmp_path)
    draw_fig1(measured, page)
    columns, rows = page.tables[0]["columns"], page.tables[0]["rows"]
    ends = [line.get_ydata()[-1] for line in kept["curves-x"].axes[0].get_lines()]
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
