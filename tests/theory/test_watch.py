"""(19) of docs/theory.md: bounds carried from a witness are sound, and renewed only when they must be."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from certifiable import FAMILIES, instance
from equipoise.linalg import singular_bounds
from equipoise.theory import facts
from equipoise.theory.watch import FeatureWatch, WeightWatch


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def watch(Z, floor, ceiling):
    return FeatureWatch(Z, singular_bounds(Z), floor, ceiling)


@given(seed=st.integers(0, 10_000), size=st.floats(1e-8, 1.0), error=st.floats(0.0, 0.3))
@settings(max_examples=60)
def test_what_is_admitted_is_inside(seed, size, error):
    Z = random(6, 9, seed=seed)
    s = torch.linalg.svdvals(Z)
    guard = watch(Z, 0.5 * float(s[-1]), 1.1 * float(s[0]))
    moved = Z + size * random(6, 9, seed=seed + 1)
    worst = torch.linalg.svdvals(moved)
    if guard.admits(moved, error):
        assert float(worst[-1]) - error >= guard.floor * (1 - 1e-12)
        assert float(worst[0]) + error <= guard.ceiling * (1 + 1e-12)
    else:  # not refused without need, either
        assert float(worst[-1]) - error <= guard.floor * (1 + 1e-6) or float(
            worst[0]
        ) + error >= guard.ceiling * (1 - 1e-6)


def test_near_the_witness_nothing_is_factorised():
    Z = random(6, 9)
    least, most = float(torch.linalg.svdvals(Z)[-1]), float(torch.linalg.svdvals(Z)[0])
    guard = watch(Z, 0.5 * least, 2 * most)
    for i in range(20):
        assert guard.admits(Z + 0.01 * least * random(6, 9, seed=i) / 9, 1e-9)
    assert guard.renewals == 0
    U, _, Vt = torch.linalg.svd(Z)
    far = Z + 0.9 * most * torch.outer(U[:, 0], Vt[0])
    assert guard.admits(far, 1e-9)  # ‖far − Z‖ is beyond what the witness bears, and yet it is inside
    assert guard.renewals == 1
    assert guard.svds == 0
    assert guard.admits(far + 1e-3 * random(6, 9) * least, 1e-9)  # near the new witness
    assert guard.renewals == 1


def test_what_is_certainly_outside_costs_no_factorisation():
    Z = random(6, 9)
    most = float(torch.linalg.svdvals(Z)[0])
    guard = watch(Z, 0.0, 0.5 * most)
    assert not guard.admits(Z, 0.0)
    assert not guard.admits(Z, math.inf)
    assert guard.renewals == 0


def test_small_singular_values_are_seen_by_an_svd():
    U, _, Vt = torch.linalg.svd(random(6, 9), full_matrices=False)
    Z = (U * torch.logspace(0, -10, 6, dtype=torch.float64)) @ Vt
    guard = watch(Z, 5e-11, 2.0)
    turned = Z @ torch.linalg.qr(random(9, 9, seed=1)).Q  # the same singular values, far away
    assert guard.admits(turned, 0.0)
    assert guard.svds == 1
    assert not guard.admits(turned, 9e-11)


@given(seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_norms_of_moving_weights_are_bounded_above(seed):
    W = 0.6 * random(8, 8, seed=seed) / math.sqrt(8) / 2
    guard = WeightWatch()
    for i in range(10):
        found = guard.norm(W)
        true = float(torch.linalg.matrix_norm(W, ord=2))
        assert true <= found.hi <= true + 0.3
        W = W + 0.01 * random(8, 8, seed=seed + i)
    assert 1 <= guard.renewals < 10


@pytest.mark.parametrize("family", FAMILIES)
def test_an_enclosure_near_a_witness_agrees_with_the_one_from_scratch(family):
    model, X, _ = instance(family)
    model.requires_grad_(False)
    guard = WeightWatch()
    for _ in range(3):
        near, fresh = facts(model).enclosure_near(X, guard), facts(model).enclosure(X)
        torch.testing.assert_close(near.weight, fresh.weight)
        torch.testing.assert_close(near.injection, fresh.injection)
        assert near.weight_norm.hi >= fresh.weight_norm.lo
        assert near.resolvent.hi >= fresh.resolvent.hi * (1 - 1e-9)
        assert near.resolvent.hi <= 2 * fresh.resolvent.hi
        assert near.injection_error == pytest.approx(fresh.injection_error)
        assert near.weight_error == pytest.approx(fresh.weight_error)
        for name in model.hidden_names:
            model.get_parameter(name).add_(1e-3 * random(*model.get_parameter(name).shape))


def test_the_error_of_a_weight_counts_near_a_witness():
    model, X, _ = instance("gao2022")
    known, guard = facts(model.requires_grad_(False)), WeightWatch()
    plain = known.enclosure_near(X, guard)
    known.weight_error = lambda weight: 0.125
    found = known.enclosure_near(X, guard)
    assert found.weight_norm.hi >= plain.weight_norm.hi + 0.125 - 1e-12
    assert found.resolvent.hi > plain.resolvent.hi


def test_a_weight_beyond_one_is_seen():
    model, X, _ = instance("ling2023")
    model.requires_grad_(False)
    guard = WeightWatch()
    assert facts(model).enclosure_near(X, guard).unique[0].holds
    model.W.mul_(1.0000001 / torch.linalg.matrix_norm(model.W, ord=2))
    at = facts(model).enclosure_near(X, guard)
    assert not at.contraction.holds
    assert at.unique[0].name == "λ_max(sym W) < 1"
    assert at.resolvent.hi == pytest.approx(facts(model).enclosure(X).resolvent.hi, rel=1e-9)
    model.W.copy_(model.W @ model.W.T)  # of which ‖W‖ is λ_max(sym W)
    model.W.mul_(1.0000001 / torch.linalg.matrix_norm(model.W, ord=2))
    at = facts(model).enclosure_near(X, guard)
    assert not at.unique[0].holds
    assert at.resolvent.hi == math.inf
