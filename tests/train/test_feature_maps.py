"""A promise about training holds only for features that training leaves alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq

RUNS = {"two_timescale": eq.gradient_descent, "safeguarded": eq.safeguarded_descent}


def mapped(trained):
    generator = torch.Generator().manual_seed(0)
    phi = nn.Sequential(nn.Linear(4, 20), nn.Tanh()).double()
    with torch.no_grad():
        for p in phi.parameters():
            p.copy_(torch.randn(p.shape, dtype=torch.float64, generator=generator))
    phi.requires_grad_(trained)
    model = eq.LinearEquilibrium(20, feature_map=phi, dtype=torch.float64, generator=generator)
    X, y = (torch.randn(8, n, dtype=torch.float64, generator=generator) for n in (4, 1))
    return model, X, y


@pytest.mark.parametrize("theorem", ["two_timescale", "safeguarded", "kawaguchi2021"])
def test_nothing_is_proved_of_features_that_are_trained(theorem):
    certificate = eq.certify(*mapped(True), theorem=theorem)
    assert certificate.verdict == "hypotheses_fail"
    assert "requires_grad_(False)" in certificate.explain()


@pytest.mark.parametrize("readout", ["gradient", "gauss-newton"])
@pytest.mark.parametrize("theorem", RUNS)
def test_frozen_features_stay_and_the_promise_is_kept(theorem, readout):
    model, X, y = mapped(False)
    before = [p.clone() for p in model.feature_map.parameters()]
    certificate = eq.certify(model, X, y, theorem=theorem, readout=readout)
    assert certificate.proved
    history = RUNS[theorem](model, X, y, 10, certificate)
    assert len(history.loss) == 11
    assert np.all(history.loss <= history.promised * history.loss[0] * (1 + 1e-12))
    assert all(torch.equal(p, q) for p, q in zip(before, model.feature_map.parameters(), strict=True))


@pytest.mark.parametrize("theorem", RUNS)
def test_features_that_are_trained_after_all_are_refused_by_the_run(theorem):
    model, X, y = mapped(False)
    certificate = eq.certify(model, X, y, theorem=theorem)
    model.feature_map.requires_grad_(True)
    with pytest.raises(ValueError, match="not trained"):
        RUNS[theorem](model, X, y, 10, certificate)
