"""The experiments of [hieu2022]: what is trained can learn, and what is judged can fail."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from equipoise.kernels import tangent_kernel
from equipoise.models import Monotone
from equipoise.papers import hieu2022_monotone as monotone
from equipoise.papers import hieu2022_multiscale as multiscale
from equipoise.papers.experiments import Context, Settings, experiment
from equipoise.papers.hieu2022_landscape import dataset
from equipoise.papers.runner import run_one


@pytest.mark.parametrize("scale", list(multiscale.CHANNELS))
def test_a_multiscale_deq_tells_images_apart_at_every_scale(scale):
    X = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    scores = multiscale.build(X, multiscale.CHANNELS[scale], 0)(X).detach()
    assert float(scores.std(dim=0).min()) > 1e-3


def toy():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(4, 6, dtype=torch.float64, generator=generator)
    X = X / X.norm(dim=1, keepdim=True)
    return X, torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)


def certified():
    return {"proved": True, "violations": 0}


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
    found = monotone.judge_monotone({"runs": [run]})
    assert found[0].verdict == verdict


def test_nothing_measured_is_no_agreement():
    run = {"loss": [1.0], "moments": [], "stopped": "step 1: no equilibrium", "certified": certified()}
    assert [j.verdict for j in monotone.judge_monotone({"runs": [run]})] == ["differs"] * 3 + ["agree"]


def test_linear_convergence_is_told_from_a_power_law():
    moment = {"lambda_min": 1.0, "effective": 2.0}
    k = np.arange(301)

    def verdict(loss, stopped=""):
        run = {"loss": loss.tolist(), "moments": [moment], "stopped": stopped, "certified": certified()}
        return monotone.judge_monotone({"runs": [run]})[2].verdict

    assert verdict(0.98**k) == "agree"
    assert verdict(1 / np.sqrt(k + 1)) == "differs"
    assert verdict(1 / (k + 1)) == "differs"
    assert verdict(0.98**k, "step 300: the loss is not finite") == "differs"
    assert verdict(0.9999**k) == "differs"  # not halved
    assert verdict(0.98**k + 0.1 * (k == 150)) == "differs"  # a rise


@pytest.mark.parametrize("scale", ["tiny", "small", "medium"])
def test_a_slice_is_of_the_data_asked_for(scale, tmp_path):
    context = Context(Settings(scale, ("kmnist",)), tmp_path)
    assert dataset(context) == "kmnist"
    assert not context.notes
    own = Context(Settings(scale, data_dir=str(tmp_path)), tmp_path)
    assert dataset(own) == "digits"  # CIFAR10 is not there
    assert "stand" in own.notes[-1]


def test_both_landscapes_say_that_digits_stand_in(tmp_path):
    for key in ("hieu2022.fig4.4", "hieu2022.fig4.5"):
        result = run_one(experiment(key), Settings("tiny"), tmp_path)
        assert any("digits stand for CIFAR10" in note for note in result.notes), key
