"""Image experiments of [xie2021]: fair sizes, seeded runs, tables and pictures, at a size of seconds."""

import math

import numpy as np
import pytest
import torch

from equipoise.data import load
from equipoise.data.segmentation import digit_canvases
from equipoise.models.images import parameters_of
from equipoise.models.proximal import ConvOptEq
from equipoise.models.zoo import Scores
from equipoise.papers.framework import images as pictures
from equipoise.papers.framework.experiments import Context, Settings, experiment
from equipoise.papers.framework.runner import run_one
from equipoise.papers.xie2021 import images, networks, segmentation
from equipoise.solve import SAM, Stop

SIZE = {**images.MNIST, "shrink": 1, "extractor": [1], "state": 8, "hidden": [8, 12], "features": 8}


def test_networks_that_are_compared_have_about_as_many_parameters():
    names = (*images.MODELS, *images.IMPLICIT)
    counts = {w: parameters_of(networks.build(w, (1, 8, 8), SIZE, 0)) for w in names}
    for words, count in counts.items():
        assert abs(count / counts["OptEq α=1"] - 1) < 0.15, words
    assert isinstance(networks.build("OptEq α=0.8 + SAM", (1, 8, 8), SIZE, 0).solver, SAM)
    assert networks.build("OptEq α=0.8", (1, 8, 8), SIZE, 0).alpha == 0.8


def test_an_opteq_learns_the_digits_and_stays_in_its_ball():
    x, y, x_test, y_test = images.images(load("digits"), 600, 300, 0)
    assert x.shape == (600, 1, 8, 8)
    assert abs(float(x.mean())) < 1e-5
    runs = []
    for _ in range(2):
        model = networks.build("OptEq α=1", (1, 8, 8), SIZE, 0)
        losses = networks.fit(model, x, y, networks.Training(epochs=3, rate=0.01), seed=0)
        runs.append(losses)
    assert runs[0] == runs[1]
    assert losses[-1] < 0.5 * losses[0]
    assert images.accuracy(model, x_test, y_test) > 0.85
    assert all(n <= model.limit for n in model.norms())


def test_groups_slow_the_bounded_kernels_alone():
    model = networks.build("OptEq α=1", (1, 8, 8), SIZE, 0)
    free, slow = networks.parameter_groups(model, 0.01, 0.2)
    assert {id(p) for p in slow["params"]} == {id(layer.W) for layer in model.layers}
    assert (free["lr"], slow["lr"]) == (0.01, 0.002)
    assert len(free["params"]) + len(slow["params"]) == len(list(model.parameters()))
    monotone = networks.build("monotone DEQ", (1, 8, 8), SIZE, 0)
    _, slow = networks.parameter_groups(monotone, 0.01, 0.2)
    assert [id(p) for p in slow["params"]] == [id(monotone.A), id(monotone.B)]
    assert len(networks.parameter_groups(networks.build("CNN", (1, 8, 8), SIZE, 0), 0.01, 0.2)) == 1


def test_shifts_keep_the_size_and_the_pixels():
    x = torch.arange(2 * 36.0).reshape(2, 1, 6, 6) + 1
    moved = pictures.augmented(x, torch.Generator().manual_seed(0))
    assert moved.shape == x.shape
    assert set(moved[0].flatten().tolist()) <= {0.0, *x[0].flatten().tolist()}


@pytest.mark.parametrize("key", ["xie2021.mnist", "xie2021.table1"])
def test_a_table_of_every_network(key, tmp_path, with_units):
    result = run_one(experiment(key), Settings(scale="tiny", data=("digits",)), with_units(tmp_path))
    assert not result.error
    table = result.tables[0]
    implicit = images.IMPLICIT if key == "xie2021.table1" else ()
    assert [row[0] for row in table["rows"]] == [*images.MODELS, *implicit]
    assert (tmp_path / key / "accuracy.png").exists()
    assert len(result.judgements) == (8 if implicit else 4)
    assert "repeat-6 and ResidualConv are not in the paper" in " ".join(result.notes)
    again = run_one(experiment(key), Settings(scale="tiny", data=("digits",)), tmp_path)
    assert again.tables == result.tables  # from the store


