"""The experiments of [hieu2022]: what is trained can learn, and what is judged can fail."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from equipoise.differentiate import jacobian_penalty
from equipoise.kernels import tangent_kernel
from equipoise.models import Monotone
from equipoise.papers.framework.experiments import Context, Settings, experiment
from equipoise.papers.framework.runner import run_one
from equipoise.papers.hieu2022 import landscape as slices
from equipoise.papers.hieu2022 import monotone, multiscale
from equipoise.papers.hieu2022 import paths as training
from equipoise.papers.hieu2022.landscape import dataset
from equipoise.papers.hieu2022.training import FAR, SEARCH, build, fit
from equipoise.solve import Stop


@pytest.mark.parametrize("scale", list(multiscale.CHANNELS))
def test_a_multiscale_deq_tells_images_apart_at_every_scale(scale):
    X = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    scores = multiscale.build(X, multiscale.CHANNELS[scale], 0)(X).detach()
    assert float(scores.std(dim=0).min()) > 1e-3


OPEN = "undecided"


def toy():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(4, 6, dtype=torch.float64, generator=generator)
    X = X / X.norm(dim=1, keepdim=True)
    return X, torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)


def certified():
    return {"proved": True, "violations": 0, "loss": [1.0, 0.5], "linear": [1.0, 0.5]}


# -- monotone ------------------------------------------------------------------------------------------------


def test_the_squared_gradient_is_that_of_the_kernel_without_asking_it():
    X, y = toy()
    how = {"dtype": torch.float64, "generator": torch.Generator().manual_seed(1)}
    model = Monotone(6, 10, margin=0.5, **how)
    r = (model(X) - y).detach()
    expected = (r @ tangent_kernel(model, X).total @ r).item()
    assert monotone._gradient_squared(model, X, y) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "agree"), (1e4, "differs"), (-1.0, "differs")])
def test_the_pl_inequality_fails_with_a_wrong_kernel(monkeypatch, factor, verdict):
    wrong = lambda model, X: SimpleNamespace(total=factor * tangent_kernel(model, X).total)
    monkeypatch.setattr(monotone, "tangent_kernel", wrong)
    monkeypatch.setattr(monotone, "SHARE", 0.05 * factor)  # the same steps
    run = monotone._tracked(*toy(), 10, 6, 0, lambda share: None) | {"certified": certified()}
    found = monotone._judge_monotone({"runs": [run]})
    assert found[0].verdict == verdict


def test_nothing_measured_is_no_agreement():
    run = {"loss": [1.0], "linear": [1.0], "moments": [], "step": 0.1, "flips": 0}
    run |= {"stopped": "step 1: no equilibrium", "certified": certified()}
    found = [j.verdict for j in monotone._judge_monotone({"runs": [run]})]
    assert found == [OPEN, "differs", "agree"]  # a run that stopped did not converge


def flow(loss, rate=0.01, stopped=""):
    """A run of that loss whose λ_min(K) is `rate`/2η throughout."""
    steps = range(0, len(loss), 10)
    moments = [{"step": k, "lambda_min": rate / 0.2, "effective": rate, "moved": 0.0} for k in steps]
    run = {"loss": list(loss), "linear": list(loss), "moments": moments, "step": 0.1, "flips": 3}
    return run | {"stopped": stopped, "certified": certified()}


def test_linear_convergence_is_told_from_a_power_law():
    k = np.arange(301)
    verdict = lambda *runs: monotone._judge_monotone({"runs": list(runs)})[1].verdict
    at = lambda share: np.exp(-share * 0.01 * k)
    assert verdict(flow(at(1.0))) == verdict(flow(at(0.94))) == "agree"  # at λ_min(K), or slower
    assert verdict(flow(at(0.49))) == verdict(flow(at(2.0)), flow(at(0.49))) == "differs"  # every seed
    for power in (0.5, 1.0):  # fast at first, and then ever slower
        assert verdict(flow((k + 1.0) ** -power)) == "differs"
    assert verdict(flow(at(1.0), stopped="step 300: the loss is not finite")) == "differs"
    assert verdict(flow(at(1.0) * (1 + 0.2 * (k == 155)))) == "agree"  # a rise between moments
    short = monotone._judge_monotone({"runs": [flow(at(1.0), rate=1e-3)]})[1]
    assert short.verdict == OPEN
    assert "too short" in short.reason
    assert verdict(flow(at(0.04), rate=1e-3)) == "differs"  # too slow, however short


def test_the_proof_is_judged_and_the_rest_is_shown(tmp_path, monkeypatch):
    run = flow(np.exp(-0.01 * np.arange(11)))

    def verdict(**proof):
        return monotone._judge_monotone({"runs": [run | {"certified": certified() | proof}]})[2].verdict

    assert verdict() == "agree"
    assert verdict(violations=1) == "differs"
    assert verdict(proved=False) == OPEN  # nothing was promised
    monkeypatch.setattr(monotone.Page, "figure", lambda *args: None)
    page = monotone.Page(tmp_path)
    run["moments"][1]["lambda_min"] = 0.25 * run["moments"][0]["lambda_min"]
    monotone._draw_monotone({"data": "d", "N": 2, "width": 3, "runs": [run]}, page)
    row = dict(zip(page.tables[0]["columns"], page.tables[0]["rows"][0], strict=True))
    assert (row["least λ_min(K) / first"], row["rises"], row["log gap"]) == ("0.25", "0", "0")
    assert "That the rate is λ_min(K) it does not say" in page.notes[0]


def test_the_linearised_run_is_that_of_a_linear_model():
    generator = torch.Generator().manual_seed(3)
    A, r = (torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in ((4, 6), (4,)))
    theta, y, losses = torch.zeros(6, dtype=torch.float64), -r, []
    for _ in range(8):
        losses.append(float((A @ theta - y).square().sum() / 2))
        theta = theta - 0.02 * A.T @ (A @ theta - y)
    found = monotone.linearised(A @ A.T, r, 0.02, 7)
    assert found == pytest.approx(losses, rel=1e-10)
    assert monotone.gap(losses, found) < 1e-10
    assert monotone.gap([1.0, np.exp(-1.0)], [1.0, np.exp(-2.0)]) == pytest.approx(0.5)


def test_at_the_start_of_the_theorem_descent_is_that_of_the_kernel():
    X, y = toy()
    found = monotone._certified(X, y, 12, 0)
    assert found["proved"]
    assert found["violations"] == 0
    assert found["loss"][-1] < 0.5 * found["loss"][0]
    assert monotone.gap(found["loss"], found["linear"]) < 1e-3


# -- figures 4.1 and 4.2 -------------------------------------------------------------------------------------


def starts(large, small):
    """Three seeds of each size of start: what its last residual, its first step and its length are, about."""
    run = lambda r, first, wander, d: {"residual": [1.0, r], "first": first + d, "wander": wander + d}
    of = lambda about: [run(*about, d) for d in (-0.01, 0.0, 0.01)]
    return {"steps": 9, "starts": {"std 1": of(large), "std 0.1": of(small), "std 0.01": of(small)}}


def test_the_start_is_judged_by_its_residuals_and_its_paths():
    def verdicts(large=(0.1, 0.3, 8.0), small=(1e-6, 0.95, 1.2)):
        measured = starts(large, small)
        judgements = training._judge_residuals(measured) + training._judge_paths(measured)
        return [j.verdict for j in judgements]

    assert verdicts() == ["agree"] * 4
    assert verdicts(large=(None, 0.3, 8.0))[0] == "agree"  # a residual that is not finite did not settle
    assert verdicts(large=(1e-3, 0.3, 8.0))[0] == "differs"
    assert verdicts(small=(1e-3, 0.95, 1.2))[1] == "differs"
    assert verdicts(small=(1e-6, 0.85, 1.2))[2] == "differs"
    assert verdicts(small=(1e-6, 0.905, 1.2))[2] == OPEN  # ± .006
    assert verdicts(large=(0.1, 0.3, 3.0))[3] == "differs"


# -- figure 4.3 ----------------------------------------------------------------------------------------------


def test_variance_between_classes_is_that_of_the_means():
    labels = torch.tensor([0, 0, 1, 1])
    apart = torch.tensor([[0.0, 0.0], [0.0, 0.2], [5.0, 0.0], [5.0, 0.2]])
    found = training._classes(apart, labels)
    assert found["neighbour"] == 1.0
    assert found["between"] == pytest.approx(25 / 25.04)
    assert training._classes(apart, torch.tensor([0, 1, 0, 1]))["between"] == pytest.approx(0.04 / 25.04)


def test_a_change_over_training_is_judged_over_seeds():
    moment = lambda steps, first, between: {
        "epoch": 0, "steps": steps, "first": first, "between": between,
        "neighbour": 0.5, "unsettled": 0.0, "unknown": 0.0, "wander": 1.0,
    }  # fmt: skip
    start = moment(5.0, 0.9, 0.2)

    def verdicts(*after):
        runs = [{"moments": [start, m, m], "accuracy": 0.9} for m in after]
        return [j.verdict for j in training._judge_training({"runs": runs})]

    clear = moment(20.0, 0.5, 0.4), moment(22.0, 0.48, 0.41)
    assert verdicts(*clear) == ["agree"] * 3
    assert verdicts(clear[0]) == [OPEN] * 3  # one seed
    assert verdicts(*[moment(4.0, 0.99, 0.1)] * 2) == ["differs"] * 3
    assert verdicts(moment(5.5, 0.5, 0.4), moment(5.51, 0.48, 0.4)) == ["differs", "agree", "agree"]
    mixed = moment(20.0, 0.85, 0.19), moment(60.0, 0.3, 0.25)
    assert verdicts(*mixed) == [OPEN] * 3  # larger, but within the spread
    assert verdicts(*(moment(20.0, 0.95, 0.1 + d) for d in (0, 0.01))) == ["agree", "differs", "differs"]


class Figures:
    """A page that keeps its figures."""

    def __init__(self):
        self.figures = {}

    def figure(self, name, figure, caption):
        self.figures[name] = figure

    def table(self, *table):
        return None


def test_the_paths_of_ten_classes_are_told_apart():
    keys = ("steps", "first", "between", "neighbour")
    moment = {"epoch": 0, "paths": [[[0.0, 0.0], [1.0, k]] for k in range(10)], "shares": [0.6, 0.3]}
    moment |= dict.fromkeys(keys, 1.0)
    page = Figures()
    run = {"moments": [moment], "labels": list(range(10)), "loss": [1.0], "accuracy": 0.5}
    moment["paths"].append([[None, None], [None, None]])  # of class 0 too, and not finite
    run["labels"].append(0)
    training._draw_training({"data": "d", "runs": [run]}, page)
    lines = [line for line in page.figures["paths"].axes[0].get_lines() if len(line.get_xdata()) == 2]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 10


# -- figures 4.4 and 4.5 -------------------------------------------------------------------------------------


def test_a_point_without_an_equilibrium_is_masked():
    """f has none within reach of one step: the loss is not known; with the search it is."""
    X = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(6)
    model = build(X, 4, 0)
    known = slices.slice_loss(X, y)(model, None)
    expected = torch.nn.functional.cross_entropy(model(X, stop=Stop(rtol=1e-4)), y).item()
    assert known.loss == pytest.approx(expected, rel=1e-2)
    with torch.no_grad():
        for p in (model.cell.conv1.weight, model.cell.conv2.weight):
            p.normal_(generator=torch.Generator().manual_seed(1))
        model.cell.norm2.weight.fill_(50.0)
    floors: list[float] = []
    lost = slices.slice_loss(X, y, floors)(model, None)
    assert lost.reason == "equilibrium not found"
    assert np.isnan(lost.loss)
    found = model.solve(X, solver=SEARCH, stop=FAR)
    there = found.converged
    assert len(floors) == 1
    expected = torch.nn.functional.cross_entropy(model.readout(found.value)[there], y[there], reduction="sum")
    assert floors[0] == pytest.approx(expected.item() / 6)
    repeated = slices.slice_loss(X, y)(model.repeated(3), None)
    assert np.isfinite(repeated.loss)


def test_a_minimum_must_be_deeper_than_what_the_grid_leaves_open():
    x = np.linspace(-1, 1, 21)
    bowl = x[:, None] ** 2 + x[None] ** 2
    dent = bowl.copy()
    dent[4, 4] = dent[3:6, 3:6].min() - 0.05  # of a range of 2: 2.5 %
    assert multiscale.minima(dent) == [(10, 10)]
    assert multiscale.minima(dent, prominence=0.0) == [(10, 10), (4, 4)]
    dent[4, 4] = 0.2
    assert multiscale.minima(dent) == [(10, 10), (4, 4)]
    wall = np.where(np.abs(x)[None] == 1, np.nan, bowl)  # what is not known is no way
    wall[:, 14] = np.nan
    assert len(multiscale.minima(wall)) == 2


def test_the_penalty_pulls_the_jacobian_down():
    X = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 10
    found = []
    for weight in (0.0, 30.0):
        model = build(X, 4, 0)
        fit(model, X, y, 6, seed=0, rate=1e-2, penalty=weight)
        z = model.solve(X, stop=Stop(rtol=1e-3)).value
        signs = torch.Generator().manual_seed(2)
        found.append(jacobian_penalty(model, *model.injection(X), z=z, samples=8, generator=signs).item())
    assert found[1] < 0.7 * found[0]


@pytest.mark.parametrize("scale", ["tiny", "small", "medium"])
def test_a_slice_is_of_the_data_asked_for(scale, tmp_path):
    context = Context(Settings(scale, ("kmnist",)), tmp_path)
    assert dataset(context) == "kmnist"
    assert not context.notes
    own = Context(Settings(scale, data_dir=str(tmp_path)), tmp_path)
    assert dataset(own) == "digits"  # CIFAR10 is not there
    assert "stand" in own.notes[-1]


def test_both_landscapes_say_that_digits_stand_in(tmp_path, with_units):
    with_units(tmp_path)
    for key in ("hieu2022.fig4.4", "hieu2022.fig4.5"):
        result = run_one(experiment(key), Settings("tiny"), tmp_path)
        assert any("digits stand for CIFAR10" in note for note in result.notes), key


# -- figures 4.1-4.3 -----------------------------------------------------------------------------------------


def start(first, wander, residual=(1.0, 0.08, 0.04, 0.01), paths=12):
    path = [[0.0, 0.0], [1.0, 2.0]]
    return {
        "first": first,
        "wander": wander,
        "residual": list(residual),
        "paths": [path] * paths,
        "shares": [0.5, 0.2],
    }


def small_starts(**small):
    runs = {"std 1": [start(0.1, 9.0)] * 2, "std 0.1": [start(0.3, 3.0)] * 2}
    return {"data": "x", "steps": 3, "starts": runs | {"std 0.01": [start(0.85, 1.1, **small)] * 2}}


def test_what_is_left_after_the_first_step_is_told():
    found = training._judge_paths(small_starts())
    assert [j.verdict for j in found] == ["differs", "agree"]
    assert "8.0%, 4.0%, 1.0% after them" in found[0].reason


def test_a_residual_that_is_not_finite_is_a_word():
    lost = small_starts(residual=(1.0, None, None, None))
    found = training._judge_residuals(lost)
    assert "not finite to not finite" in found[1].measured
    assert found[1].verdict == "differs"


def test_no_two_images_or_classes_look_alike(tmp_path, monkeypatch):
    kept = {}
    monkeypatch.setattr(
        training.Page, "figure", lambda p, name, figure, caption: kept.setdefault(name, figure)
    )
    training._draw_paths(small_starts(), training.Page(tmp_path))
    lines = [line for line in kept["paths"].axes[0].get_lines() if len(line.get_xdata()) == 2]
    colours = [line.get_color() for line in lines]
    assert len(colours) == len(set(colours)) > 8
    kept.clear()
    moment = {"epoch": 0, "paths": start(0, 0)["paths"][:10], "shares": [0.5, 0.2]}
    moment |= dict.fromkeys(("steps", "first", "between", "neighbour"), 0.5)
    run = {"moments": [moment], "labels": list(range(10)), "loss": [1.0], "accuracy": 0.5}
    training._draw_training({"data": "x", "runs": [run]}, training.Page(tmp_path))
    (box,) = kept["paths"].legends
    assert [text.get_text() for text in box.get_texts()] == [str(kind) for kind in range(10)]
    marks = [line for line in kept["paths"].axes[0].get_lines() if line.get_linestyle() == "None"]
    assert len({line.get_color() for line in marks}) == len({line.get_marker() for line in marks}) == 10
