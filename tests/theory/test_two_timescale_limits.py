"""What `two_timescale` refuses, and what it promises at the size of a paper."""

from __future__ import annotations

import math

import pytest
import torch

import equipoise as eq
from certifiable import FAMILIES, instance

TIGHT = eq.Stop(rtol=1e-13, max_steps=5000)
norm = lambda M: float(torch.linalg.matrix_norm(M.detach(), ord=2))


# -- outside the hypotheses ---------------------------------------------------------------------------------


@pytest.mark.parametrize("theorem", ["two_timescale", "safeguarded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_outside_the_hypotheses_is_refused_and_explained(family, theorem):
    model, X, y = instance(family)
    repeated = torch.cat([X[:5], X[:5]])
    bad = X.clone()
    bad[3, 2] = math.nan
    for data, words in ((repeated, "duplicate"), (0 * X, "slack"), (bad, "row 3")):
        certificate = eq.certify(model, data, y, theorem=theorem)
        assert not certificate.proved
        assert words in certificate.explain()
        assert certificate.bound(1) == math.inf
    assert eq.certify(model, repeated, y, theorem=theorem, slack=0.1).proved
    if family != "kawaguchi2021":
        model, X, y = instance(family, N=40)
        certificate = eq.certify(model, X, y, theorem=theorem)
        assert certificate.verdict == "hypotheses_fail"
        assert "a width of at least 40" in certificate.explain()
        assert "slack > 0" in certificate.explain()


@pytest.mark.parametrize("theorem", ["two_timescale", "safeguarded"])
@pytest.mark.parametrize("size", [1.0, 1 + 1e-9, 2.0])
def test_a_map_that_does_not_contract_is_refused(theorem, size):
    model, X, y = instance("ling2023")
    with torch.no_grad():
        model.W.copy_(model.W @ model.W.T)  # so that λ_max(sym W) is ‖W‖
        model.W.mul_(size / norm(model.W))
    certificate = eq.certify(model, X, y, theorem=theorem)
    assert not certificate.proved
    assert "‖W‖ < 1" in certificate.explain()


@pytest.mark.parametrize("theorem", ["two_timescale", "safeguarded"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"readout": "newton"},
        {"eta": 0.0},
        {"eta": 1.5},
        {"slack": -1.0},
        {"slack": math.nan},
        {"tau": 1.0},
        {"theta": 0.0},
        {"speed": 3},
    ],
)
def test_options_out_of_range_are_errors(theorem, wrong):
    model, X, y = instance("ling2023")
    with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
        eq.certify(model, X, y, theorem=theorem, **wrong)


def test_targets_that_are_fitted_already_promise_nothing_more():
    model, X, _ = instance("ling2023")
    y = model(X, stop=TIGHT).detach()
    certificate = eq.certify(model, X, y, theorem="two_timescale")
    assert certificate.bound(1000) == math.inf  # rounding alone decides what becomes of such a loss


# -- at the size of a paper ---------------------------------------------------------------------------------


def ling2023_start(width, seed=0):
    """N = 100 points of the sphere of radius √784, Gaussian labels [ling2023, §5]."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(100, 784, dtype=torch.float64, generator=generator)
    X *= 28 / X.norm(dim=1, keepdim=True)
    y = torch.randn(100, dtype=torch.float64, generator=generator)
    return eq.GaussianReLU(784, width, sigma_w2=0.08, dtype=torch.float64, generator=generator), X, y


def test_ling2023_start_at_width_400_is_certified_at_a_useful_rate():
    certificate = eq.certify(*ling2023_start(400), theorem="two_timescale")
    assert certificate.proved
    assert -1 / math.log(certificate.factor) < 180


@pytest.mark.slow
def test_ling2023_start_at_width_1000_takes_at_most_150_steps_an_e_fold():
    model, X, y = ling2023_start(1000)
    certificate = eq.certify(model, X, y, theorem="two_timescale")
    promised = -1 / math.log(certificate.factor)
    history = eq.gradient_descent(model, X, y, steps=200, step_size=certificate)
    measured = 200 / -math.log(history.relative_loss[200])
    assert promised <= 150
    assert history.violations() == []
    assert promised / 10 <= measured <= promised


@pytest.mark.parametrize("readout", ["gradient", "gauss-newton"])
@pytest.mark.parametrize("scale", [1e-170, 1e150])
def test_features_whose_squares_are_no_floats_get_a_verdict(readout, scale):
    model, X, y = instance("ling2023", N=5, width=12)
    certificate = eq.certify(model, scale * X, y, theorem="two_timescale", readout=readout)
    assert certificate.explain()
