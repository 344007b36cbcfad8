"""The ellipsoid's Lipschitz constants: above what any pattern of units does, and below ‖v‖‖U‖/μ."""

import itertools
import math
from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.linalg import gamma, norm_upper, symmetric_part_margin_lower
from equipoise.theory import lipschitz
from equipoise.theory.lipschitz import ellipsoid_bounds


def _weights(seed, n=5, d=3, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    A, B, U, V = (
        scale * torch.randn(*shape, dtype=torch.float64, generator=g)
        for shape in ((n, n), (n, n), (n, d), (4, n))
    )
    return 0.7 * torch.eye(n, dtype=torch.float64) - A.T @ A / n + B - B.T, U, V


def _largest(W, U, v):
    """max over patterns of ‖vᵀ(I − DW)⁻¹DU‖, the steepest slope of v·z anywhere."""
    eye, steepest = torch.eye(len(W), dtype=W.dtype), 0.0
    for pattern in itertools.product((0.0, 1.0), repeat=len(W)):
        D = torch.tensor(pattern, dtype=W.dtype)
        steepest = max(steepest, float((v @ torch.linalg.solve(eye - D[:, None] * W, D[:, None] * U)).norm()))
    return steepest


@pytest.mark.parametrize("seed", range(6))
def test_no_pattern_of_units_is_steeper(seed):
    W, U, V = _weights(seed)
    bounds = ellipsoid_bounds(W, 0.0, U, V)
    for v, bound in zip(V, bounds.tolist(), strict=True):
        assert _largest(W, U, v) <= bound
        plain = float(v.norm()) * norm_upper(U) / symmetric_part_margin_lower(W)
        assert bound <= plain * (1 + 1e-9)


def test_it_is_attained_by_one_unit_and_by_a_multiple_of_the_identity():
    W, U, V = (torch.tensor(t, dtype=torch.float64) for t in ([[0.25]], [[2.0]], [[3.0]]))
    assert float(ellipsoid_bounds(W, 0.0, U, V)) == pytest.approx(3 * 2 / 0.75, rel=1e-9)
    eye = torch.eye(4, dtype=torch.float64)
    assert float(ellipsoid_bounds(-eye, 0.0, eye, eye[:1])) == pytest.approx(0.5, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    into=st.sampled_from([0, -1074, -700, -300, 300, 700]),
    out=st.sampled_from([0, -1074, -700, -300, 300, 700]),
    error=st.sampled_from([0.0, 1e-9, 0.5, math.inf]),
)
def test_extreme_floats_never_give_less_than_the_truth(seed, into, out, error):
    W, U, V = _weights(seed, n=2, d=2)
    U, V = U * 2.0**into, V * 2.0**out  # rounded, where they are subnormal
    back = [2.0 ** (-e // 2) for e in (into, out)]  # twice, since 2¹⁰⁷⁴ is no float
    for v, bound in zip(V, ellipsoid_bounds(W, error, U, V).tolist(), strict=True):
        truth = Fraction(_largest(W, U * back[0] * back[0], v * back[1] * back[1]) * (1 - 1e-9))
        assert bound == math.inf or Fraction(bound) >= truth * Fraction(2) ** (into + out)


def test_what_is_not_monotone_has_no_bound():
    W = 2 * torch.eye(3, dtype=torch.float64)
    assert math.isinf(float(ellipsoid_bounds(W, 0.0, W, W[:1])))
    W[0, 0] = math.nan
    assert math.isinf(float(ellipsoid_bounds(W, 0.0, W, W[:1])))


def test_pairs_and_radii_use_it_where_it_is_better():
    model = eq.Monotone(
        4, 12, margin=0.3, outputs=3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        W, a = model.weight(), model.u.detach()
    plain = (a[:, 0] - a[:, 1]).norm() * norm_upper(model.U.detach()) / symmetric_part_margin_lower(W)
    assert float(eq.theory.pairwise_lipschitz(model)[0, 1]) < 0.95 * float(plain)


def test_the_symmetric_part_is_off_by_the_rounding_of_its_diagonal(monkeypatch):
    """1 − 2⁻⁵⁴ is no float: S is off by 2⁻⁵⁴ on the diagonal, however small W is."""
    n, seen = 4, []
    monkeypatch.setattr(lipschitz, "_squared_norm", lambda S, off, *rest: seen.append((S, off)) or math.inf)
    eye = torch.eye(n, dtype=torch.float64)
    ellipsoid_bounds(2.0**-54 * eye, 0.0, eye, eye)
    ((S, off),) = seen
    assert torch.equal(S, eye)
    assert off.lo >= 2.0**-54 * math.sqrt(n)


def test_the_residual_of_a_solve_is_rounded():
    """‖v − Sy‖ ≤ γ(n + 1)(‖v‖ + ‖y‖‖S‖_F) where it is computed as 0: here S = I, y = v and U = v."""
    n = 256
    eye = torch.eye(n, dtype=torch.float64)
    (bound,) = ellipsoid_bounds(torch.zeros_like(eye), 0.0, eye[:, :1], eye[:1]).tolist()
    rest = gamma(n + 1) * (1 + math.sqrt(n))
    with mpmath.workdps(40):
        steep = mpmath.sqrt(1 + mpmath.mpf(2) ** -40)  # of ‖S^{−½}U‖, which is rounded up as much
        assert bound >= (1 + rest + mpmath.sqrt(1 + mpmath.mpf(rest)) * steep) / 2
    assert bound <= 1 + 1e-11
