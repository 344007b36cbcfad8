"""What safeguarded descent accepts, check by check, on states that break one condition alone."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import pytest
import torch

import equipoise as eq
from certifiable import instance
from equipoise.linalg import frobenius
from equipoise.train.guarded_run import GuardedRun, _directions, _feature_watch, _largest
from equipoise.train.last_good import LastGood
from equipoise.train.readout import _by_svd


def start(family="ling2023", slack=0.0, **options):
    model, X, y = instance(family)
    certificate = eq.certify(model, X, y, theorem="safeguarded", slack=slack, **options)
    assert certificate.proved
    return GuardedRun(model, X, y, certificate, None, "gradient"), certificate


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


def test_the_limit_of_a_residual_is_rounded_down():
    run, _ = start()
    now = run._residual(run.point, run.readout.a, run.readout.e)
    *_, limit = run._readout_step(run.point)
    assert Fraction(limit) <= Fraction(run.rate) * Fraction(min(now.size.lo, run.residual.norm))


@pytest.mark.parametrize("family", ["ling2023", "kawaguchi2021"])
def test_the_readout_steps_as_the_certificate_says(family):
    run, certificate = start(family, readout="gradient")
    size = certificate.step_sizes["readout"] * (2 if family == "kawaguchi2021" else 1)  # of L = ‖r‖²
    assert run.eta == pytest.approx(size, rel=1e-15)
    assert run.eta * certificate.constants["S_bar"] ** 2 <= 1


def test_the_watch_of_features_starts_at_what_is_proved_of_them():
    run, _ = start()
    point = dataclasses.replace(run.point, error=0.125)
    known = {"slack": 0.1, "sigma_floor": 0.4, "S_bar": 1.3, "Z_norm": 0.75, "Z_sigma_min": 0.5}
    watch = _feature_watch(point, known)
    bounds = watch.witness.at_matrix
    assert bounds.norm.hi == pytest.approx(0.875, rel=1e-15)
    assert bounds.sigma_min.lo == pytest.approx(0.375, rel=1e-15)
    slack, low, high = (Fraction(known[name]) for name in ("slack", "sigma_floor", "S_bar"))
    assert Fraction(watch.floor) ** 2 >= low**2 - slack  # σ_min([Z, √λ I])² = σ_min(Z)² + λ
    assert Fraction(watch.ceiling) ** 2 <= high**2 - slack
    assert watch.floor == pytest.approx(math.sqrt(0.06), rel=1e-12)
    assert _feature_watch(point, known | {"slack": 0.2}).floor == 0.0  # the slack alone is enough
    assert _feature_watch(dataclasses.replace(point, error=9.0), known).witness.at_matrix.sigma_min.lo == 0.0


def test_the_share_of_an_update_that_a_limit_bears():
    base, change = torch.tensor([3.0, 0.0]), torch.tensor([1.0, 2.0])
    t = _largest(base, change, 5.0)
    assert float((base + t * change).norm()) == pytest.approx(5.0)
    assert t > 0
    assert _largest(base, change, 2.9) == _largest(base, math.nan * change, 5.0) == 0.0
    assert _largest(base, 0 * change, 5.0) == math.inf


@pytest.mark.parametrize("wrong", [[1.0], ["W"], {"W": torch.ones(2)}, {"W": torch.eye(2).log()}, {"W": 1.0}])
def test_directions_that_are_none_are_refused(wrong):
    with pytest.raises(ValueError, match="direction"):
        _directions(lambda gradients: wrong, {"W": torch.zeros(2, 2)})


@pytest.mark.parametrize("slack", [0.0, 0.25])
def test_the_step_by_an_svd_is_the_one_of_least_norm(slack):
    g = torch.Generator().manual_seed(0)
    Z, r = (torch.randn(*n, dtype=torch.float64, generator=g) for n in ((4, 6), (4, 2)))
    wide = torch.cat([Z, math.sqrt(slack) * torch.eye(4, dtype=torch.float64)], dim=1)
    step = torch.cat(_by_svd(Z, r, math.sqrt(slack)))
    assert torch.allclose(step, torch.linalg.pinv(wide) @ r, rtol=1e-9)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_weights_are_put_back_in_the_right_model_though_interrupted(monkeypatch, elsewhere):
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    good, before, calls = LastGood(model), model.weight.detach().clone(), []
    copy = LastGood._copy

    def interrupted(self, target):
        calls.append(target)
        if len(calls) == 1:
            raise KeyboardInterrupt
        copy(self, target)

    monkeypatch.setattr(LastGood, "_copy", interrupted)
    target = other if elsewhere else model
    with torch.no_grad():
        target.weight.fill_(math.inf)
    with pytest.raises(KeyboardInterrupt):
        good.put_back(other if elsewhere else None)
    assert torch.equal(target.weight, before)
    assert calls == [target, target]
