"""What safeguarded descent accepts, check by check, on states that break one condition alone."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import equipoise as eq
from certifiable import instance
from equipoise.linalg import frobenius
from equipoise.train.guarded_run import Run


def start(family="ling2023", slack=0.0, **options):
    model, X, y = instance(family)
    certificate = eq.certify(model, X, y, theorem="safeguarded", slack=slack, **options)
    assert certificate.proved
    return Run(model, X, y, certificate, None, "gradient"), certificate


def judged(run, limit=1e9):
    a, e, base, _ = run._readout_step(run.point)
    return run._try(a, e, base, limit, run.point.Z, 1e-10)


@torch.no_grad()
def test_an_update_that_nearly_loses_uniqueness_is_rejected():
    """(S4): R⁺ ≤ 4R(0), whatever the loss would be; the features here are those of the start, nearly."""
    run, _ = start()
    run.features.admits = lambda Z, error: True
    run.weights = type(run.weights)()
    assert judged(run).safe
    run.R_bar = run._enclosure().resolvent.hi * (1 - 1e-9)
    assert not judged(run).safe
    run.R_bar = float("inf")
    assert judged(run).safe
    run.hidden["W"].copy_(1.5 * torch.eye(len(run.hidden["W"])))  # no longer unique at all
    assert not judged(run).safe


@torch.no_grad()
def test_each_check_rejects_alone():
    run, _ = start()
    _, _, base, _ = run._readout_step(run.point)
    assert judged(run, base.size.hi * (1 + 1e-6)).safe
    assert not judged(run, base.norm * (1 - 1e-6)).safe  # (S1)
    run.features.admits = lambda Z, error: False
    assert not judged(run).safe  # (S2), (S3)
    run.features.admits = lambda Z, error: True
    next(iter(run.hidden.values())).fill_(float("nan"))
    assert not judged(run).safe


@torch.no_grad()
@pytest.mark.parametrize("slack", [0.0, 0.5])
def test_the_size_of_a_residual_allows_for_the_error_of_its_equilibria(slack):
    run, _ = start(slack=slack)
    a, e = run.readout.a, run.readout.e
    for error in (0.0, 1e-3, 10.0):
        found = run._residual(dataclasses.replace(run.point, error=error), a, e)
        off = float(a.norm()) * error
        assert found.size.hi >= found.norm + off * (1 - 1e-12)
        assert found.size.lo <= max(found.norm - off * (1 - 1e-12), 0.0)
        assert found.size.hi <= found.norm + off * (1 + 1e-9) + 1e-10
    huge = 1e8 * torch.ones_like(e)  # e and y are rounded too, where all but cancels
    found = run._residual(dataclasses.replace(run.point, error=0.0), a, huge)
    assert found.size.hi - found.norm >= 2.0**-53 * run.slack**0.5 * frobenius(huge).lo


@pytest.mark.parametrize("family", ["ling2023", "kawaguchi2021"])
def test_the_readout_steps_as_the_certificate_says(family):
    run, certificate = start(family, readout="gradient")
    size = certificate.step_sizes["readout"] * (2 if family == "kawaguchi2021" else 1)  # of L = ‖r‖²
    assert run.eta == pytest.approx(size, rel=1e-15)
    assert run.eta * certificate.constants["S_bar"] ** 2 <= 1
