"""What the families and the theorems hand on: every rounding of a weight, every norm and every step."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
import torch

import equipoise as eq
from certifiable import instance
from equipoise.linalg import Interval, frobenius, gamma
from equipoise.theory import ling2023
from equipoise.theory.common import relative_movement
from equipoise.theory.convex_losses import _UNITS, CONVEX
from equipoise.theory.enclosure import product_rounding
from equipoise.theory.instance import Instance
from equipoise.theory.register import facts
from equipoise.theory.two_timescale import _SHARE, TwoTimescale

F64 = torch.float64


def _exact(rows):
    return [[Fraction(v) for v in row] for row in rows.tolist()]


@pytest.mark.parametrize("seed", range(3))
def test_an_exported_weight_is_within_its_error_of_the_exact_one(seed):
    model = eq.Monotone(2, 4, dtype=F64, generator=torch.Generator().manual_seed(seed))
    W = model.weight().detach()
    found = facts(model).iteration(W, torch.zeros_like(W)).weight_error
    A, B, stored = _exact(model.A), _exact(model.B), _exact(W)
    off = Fraction(0)
    for i in range(4):
        for j in range(4):
            exact = (i == j) * (1 - Fraction(model.margin)) - sum(A[k][i] * A[k][j] for k in range(4))
            off += (exact + B[i][j] - B[j][i] - stored[i][j]) ** 2
    assert 0 < off <= Fraction(found.lo) ** 2


def test_every_sum_of_a_linear_predictor_is_rounded():
    """M − MW − B of one unit with W = γ close to 1: ‖MW‖ is as large as ‖M‖, and ‖B‖ is far smaller."""
    model = eq.LinearEquilibrium(1, gamma=0.96875, dtype=F64)
    with torch.no_grad():
        model.B.fill_(2.0**-5)
        at = dataclasses.replace(
            facts(model).enclosure(torch.ones(1, 1, dtype=F64)), weight_error=0.0, resolvent=Interval(1.0)
        )
        M, found = facts(model).predictor(at)
    assert float(M) == 1.0
    assert float(at.weight) == 0.96875
    sizes = gamma(4) * (1 + 0.96875 + 2.0**-5)
    assert found.hi >= (product_rounding(M, at.weight).hi + sizes) * (1 - 2.0**-40)


def test_descent_stays_where_the_features_of_its_start_are(monkeypatch):
    """‖Z(0)‖_F is at most the size of the features that the floor of the promise counts with."""
    model, X, y = instance("ling2023")
    seen = []
    plain = ling2023.plain_descent
    monkeypatch.setattr(
        ling2023, "plain_descent", lambda *args, **more: seen.append(args[2]) or plain(*args, **more)
    )
    eq.certify(model, 100 * X, y, theorem="ling2023")
    assert frobenius(model.equilibrium(100 * X).detach()).lo <= seen[0].S.lo


def test_the_hidden_step_is_a_share_of_what_is_certainly_allowed(monkeypatch):
    argue = TwoTimescale._argue

    def unsure(self, start, at, tau, *rest):
        found = argue(self, start, at, tau, *rest)
        if isinstance(tau, Interval):
            found = dataclasses.replace(found, largest=Interval(found.largest.lo / 2, found.largest.hi))
            allowed.append(found.largest.lo)
        return found

    allowed: list[float] = []
    monkeypatch.setattr(TwoTimescale, "_argue", unsure)
    model, X, y = instance("ling2023")
    found = eq.certify(model, X, y, theorem="two_timescale")
    assert 0 < Fraction(found["η_h > 0"].lhs) <= Fraction(_SHARE) * Fraction(allowed[0])


@pytest.mark.parametrize("seed", range(6))
def test_the_sizes_of_a_cross_entropy_hold_what_their_own_sum_lost(seed):
    g = torch.Generator().manual_seed(seed)
    q = torch.cat([torch.zeros(1, 1, dtype=F64), -800 - torch.rand(1, 6, dtype=F64, generator=g)], 1)
    y = torch.rand(1, 7, dtype=F64, generator=g)
    y /= y.sum()
    (error,) = CONVEX["cross_entropy"].rows(q, y).value_error.tolist()
    size = 1 - sum(a * b for a, b in zip(_exact(y)[0], _exact(q)[0], strict=True))  # log Σ e^q is 0 here
    assert Fraction(gamma(4 * 7 + _UNITS)) * size <= Fraction(error)


@pytest.mark.parametrize("seed", range(3))
def test_a_scaled_weight_is_within_its_error_of_the_exact_one(seed):
    model = eq.ScaledReLU(2, 3, gamma=0.3, dtype=F64, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model.A += torch.rand(3, 3, dtype=F64, generator=torch.Generator().manual_seed(seed))
    W = model.weight().detach()
    found = facts(model).iteration(W, torch.zeros_like(W)).weight_error
    off = Fraction(0)
    for row, stored in zip(_exact(model.A.T), _exact(W), strict=True):
        off += sum((Fraction(model.gamma) * a - w) ** 2 for a, w in zip(row, stored, strict=True))
    assert 0 < off <= Fraction(found.lo) ** 2


def test_the_rate_of_splitting_is_that_of_the_largest_resolvent():
    model, X, y = instance("hieu2022")
    at = Instance(model, X, y)
    rates = []
    for least in (0.5, 1.0):
        at.__dict__["enclosure"] = dataclasses.replace(
            at.enclosure, resolvent=Interval(least, 2.0), contraction=None
        )
        rates.append(facts(model).rate(at)[0])
    assert rates[0] == rates[1] < 1.0


def test_the_movement_is_a_share_of_the_smallest_equilibria():
    model, X, y = instance("ling2023")
    at = Instance(model, X, y)
    share = relative_movement(at, Interval(1.0, 2.0))
    assert Fraction(share) >= 2 / Fraction(at.equilibria.frobenius.lo)
