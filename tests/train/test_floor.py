"""No run exceeds `bound(k)`, down to where rounding decides: the floor is above what float64 reaches."""

from __future__ import annotations

import pytest
import torch

import equipoise as eq
from certifiable import FAMILIES, instance
from equipoise.theory.hieu2022 import certified_start


def kept(family, theorem="two_timescale", steps=60, scale=1.0, N=5, width=3, outputs=1, seed=0, **options):
    """A proved run long enough to reach the floor, and its certificate."""
    model, X, y = instance(family, N=N, width=width, outputs=outputs, seed=seed)
    certificate = eq.certify(model, scale * X, y, theorem=theorem, **options)
    assert certificate.proved
    run = eq.gradient_descent if theorem == "two_timescale" else eq.safeguarded_descent
    return run(model, scale * X, y, steps, certificate), certificate


@pytest.mark.parametrize("readout", ["gradient", "gauss-newton"])
@pytest.mark.parametrize("family", FAMILIES)
def test_slack_that_carries_the_targets_is_rounded_at_its_own_size(family, readout):
    """Z is small, so that √λ e carries y: its rounding, and solves as tight as float64 allows, decide."""
    options = {"slack": 1.0, "tau": 0.01, "theta": 0.5, "rtol": 1e-15, "scale": 0.01}
    history, certificate = kept(family, readout=readout, outputs=2, **options)
    assert certificate.bound(60) == certificate.floor < 1e-20
    assert history.violations() == []


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("theorem", ["two_timescale", "safeguarded"])
def test_a_promise_on_the_gap_is_recorded_on_the_gap(theorem, outputs):
    """N > m: no weights of the linear family fit y, and Gauss-Newton steps end at the least loss."""
    more = {"N": 40, "width": 6, "outputs": outputs, "readout": "gauss-newton", "steps": 30, "eta": 1.0}
    history, certificate = kept("kawaguchi2021", theorem, **more)
    _, X, y = instance("kawaguchi2021", N=40, width=6, outputs=outputs)
    least = float((y - X @ torch.linalg.lstsq(X, y).solution).square().sum())
    assert least > 1
    assert history.least_loss == pytest.approx(least, rel=1e-12)
    assert history.loss[-1] == pytest.approx(least, rel=1e-9)
    assert "L(k) − L*" in certificate.promise
    assert history.violations() == []
    assert certificate.floor < 1e-9


def test_a_run_solves_no_looser_than_its_floor_allows():
    model, X, y = instance("ling2023")
    certificate = eq.certify(model, X, y, theorem="two_timescale")
    for loose in (eq.Stop(rtol=1e-6), eq.Stop(rtol=1e-13, atol=1e-3)):
        with pytest.raises(ValueError, match=r"stop\.[ra]tol must be at most"):
            eq.gradient_descent(model, X, y, 3, certificate, stop=loose)


@pytest.mark.parametrize("theorem", ["two_timescale", "safeguarded"])
@pytest.mark.parametrize("family", ["ling2023", "gao2022"])
def test_promises_are_kept_where_the_map_is_monotone_and_does_not_contract(family, theorem):
    model, X, y = instance(family, N=6, width=16)
    with torch.no_grad():
        hidden = model.W if family == "ling2023" else model.A
        hidden.copy_(torch.randn(16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))
        hidden.mul_(1.2 / float(torch.linalg.matrix_norm(model.weight(), 2)))
    certificate = eq.certify(model, X, y, theorem=theorem)
    assert certificate.proved
    assert certificate.claims[0].name == "λ_max(sym W) < 1"
    run = eq.gradient_descent if theorem == "two_timescale" else eq.safeguarded_descent
    history = run(model, X, y, 15, certificate)
    assert len(history.loss) == 16
    assert history.violations() == []
    if theorem == "safeguarded":
        assert history.accepted["hidden"].max() > 0


PAPERS = ("ling2023", "gao2022.descent", "hieu2022.descent")


def near_solved(theorem, distance):
    """A start that the paper's theorem is proved of, with targets at this relative distance from ŷ."""
    generator = torch.Generator().manual_seed(0)
    X = torch.linalg.qr(torch.randn(3, 1, dtype=torch.float64, generator=generator)).Q.T.contiguous()
    options = {"dtype": torch.float64, "generator": generator}
    if theorem == "ling2023":
        model, more = eq.GaussianReLU(3, 100, sigma_w2=0.001, **options), {}
    elif theorem == "gao2022.descent":
        model, more = eq.ScaledReLU(3, 50, init="section5.1", **options), {"C": (0.01, 0.1, 0.1)}
    else:
        model = eq.Monotone(3, 6, margin=1.0, **options)
        more = {"radii": certified_start(model, X, torch.ones(1, dtype=torch.float64), kind="descent")}
    with torch.no_grad():
        model.readout_weight.copy_(1e-4 * torch.rand(model.width, dtype=torch.float64, generator=generator))
        y = model.readout(model.equilibrium(X, stop=eq.Stop(rtol=4e-15, max_steps=5000))) * (1 + distance)
    return model, X, y, eq.certify(model, X, y, theorem=theorem, **more)


@pytest.mark.parametrize("theorem", PAPERS)
def test_a_loss_that_rounding_holds_is_within_the_bound(theorem):
    """Steps are smaller than the rounding of the weights: the loss stays as it is, or rises a little."""
    model, X, y, certificate = near_solved(theorem, 4e-15)
    assert certificate.proved, certificate.explain()
    history = eq.gradient_descent(model, X, y, 20, certificate)
    assert history.violations() == []
    assert certificate.floor > 1
    assert "rounding decides from the first step on" in certificate.explain()


@pytest.mark.parametrize("theorem", PAPERS)
def test_the_bounds_of_the_papers_end_at_a_floor(theorem):
    model, X, y, certificate = near_solved(theorem, 1.0)
    assert certificate.proved, certificate.explain()
    assert certificate.bound(10**12) == certificate.floor
    assert 0 < certificate.floor < 1e-4
    step = certificate.step_size
    assert certificate.bound(10**12, step / 3) == pytest.approx(9 * certificate.floor)
    assert certificate.bound(10**12, step * 1e-9) == float("inf")
    assert eq.gradient_descent(model, X, y, 20, certificate).violations() == []
