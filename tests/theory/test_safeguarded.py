"""The safeguarded theorem: what it promises, what its test must be given, and (20)-(21) of docs/theory.md."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from certifiable import FAMILIES, instance
from equipoise.theory import equilibrium_error

TIGHT = eq.Stop(rtol=1e-13, max_steps=5000)
singular = lambda M: torch.linalg.svdvals(M.detach())


@pytest.mark.parametrize("slack", [0.0, 0.5])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_constants_are_those_of_the_theorem(family, slack):
    model, X, y = instance(family)
    Z = model.solve(X, stop=TIGHT).value
    S, s = (math.sqrt(float(v) ** 2 + slack) for v in (singular(Z)[0], singular(Z)[-1]))
    newton = eq.certify(model, X, y, theorem="safeguarded", slack=slack)
    k = newton.constants
    assert newton.proved
    assert (k["readout"], k["tau"], k["theta"], k["nu"]) == ("gauss-newton", 0.5, 0.5, 0.1)
    assert k["S"] == pytest.approx(S)
    assert k["s"] == pytest.approx(s)
    assert k["sigma_floor"] == pytest.approx(0.5 * s)
    assert k["S_bar"] == pytest.approx(2 * S)
    assert k["rate"] == pytest.approx(0.95)
    assert newton.factor == pytest.approx(0.95**2)
    plain = eq.certify(
        model, X, y, theorem="safeguarded", readout="gradient", slack=slack, tau=0.25, theta=0.2
    )
    k = plain.constants
    assert k["S_bar"] == pytest.approx(S + 0.25 * s)
    step = plain.step_sizes["readout"] * (2 if family == "kawaguchi2021" else 1)
    assert plain["(T1)"].lhs == pytest.approx(step * k["S_bar"] ** 2)
    assert k["nu"] == pytest.approx(step * (0.75 * s) ** 2)
    assert plain.factor == pytest.approx((1 - 0.8 * k["nu"]) ** 2)
    assert plain.movement is None  # nothing limits how far the hidden layer moves


def test_the_certificate_says_what_it_rests_on():
    model, X, y = instance("ling2023")
    words = eq.certify(model, X, y, theorem="safeguarded", slack=0.1).explain()
    assert "accepted only under sound checks" in words
    assert "predictions use Za alone" in words
    assert "exact gradients" not in words  # any direction may be tried


def test_an_ill_conditioned_start_has_a_rate_all_the_same():
    model, X, y = instance("ling2023")
    X[1] = X[0] + 1e-6 * X[1]  # nearly a duplicate
    newton = eq.certify(model, X, y, theorem="safeguarded")
    plain = eq.certify(model, X, y, theorem="safeguarded", readout="gradient")
    assert newton.proved
    assert plain.proved
    assert newton.constants["S"] / newton.constants["s"] > 1e5
    assert -1 / math.log(newton.factor) < 10
    assert plain.constants["nu"] < 1e-10


@given(seed=st.integers(0, 10_000), off=st.floats(1e-8, 1.0))
@settings(max_examples=15)
@pytest.mark.parametrize("family", FAMILIES)
def test_20_and_21_the_error_of_any_z_is_bounded(family, seed, off):
    model, X, y = instance(family, N=6, width=12, seed=seed)
    exact = model.solve(X, stop=TIGHT).value
    generator = torch.Generator().manual_seed(seed)
    Z = exact + off * torch.randn(exact.shape, dtype=torch.float64, generator=generator)
    error = equilibrium_error(model, X, Z)
    assert float((Z - exact).norm()) <= error
    assert error <= 1e4 * off * float(exact.norm()) + 1e4 * off  # and is of the size of the truth
    drift = (singular(Z) - singular(exact)).abs().max()
    assert float(drift) <= error
    with torch.no_grad():
        a = float(torch.linalg.matrix_norm(model.readout_weight.reshape(12, -1), ord=2))
        change = (model.readout(Z) - y).norm() - (model.readout(exact) - y).norm()
    assert abs(float(change)) <= a * error
