"""The experiments of [kawaguchi2021]: each verdict follows from the numbers, and turns with them."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from equipoise.models import LinearResNet
from equipoise.papers import catalogue
from equipoise.papers.framework.page import Page
from equipoise.papers.framework.units import plain
from equipoise.papers.kawaguchi2021 import theory

AGREE, DIFFERS, OPEN = "agree", "differs", "undecided"


def judge(key, measured):
    return catalogue.experiment(f"kawaguchi2021.{key}").judge(measured)


def verdicts(key, measured):
    return [j.verdict for j in judge(key, measured)]


# -- figures 1 and 4-8 ---------------------------------------------------------------------------------------


def losses(*last, start=100.0):
    """Test losses of trials at one rate."""
    trials = [[[start, v]] for v in last]
    return {"test": trials, "train": trials, "rates": [0.01], "at": [0, 1]}


@pytest.mark.parametrize("key", ["fig1", "fig4", "fig5", "fig6", "fig7", "fig8"])
def test_a_delm_is_compared_by_its_trials(key):
    of = lambda delm, other: verdicts(key, {"data": {"x": {"linear": other, "DELM": delm}}})[-1]
    assert of(losses(20.0, 21.0, 22.0), losses(30.0, 31.0, 33.0)) == AGREE
    assert of(losses(30.0, 31.0, 33.0), losses(20.0, 21.0, 22.0)) == DIFFERS
    assert of(losses(20.0, 21.0, 22.0), losses(20.0, 19.0, 29.0)) == OPEN  # one trial of three
    assert of(losses(20.0, 25.0), losses(20.0 + 1e-7, 25.0 + 1e-7)) == OPEN  # rounding
    assert of(losses(20.0), losses(30.0)) == OPEN  # one trial
    assert of(losses(20.0, 21.0, 22.0), losses(None, 21.0, 22.0)) == AGREE  # lost is above all
    assert of(losses(20.0, 21.0), losses(None, 21.0)) == OPEN  # but two trials do not tell
    assert of(losses(None, 20.0), losses(30.0, 31.0)) == "cannot be tried here"


def test_that_models_start_alike_is_judged_where_the_paper_says_it():
    of = lambda key, start: verdicts(
        key, {"data": {"x": {"linear": losses(30.0), "DELM": losses(20.0, start=start)}}}
    )
    for key in ("fig1", "fig4"):
        assert of(key, 100.0) == [AGREE, OPEN]
        assert of(key, 210.0) == [DIFFERS, OPEN]
    for key in ("fig5", "fig6", "fig7", "fig8"):
        assert of(key, 210.0) == [OPEN]


def test_what_is_compared_is_shown_with_its_error():
    found = judge("fig1", {"data": {"x": {"linear": losses(30.0, 32.0), "DELM": losses(20.0, 20.0)}}})
    assert "20 against 31: 11 ± 1 more" in found[1].measured
    lost = {**losses(30.0), "test": [[[100.0, None]]]}
    found = judge("fig1", {"data": {"x": {"linear": lost, "DELM": losses(20.0)}}})
    assert "lost at η = 0.01" in found[1].measured


def drawn(key, measured, tmp_path, monkeypatch):
    kept: list[Figure] = []
    monkeypatch.setattr(Page, "figure", lambda self, name, figure, caption: kept.append(figure))
    page = Page(tmp_path)
    catalogue.experiment(f"kawaguchi2021.{key}").draw(measured, page)
    return kept[0], page


def test_a_curve_ends_at_the_number_of_the_table(tmp_path, monkeypatch):
    """The arithmetic mean over trials, as far as runs decades apart are from the geometric."""
    row = {"linear": losses(30.0, 32.0), "DELM": losses(20.0, 0.01)}
    figure, page = drawn("fig1", {"data": {"x": row}}, tmp_path, monkeypatch)
    ends = {line.get_label(): line.get_ydata()[-1] for line in figure.axes[0].get_lines()}
    assert ends["DELM, best η"] == pytest.approx(10.005)
    assert ends["linear, best η"] == pytest.approx(31.0)
    assert [r[6:8] for r in page.tables[0]["rows"]][::2] == [["31", "1.414"], ["10.01", "14.14"]]


def test_a_delm_that_is_worse_has_a_reason():
    worse = {"data": {"x": {"linear": losses(20.0, 21.0), "DELM": losses(30.0, 31.0)}}}
    found = judge("fig1", worse)[1]
    assert found.verdict == DIFFERS
    assert "the DELM has a loss of 30.5, the other model of 20.5" in found.reason
    assert verdicts("fig1", {**worse, "scale": "tiny"}) == [OPEN, OPEN]


# -- figures 2a and 2b ---------------------------------------------------------------------------------------


def resnet(early, late, gradient=1e-10, depth=2, step=2e-5):
    rest = {"loss": late, "steps": 9000, "gradient": gradient}
    return {"depth": depth, "step": step, "loss": [900.0, early], "rest": rest}


def convergence(kind, *resnets, delm=100.0):
    loss = {"identity": [900.0, 100.1], "random 1": [900.0, delm]}
    return {"loss": loss, "resnets": resnets, "kind": kind, "least": 100.0, "every": 2000, "steps": 2000}


def test_a_plateau_is_no_end():
    """L* = 100. What is above it after the paper's steps, and reaches it later, did not stay."""
    slow, fast = resnet(500.0, 100.0), resnet(100.0, 100.0)
    stuck, moving, lost = resnet(500.0, 500.0), resnet(500.0, 400.0, gradient=1e-3), resnet(None, None)
    for some, stays in (
        ((slow, slow), DIFFERS),
        ((slow, fast), DIFFERS),
        ((slow, moving, lost), DIFFERS),  # those that came to rest decide
        ((stuck, stuck), AGREE),
        ((stuck, moving), AGREE),
        ((stuck, slow), OPEN),  # it depends on depth and step size
        ((moving, lost), OPEN),
    ):
        reaches = {AGREE: DIFFERS, DIFFERS: AGREE, OPEN: OPEN}[stays]
        assert verdicts("fig2a", convergence("Gaussian", *some)) == [AGREE, stays]
        assert verdicts("fig2b", convergence("uniform", *some)) == [AGREE, reaches]
    found = judge("fig2a", convergence("Gaussian", slow, fast))[1]
    assert "1 are at it after 2000 steps, and 2 when trained on, after 9000 to 9000" in found.measured
    assert "plateau" in found.reason


