"""What the families and the theorems hand on: every rounding of a weight, every norm and every step."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import equipoise as eq
from certifiable import instance
from equipoise.linalg import Interval, frobenius, gamma, norm_upper
from equipoise.linalg.convolution import conv_norm_upper
from equipoise.models.images.parts import transposed_kernel
from equipoise.models.proximal.properties import GradientStep, differentiable
from equipoise.theory import ling2023, pl
from equipoise.theory.anchored import Anchored
from equipoise.theory.common import FEATURES, relative_movement
from equipoise.theory.conv_robustness import _resize_norm
from equipoise.theory.conv_wellposed import images_wellposed
from equipoise.theory.convex_losses import _UNITS, CONVEX
from equipoise.theory.enclosure import margin_of, product_rounding
from equipoise.theory.families import contracting, conv_monotone
from equipoise.theory.families.conv_monotone import _norms
from equipoise.theory.families.linear import softmax_units
from equipoise.theory.geometry import inverse_gap
from equipoise.theory.instance import Instance
from equipoise.theory.lipschitz import AffineBounds
from equipoise.theory.read_features import AffineReads
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
    off = []
    for i in range(4):
        for j in range(4):
            exact = (i == j) * (1 - Fraction(model.margin)) - sum(A[k][i] * A[k][j] for k in range(4))
            off.append(abs(exact + B[i][j] - B[j][i] - stored[i][j]))
    assert 0 < max(off) <= Fraction(found.lo)  # no entry of a matrix exceeds its norm


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
    rows = zip(_exact(model.A.T), _exact(W), strict=True)
    off = [abs(Fraction(model.gamma) * a - w) for row, kept in rows for a, w in zip(row, kept, strict=True)]
    assert 0 < max(off) <= Fraction(found.lo)


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


def test_units_of_a_softmax_are_no_fewer_than_the_spread_needs():
    A = torch.tensor([[0.0, 1.0], [2.5, 1.0]], dtype=F64)
    assert softmax_units(A) >= 2 * 2.5 + 24


def test_a_square_of_one_output_is_off_by_three_roundings():
    q, y = torch.randn(2, 300, 1, dtype=F64, generator=torch.Generator().manual_seed(0))
    found = CONVEX["half_square"].rows(q, y)
    for a, b, value, off in zip(
        _exact(q), _exact(y), found.value.tolist(), found.value_error.tolist(), strict=True
    ):
        assert abs((a[0] - b[0]) ** 2 / 2 - Fraction(value)) <= Fraction(off)


def test_a_monotone_weight_moves_by_the_largest_norm_it_may_have(monkeypatch):
    model, X, y = instance("hieu2022")
    at = Instance(model, X, y)
    monkeypatch.setattr(at, "norm", lambda name: Interval(1.0, 2.0))
    assert facts(model).geometry(at).a.lo == 2.0


@pytest.mark.parametrize("seed", range(4))
def test_the_resolvent_of_stacked_units_is_rounded_up(seed):
    model = eq.ScaledReLU(
        2, 3, gamma=0.1 * (seed + 1), dtype=F64, generator=torch.Generator().manual_seed(seed)
    )
    known = AffineBounds(model)
    below = known.units(model.W.T.detach()).resolvent
    above = Fraction(facts(model).units(known).resolvent)
    assert (above - 1) ** 2 >= 2 * Fraction(below) ** 2


@pytest.mark.parametrize("seed", range(6))
def test_the_resolvent_of_images_is_rounded_up(seed):
    made = {"limit": 0.9, "norm": 0.9, "dtype": F64, "generator": torch.Generator().manual_seed(seed)}
    model = eq.ConvOptEq((1, 5, 5), 3, (4,), 2, **made)
    found = eq.certify(model, torch.ones(1, 1, 5, 5, dtype=F64)).constants
    assert Fraction(found["R"]) * (1 - Fraction(found["rate"])) >= 1


def test_the_factor_of_a_safeguarded_run_is_no_smaller_than_its_rate_squared():
    for seed in range(3):
        model, X, y = instance("ling2023", seed=seed)
        found = eq.certify(model, X, y, theorem="safeguarded")
        assert Fraction(found.factor) >= Fraction(found.constants["rate"]) ** 2


def test_facts_of_a_user_keep_what_they_believe(monkeypatch):
    at = facts(instance("ling2023")[0])
    monkeypatch.setattr(at, "hypotheses", ("the sun shines",), raising=False)
    monkeypatch.setattr(sys.modules["equipoise.theory.facts"], "family_of", lambda kind: None)
    assert "the sun shines" in at.rests_on
    assert len(at.rests_on) == 2


def test_weights_of_samples_are_finite():
    for bad in (math.inf, math.nan, -1.0):
        with pytest.raises(ValueError, match="sample_weight must be"):
            Anchored(sample_weight=(1.0, bad))


def test_differences_of_kernels_are_rounded():
    model = eq.ConvMonotone((1, 5, 5), 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    _, k = _norms(model)
    B = model.B.detach()
    K = B - transposed_kernel(B)
    plain = conv_norm_upper(K, model.state[1:], 1, K.shape[-1] // 2)
    assert k.hi >= plain + 2.0**-53 * K.shape[-1] * frobenius(K).lo * (1 - 1e-3)


def test_a_property_that_may_expand_has_no_contraction():
    concave = GradientStep(differentiable(lambda z: -z.square().sum(1), lipschitz=2.0, convex=False))
    model = eq.ConvOptEq((1, 5, 5), 3, (4,), 2, limit=0.9, norm=0.9, dtype=F64, regulariser=concave)
    found = images_wellposed(model)
    assert (found.verdict, found.contraction) == ("inconclusive", math.inf)


def test_the_error_of_a_weight_lowers_its_margin():
    W = torch.zeros(3, 3, dtype=F64)
    assert margin_of(W, 0.25) <= 0.75 <= margin_of(W, 0.0)


def test_features_with_an_obstacle_are_not_unique():
    reads = object.__new__(AffineReads)
    for obstacle, claims in (("why", ()), ("", ()), ("why", (SimpleNamespace(holds=True),))):
        reads.obstacle, reads.claims = obstacle, claims
        assert not reads.unique


@pytest.mark.parametrize("R", [1.3, 3.7, 47.1])
def test_the_gap_of_a_resolvent_is_rounded_up(R):
    found = inverse_gap(SimpleNamespace(enclosure=SimpleNamespace(resolvent=Interval(1.0, R))))
    assert Fraction(found.lo) >= 1 - 1 / Fraction(R)


def test_what_a_head_reads_of_a_property_that_may_expand_is_not_proved():
    concave = GradientStep(differentiable(lambda z: -z.square().sum(1), lipschitz=2.0, convex=False))
    model = eq.ConvOptEq((1, 5, 5), 3, (4,), 2, limit=0.9, norm=0.9, dtype=F64, regulariser=concave)
    assert "not known to be nonexpansive" in facts(model).reads().obstacle


def test_the_margin_near_a_witness_is_less_by_the_error_of_the_weight(monkeypatch):
    model, X, _ = instance("gao2022")
    seen = []
    monkeypatch.setattr(contracting, "reasons", lambda claim, margin: seen.append(margin) or {"unique": ()})
    at = facts(model)
    for error in (0.1, 0.01, 0.7):
        monkeypatch.setattr(at, "weight_error", lambda weight, e=error: e)
        watch = SimpleNamespace(norm=lambda W: Interval(0.5), margin=lambda W: 0.3)
        monkeypatch.setattr(at, "_enclosed", lambda *args: None)
        at.enclosure_near(X, watch)
        assert Fraction(seen[-1]) <= Fraction(0.3) - Fraction(error)


@pytest.mark.parametrize("theorem", ["safeguarded", "two_timescale", "ling2023"])
def test_an_obstacle_keeps_every_theorem_from_speaking(theorem, monkeypatch):
    monkeypatch.setattr(Instance, "obstacle", "why")
    found = eq.certify(*instance("ling2023"), theorem=theorem)
    assert (found.obstacle, found.claims) == ("why", ())


def test_nothing_is_promised_of_a_layer_that_may_expand():
    model = eq.OptEq(3, 4, 4, dtype=F64)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(50)
    found = eq.certify(model, torch.ones(2, 3, dtype=F64))
    assert (found.proved, set(found.constants)) == (False, {"reason"})


def test_the_weights_of_an_interpolation_are_rounded():
    """Three pixels become seven, with weights in fourteenths."""
    R = F.interpolate(torch.eye(3, dtype=F64)[None], 7, mode="linear", align_corners=False)[0]
    off = Fraction(0)
    for i in range(7):
        at = min(max((Fraction(2 * i + 1, 2) * 3) / 7 - Fraction(1, 2), 0), 2)
        for j in range(3):  # the row of R that is about pixel j
            off += (max(1 - abs(at - j), 0) - Fraction(R[j, i].item())) ** 2
    assert 0 < off <= (Fraction(_resize_norm(3, 7).hi) - Fraction(norm_upper(R))) ** 2


def test_a_weight_stored_in_float32_is_off_by_what_storing_lost():
    model = eq.ScaledReLU(2, 3, gamma=0.3, dtype=F64, generator=torch.Generator().manual_seed(0))
    W = model.weight().detach()
    stored = W.float().double()
    found = facts(model).iteration(stored, stored - W).weight_error
    rows = zip(_exact(model.A.T), _exact(stored), strict=True)
    off = [abs(Fraction(model.gamma) * a - w) for row, kept in rows for a, w in zip(row, kept, strict=True)]
    assert 2.0**-40 < max(off) <= Fraction(found.lo)  # no entry of a matrix exceeds its norm


def test_the_size_of_a_cross_entropy_holds_the_logarithm_of_its_classes():
    found = CONVEX["cross_entropy"].rows(torch.zeros(1, 9, dtype=F64), torch.eye(9, dtype=F64)[:1])
    assert float(found.value_error) >= gamma(4 * 9 + _UNITS) * (1 + math.log(9)) * (1 - 1e-12)


def test_a_ball_of_weights_moves_equilibria_as_far_as_its_upper_end():
    model, X, y = instance("ling2023")
    at = Instance(model, X, y)
    for radius in (1e-3, 1.7e-3, 3e-3):
        geometry = facts(model).geometry(at)
        R, K, _ = geometry.ball(geometry.moved(radius), Interval(at.equilibria.spectrum.norm.hi))
        assert pl._movement(at, radius).lo >= (R * K.sqrt() * radius).hi


def test_features_of_a_map_are_said_to_be_taken_as_they_are():
    model = eq.LinearEquilibrium(2, dtype=F64, feature_map=torch.nn.Identity())
    assert FEATURES in facts(model).reads().hypotheses


def test_every_product_with_a_kernel_counts_in_the_error_of_a_state(monkeypatch):
    model = eq.ConvMonotone((1, 5, 5), 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    X, found = torch.rand(1, 1, 5, 5, dtype=F64), []
    reads = facts(model).reads()
    Z = torch.zeros(1, *model.state, dtype=F64)
    reads.given(X)
    for lost in (0.0, 1.0):
        monkeypatch.setattr(conv_monotone, "conv_rounding", lambda K, Z, lost=lost: Interval(lost))
        found.append(reads.state_error(X, Z))
    assert found[1] - found[0] >= ((3 + reads.a) * reads.factor).lo * (1 - 1e-9)  # of U, A, Aᵀ and B − Bᵀ


def test_the_weight_of_stacked_layers_is_within_its_error_of_the_exact_one():
    """κ_i = (α/μ)(1 − α)^i/(1 − (1 − α)^L) times W_l W_jᵀ, where the last W is far smaller."""
    model = eq.DeepOptEq(2, 2, [2, 2], alpha=0.6, dtype=F64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.blocks[1].W.mul_(2.0**-30)
    units = facts(model).unit_network()
    alpha, mu = Fraction(model.alpha), Fraction(model.mu)
    share = [alpha / mu * (1 - alpha) ** i / (1 - (1 - alpha) ** 2) for i in range(2)]
    W = [_exact(w) for w in model.weights()]
    found, off = _exact(units.weight), Fraction(0)
    for before, i, j, k in itertools.product(range(2), repeat=4):  # unit i of a layer reads unit k of layer j
        exact = share[(before - 1 - j) % 2] * sum(a * b for a, b in zip(W[before][i], W[j][k], strict=True))
        off += (exact - found[2 * before + i][2 * j + k]) ** 2
    assert 0 < off <= Fraction(units.weight_error) ** 2