def test_the_caption_is_true_of_every_network():
    said = images.how_solved((*images.MODELS, *images.IMPLICIT))
    for words in (*images.MODELS, *images.IMPLICIT):
        assert words in said
        model = networks.build(words, (1, 8, 8), SIZE, 0)
        way = next(part for part in images.how_solved([words]).split(": ", 1)[1:])
        stop = getattr(model, "stop", None)
        assert ("solved to" in way) == (stop is not None and not words.endswith(networks.SAM_SUFFIX)), words
        if "solved to" in way:
            assert f"to {stop.rtol:g}, or as far as {stop.max_steps} steps" in way
    assert "repeat-6: feedforward" in images.how_solved(["repeat-6"])
    assert "ResidualConv: solved to 0.01, or as far as 12 steps come" in said
    assert "neural ODE, augmented neural ODE: rk4 of 2 steps" in said


OPEN, UNTRIED = "undecided", "cannot be tried here"


def table(opteq=0.8, other=0.7, sam=0.0, low=-0.2, seeds=(-0.01, 0.0, 0.01), **others):
    """Accuracies of an OptEq, of the rest, what SAM adds, and how far α = .1 is from the others."""
    run = lambda a: [{"accuracy": a + d, "losses": [1 - a]} for d in seeds]
    models = {w: run(opteq) for w in images.OPTEQ}
    models |= {w + images.SAM_SUFFIX: run(opteq + sam) for w in images.OPTEQ}
    models["OptEq α=0.1"] = run(opteq + low)
    models |= {w: run(other) for w in ("CNN", *images.BESIDE)}
    return {"data": "x", "models": {**models, **{w: run(a) for w, a in others.items()}}}


def test_judgements_follow_the_numbers():
    verdicts = lambda *a, **k: [j.verdict for j in images._judge_table(table(*a, **k))]
    assert verdicts() == ["agree"] * 3 + [OPEN]
    assert verdicts(0.7, 0.8)[0] == "differs"
    assert verdicts(0.8, 0.8)[0] == OPEN
    assert verdicts(low=0.01)[1] == "differs"
    assert verdicts(low=-0.05)[1] == OPEN  # just as far as that
    assert verdicts(sam=0.1)[2:] == ["differs", "agree"]
    assert verdicts(sam=-0.1)[2:] == ["differs", "differs"]
    assert verdicts(sam=0.01)[2:] == ["agree", "agree"]
    assert verdicts(sam=0.02)[2] == OPEN
    assert verdicts(0.7, 0.8, sam=0.1, seeds=(0.0,)) == [OPEN] * 4  # one seed


def test_a_network_that_is_better_has_a_reason():
    measured = table()
    assert not images._judge_table(measured)[0].reason
    better = [{"accuracy": 0.85 + d, "losses": [0.1]} for d in (0.0, 0.01, 0.02)]
    measured["models"]["repeat-6"] = better  # which is not in the paper
    assert images._judge_table(measured) == images._judge_table(table())
    measured["models"]["CNN"] = better
    found = images._judge_table(measured)[0]
    assert found.verdict == "differs"
    assert "0.1 against 0.2 of the OptEq: it fits them better" in found.reason


def test_implicit_models_are_judged_where_they_were_trained():
    verdicts = lambda **others: [j.verdict for j in images._judge_implicit(table(**others))]
    names = dict.fromkeys(images.IMPLICIT, 0.5)
    assert verdicts(**names) == ["agree", "agree", "agree", UNTRIED]
    assert verdicts(**{**names, "neural ODE": 0.9}) == ["agree", "differs", "agree", UNTRIED]
    assert verdicts(**{**names, "monotone DEQ": 0.9}) == ["differs", "agree", "agree", UNTRIED]
    assert verdicts() == [UNTRIED] * 4
    assert "torchdiffeq" in images._judge_implicit(table())[1].reason