@pytest.mark.parametrize("delm", [106.0, None])
def test_a_delm_that_falls_short_or_is_lost_differs(delm):
    found = judge("fig2a", convergence("Gaussian", resnet(100.0, 100.0), delm=delm))
    assert found[0].verdict == DIFFERS
    assert ("random 1: lost" if delm is None else "random 1: 6 % above L*") in found[0].measured
    assert found[0].measured.endswith("L* = 100")
    short = convergence("Gaussian", resnet(100.0, 100.0), delm=delm) | {"scale": "tiny"}
    assert verdicts("fig2a", short) == [OPEN, OPEN]


@pytest.fixture
def rows():
    X, y = theory._data("Gaussian", 40)
    return X, y


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_descent_of_a_resnet_is_that_of_its_gradients(rows, depth):
    X, y = rows
    model, step = LinearResNet(theory.M, depth=depth, dtype=torch.float64), 2e-4
    for loss, size in islice(theory.descent(X, y, depth, step), 30):
        value = (model(X) - y).square().sum()
        gradients = torch.autograd.grad(value, list(model.parameters()))
        assert loss == pytest.approx(value.item(), rel=1e-10)
        assert size == pytest.approx(torch.cat(gradients).norm().item(), rel=1e-8)
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients, strict=True):
                p -= step * g


def test_a_resnet_is_trained_until_it_rests(rows, monkeypatch):
    X, y = rows
    found = theory.at_rest(X, y, 2, 5e-4, lambda share: None)
    assert found["gradient"] <= theory.STILL
    assert found["loss"] == pytest.approx(theory.least(X, y), rel=1e-9)
    early = theory.shown(X, y, 2, 5e-4, 20)
    assert len(early) == 21
    assert early[-1] > 10 * found["loss"]
    assert math.isnan(theory.at_rest(X, y, 2, 1.0, lambda share: None)["loss"])  # lost
    assert plain(theory.shown(X, y, 2, 1.0, 400))[-1] is None
    monkeypatch.setattr(theory, "MOST", 5)
    short = theory.at_rest(X, y, 2, 5e-4, lambda share: None)
    assert short["steps"] == 5
    assert short["gradient"] > theory.STILL


