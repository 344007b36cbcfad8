"""Every term of a Lipschitz bound and of a radius counts, each against its formula in exact arithmetic."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import pytest
import torch

import equipoise as eq
from certifiable import FAMILIES, instance
from equipoise.linalg import Interval, gamma, norm_upper
from equipoise.theory import equilibrium_error
from equipoise.theory.anchored_objective import _weighed
from equipoise.theory.claim import Claim
from equipoise.theory.instance import Instance
from equipoise.theory.lipschitz import AffineBounds, pairs, score_error
from equipoise.theory.robustness import _certain, certified_radius
from equipoise.theory.verification import _AGREES, _alike, _same, _same_claim

F64 = torch.float64


def test_active_units_are_never_taken_for_units_that_stay_off():
    """ŷ = relu(10x₁) − relu(x₂) at (1, 5): its sign flips 5/√101 away, and a third unit is off."""
    model = eq.GaussianReLU(inputs=2, width=3, dtype=F64)
    with torch.no_grad():
        model.W.zero_()
        model.U.copy_(torch.tensor([[10.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
        model.a.copy_(torch.tensor([1.0, -1.0, 0.0]))
    X = torch.tensor([[1.0, 5.0]], dtype=F64)
    for local in (False, True):
        assert 0.3 < float(certified_radius(model, X, local=local).radius) <= 5 / math.sqrt(101)


def test_a_sum_of_losses_holds_what_its_rounding_lost():
    value = torch.tensor([1.0, *[2.0**-54] * 9], dtype=torch.float64)  # whose sum is no float
    found = _weighed(torch.ones_like(value), value, torch.zeros_like(value))
    assert Fraction(found.lo) < 1 + Fraction(9, 2**54) < Fraction(found.hi)
    assert found.hi - found.lo < 1e-14


def test_labels_below_the_first_class_are_refused():
    model = eq.GaussianReLU(inputs=2, width=3, outputs=2, dtype=F64)
    with pytest.raises(ValueError, match="row 1"):
        certified_radius(model, torch.ones(2, 2, dtype=F64), torch.tensor([0, -1]))


def test_numbers_too_small_for_relative_rounding_are_not_certain():
    lower = torch.tensor([2.0**-1001, -1.0, math.nan, 2.0**-990, 3.0], dtype=F64)
    assert _certain(lower).tolist() == [0.0, 0.0, 0.0, 2.0**-990, 3.0]


@pytest.mark.parametrize("error", [0.0, 1e-3])
def test_the_error_of_two_scores_is_that_of_the_equilibrium_and_of_two_dot_products(error):
    Z, a = torch.eye(5, dtype=F64)[:2] * 3, torch.eye(5, dtype=F64)[:, :3] * 2
    for shift, added in ((None, 0.0), (torch.tensor([1.0, -7.0, 2.0], dtype=F64), 7.0)):
        truth = 2 * (2 * error + gamma(5 + 6) * (3 * 2 + added))
        assert truth * (1 - 1e-15) <= score_error(Z, error, a, shift) <= truth * (1 + 1e-12)


def test_products_of_bounds_are_rounded_up():
    for seed in range(8):
        g = torch.Generator().manual_seed(seed)
        bounds = AffineBounds(eq.Monotone(3, 4, outputs=2, dtype=F64, generator=g))
        assert Fraction(bounds.output_bound()) >= Fraction(norm_upper(bounds.a)) * Fraction(
            bounds.state_bound()
        )


def test_the_error_of_a_weight_counts_in_the_resolvent():
    bounds = AffineBounds(eq.GaussianReLU(inputs=2, width=3, dtype=F64))
    bounds.enclosure = dataclasses.replace(
        bounds.enclosure, weight=torch.zeros(3, 3, dtype=F64), weight_error=0.5, resolvent=Interval(100.0)
    )
    assert 2.0 <= bounds.resolvent().hi <= 2.0 * (1 + 1e-12)  # 1/(1 − ½)
    bounds.enclosure = dataclasses.replace(bounds.enclosure, weight_error=1.0)
    assert bounds.resolvent().hi == 100.0  # nothing is left of the margin


def test_both_rows_of_a_pair_carry_their_error():
    rows = torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=F64)
    found = pairs([(rows, Interval(0.25), Interval(2.0)), (rows, Interval(0.0), Interval(1.0))])
    assert 2 * (5 + 0.5) + 5 <= float(found[0, 1]) == float(found[1, 0]) <= 16 * (1 + 1e-12)
    assert found.diagonal().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("family", [*FAMILIES, "xie2021"])
def test_the_error_of_equilibria_that_are_no_numbers_is_infinite(family):
    if family == "xie2021":
        model, X = eq.OptEq(3, 4, 4, bound=0.9, dtype=F64), torch.ones(2, 3, dtype=F64)
    else:
        model, X, _ = instance(family, N=2, width=4)
    Z = model.equilibrium(X).detach()
    assert equilibrium_error(model, X, Z) < 1e-3
    for bad in (math.nan, math.inf):
        Z[1, 2] = bad
        assert equilibrium_error(model, X, Z) == math.inf


@pytest.mark.parametrize("family", FAMILIES)
def test_the_hidden_step_and_the_movement_are_those_of_the_proof(family):
    model, X, y = instance(family)
    found = eq.certify(model, X, y, theorem="two_timescale")
    gradients = 2 if family == "kawaguchi2021" else 1  # of L = ‖r‖², those of ½‖r‖² twice
    assert gradients * found.step_sizes["hidden"] == pytest.approx(found["η_h > 0"].lhs, rel=1e-12, abs=0.0)
    left = (1 - found.constants["theta"]) * found.constants["nu"]
    size = float(model.equilibrium(X).norm().detach())
    assert found.movement == pytest.approx(found["(T4)"].lhs / left / size, rel=1e-6, abs=0.0)


def test_words_of_two_certificates_are_told_apart():
    assert not _same(True, False)
    assert not _same(None, 0)
    assert not _same((1.0, 2.0), (1.0, 2.5))
    assert not _same(Interval(1.0, 2.0), Interval(0.5, 2.0))
    assert not _same(Interval(1.0, 2.0), Interval(1.0, 2.5))
    assert _same(Interval(1.0, 2.0), Interval(1.0, 2.0))
    assert _alike(1e-14, 5e-14)
    assert not _alike(1e-3, 1.0)
    assert not _alike(1e-9, 1e-2)


@pytest.mark.parametrize("end", range(4))
def test_a_claim_with_another_end_is_another_claim(end):
    claim = lambda ends: Claim("", "", Interval(*ends[:2]), "<", Interval(*ends[2:]))
    ends = [1.0, 2.0, 8.0, 9.0]
    assert _same_claim(claim(ends), claim(ends), _AGREES)
    ends[end] += 0.25
    assert not _same_claim(claim(ends), claim([1.0, 2.0, 8.0, 9.0]), _AGREES)


def test_units_that_are_off_rise_as_fast_as_the_error_of_a_weight_lets_them():
    model, X, _ = instance("ling2023", width=4)
    bounds = AffineBounds(model)
    points = Instance(model, X)
    slow = bounds._off_units(points)[1]
    points.enclosure = dataclasses.replace(points.enclosure, weight_error=0.5)
    assert bool((bounds._off_units(points)[1] >= slow + 0.499 * bounds.state_bound()).all())