def test_without_torchdiffeq_no_neural_ode_is_trained(monkeypatch, tmp_path):
    monkeypatch.setattr(images.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(images, "_measure", lambda context, name, size, models: {"models": models})
    context = Context(Settings("tiny", ("digits",)), tmp_path)
    assert images.table1(context)["models"] == (*images.MODELS, "monotone DEQ")
    assert "torchdiffeq" in context.notes[-1]


def test_what_all_images_reach_is_said_and_not_judged(tmp_path, monkeypatch):
    measured = table() | {"whole": {"accuracy": 0.979, "parameters": 9}}
    for runs in measured["models"].values():
        runs[0]["parameters"] = 9
    assert images._judge_table(measured) == images._judge_table(table())
    monkeypatch.setattr(images.Page, "figure", lambda *args: None)
    page = images.Page(tmp_path)
    images._draw_table(measured, page)
    assert "an OptEq of 9 parameters classifies 97.90 % of the test images" in page.notes[-1]


def test_both_segment_better_than_guessing_and_pictures_are_drawn(tmp_path, with_units):
    result = run_one(experiment("xie2021.table2"), Settings(scale="tiny"), with_units(tmp_path))
    assert not result.error
    assert [row[0] for row in result.tables[0]["rows"]] == ["FCN", "OptEq"]
    assert (tmp_path / "xie2021.table2" / "pictures.png").exists()
    sizes = [int(row[1]) for row in result.tables[0]["rows"]]
    assert abs(sizes[0] / sizes[1] - 1) < 0.05


def test_training_lowers_the_loss_of_a_segmentation():
    x, y = segmentation.tensors(digit_canvases(64, 20, digits=1, noise=0.1))
    size = {"state": 8, "hidden": [8, 8], "features": 8, "extractor": [2], "reach": 3, "limit": 0.95}
    model = segmentation.build("OptEq", tuple(x.shape[1:]), 11, size, 0)
    assert isinstance(model, ConvOptEq)
    losses = segmentation.fit(model, x, y, steps=40, rate=0.01, seed=0)
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    assert all(math.isfinite(loss) for loss in losses)
    assert segmentation.predict(model, x[:3]).shape == (3, 20, 20)


def test_what_the_loop_does_is_measured():
    x, y = segmentation.tensors(digit_canvases(6, 20, digits=1, noise=0.1))
    size = {"state": 6, "hidden": [8, 8], "features": 8, "extractor": [2], "reach": 3, "limit": 0.95}
    model = segmentation.build("OptEq", tuple(x.shape[1:]), 11, size, 0)
    model(x)
    model.eval().stop = Stop(rtol=1e-6, max_steps=200)
    found = segmentation.balance(model, x, y)
    assert len(found["feedback"]) == 2
    assert all(0.02 < f < 1 for f in found["feedback"])
    with torch.no_grad():
        z, start = model.equilibrium(x), model.default_start(model.injection(x))
        assert found["beyond"] == pytest.approx(float((z - start).norm() / z.norm()), rel=1e-5)
        model.layers[0].W.zero_()  # f_1 = 0, so that T = f_2(0) and nothing comes before the last layer
    found = segmentation.balance(model, x, y)
    assert found["feedback"] == [0, 0]
    assert found["beyond"] < 1e-6  # the same sums in float32, of images that lie differently in memory
    assert found["alone"] == Scores.of(segmentation.predict(model, x), y, 11).miou


def test_the_judgement_of_the_segmentations_can_fail():
    loop = {"feedback": [0.04, 0.1], "beyond": 0.01, "alone": 0.3}
    runs = lambda values: [dict.fromkeys(segmentation.KEYS, v) | loop for v in values]
    judge = lambda *opteq, fcn=(0.4, 0.5): segmentation._judge_scores(
        {"models": {"FCN": runs(fcn), "OptEq": runs(opteq)}}
    )
    assert [j.verdict for j in judge(0.5, 0.6)] == ["agree"] * 3
    assert [j.verdict for j in judge(0.5, 0.45)] == [OPEN] * 3  # the seeds do not agree
    assert [j.verdict for j in judge(0.5, fcn=(0.4,))] == [OPEN] * 3  # one seed
    behind = judge(0.3, 0.4)
    assert [j.verdict for j in behind] == ["differs"] * 3
    assert len({j.reason for j in behind}) == 1
    assert behind[2].reason == (
        "T(0) is the equilibrium but for 1.0 %; W_l⋆z is 4, 10 % of the injection c_l, layer by layer; the "
        "last layer alone has mIoU 30.0"
    )