def test_no_two_curves_look_alike(tmp_path, monkeypatch):
    runs = [resnet(500.0, 100.0, depth=d, step=s) for d in (2, 5, 10) for s in (2e-6, 6e-6, 2e-5)]
    kept: list[Figure] = []
    monkeypatch.setattr(Page, "figure", lambda self, name, figure, caption: kept.append(figure))
    page = Page(tmp_path)
    theory._draw_convergence(convergence("Gaussian", *runs), page)
    lines = [line for line in kept[0].axes[1].get_lines() if len(line.get_xdata()) == 2][:9]
    looks = {(line.get_color(), str(line._dash_pattern)) for line in lines}
    assert len(lines) == len(looks) == 9
    shown = ["500", "4e+02 % above L*", "100", "at L* to rounding", "9000"]
    assert page.tables[0]["rows"][-1][1:6] == shown
    columns = page.tables[0]["columns"]
    assert all(columns)
    assert len(set(columns)) == len(columns)
    assert "η = 2·10⁻⁶" in page.tables[0]["rows"][2][0]


# -- figures 2c and 3 ----------------------------------------------------------------------------------------


def bounds(gap, dependent, **more):
    found = {"gap": gap, "dependent": dependent, "independent": [gap[0], gap[0]], "terms": 1000}
    return {
        **found,
        "lambda": 0.5,
        "lambda_fixed": 0.03,
        "kappa": 1.0,
        "least": 1.0,
        "without_tau": 0.1,
        **more,
    }


@pytest.mark.parametrize("key", ["fig2c", "fig3"])
def test_a_bound_is_broken_by_more_than_rounding(key):
    of = lambda *args, **more: verdicts(key, bounds(*args, **more))[:2]
    assert of([9.0, 1.0], [9.0, 2.0]) == [AGREE, AGREE]
    assert of([9.0, 2.1], [9.0, 2.0]) == [DIFFERS, AGREE]
    assert of([9.0, 2.1], [9.0, 2.2], independent=[9.0, 2.0])[0] == DIFFERS  # the other bound
    assert of([9.0, 1.4e-14], [9.0, 1e-231]) == [AGREE, AGREE]
    floor = 1000 * np.finfo(float).eps * 10  # terms·ε·L(0)
    assert of([9.0, 0.9 * floor], [9.0, 1e-231])[0] == AGREE
    assert of([9.0, 1.1 * floor], [9.0, 1e-231])[0] == DIFFERS
    assert of([9.0, 1.0], [9.0, 2.0], **{"lambda": 0.01}) == [AGREE, DIFFERS]
    assert "2.2e-12" in judge(key, bounds([9.0, 1.0], [9.0, 2.0]))[0].tolerance


def test_the_penalty_is_judged_by_kappa():
    """The paper calls the bound trivial at (R, τ) = (∞, 0): a κ above 0 there would contradict it."""
    of = lambda **kappas: verdicts("fig3", bounds([9.0, 1.0], [9.0, 2.0], **kappas))[2]
    assert of(without_tau=0.0) == AGREE
    assert of(without_tau=0.1) == DIFFERS
    assert of(without_tau=0.0, kappa=0.0) == DIFFERS


def test_no_legend_lies_on_a_curve(tmp_path, monkeypatch):
    measured = bounds([9.0, 1.0], [9.0, 2.0]) | {"at": [0, 9]}
    figure, _ = drawn("fig3", measured, tmp_path, monkeypatch)
    figure.canvas.draw()
    (ax,) = figure.axes
    assert ax.get_legend().get_window_extent().y0 >= ax.get_window_extent().y1


# -- theorem 2 and appendix B --------------------------------------------------------------------------------


def test_the_trust_region_is_judged_at_its_worst_moment():
    row = lambda **changed: {"kkt": 1e-12, "velocity": 1e-7, "beaten": 0, **changed}
    of = lambda **changed: verdicts("theorem2", {"rows": [row(), row(**changed), row()]})
    assert of() == [AGREE, AGREE, AGREE]
    assert of(kkt=1e-7) == [DIFFERS, AGREE, AGREE]
    assert of(velocity=1e-3) == [AGREE, DIFFERS, AGREE]
    assert of(beaten=1) == [AGREE, AGREE, DIFFERS]


def test_a_rest_that_grows_is_not_bounded():
    of = lambda right, printed: verdicts("appendixB", {"right": [1.0, right], "printed": [1.0, printed]})
    assert of(1.4, 1.4) == of(1.6, 1.0) == [AGREE]
    assert of(1.4, 1e4) == of(1.4, 1.6) == [DIFFERS]
    (found,) = judge("appendixB", {"right": [1.0, 1.4], "printed": [1.0, 1e4]})
    assert "that rest goes from 1 to 1.4" in found.reason
