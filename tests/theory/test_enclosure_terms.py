"""Every term of an enclosure counts: networks of one unit, of which the truth is known in closed form."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

import equipoise as eq
from equipoise.linalg import Interval, SingularBounds, frobenius, gamma
from equipoise.theory import facts
from equipoise.theory.claim import Claim
from equipoise.theory.enclosure import (
    Enclosure,
    Equilibria,
    contracts,
    product_rounding,
    resolvent_of,
    widened,
)
from equipoise.theory.families.linear import is_stochastic, stochastic_bounds
from equipoise.theory.families.monotone import is_monotone

F64 = torch.float64


def one_unit(z: float, w: float = 0.0, u: float = 0.0, **known: object) -> Equilibria:
    """Z = [[z]] as an equilibrium of z = relu(w z + u), with these bounds of what was rounded before."""
    at = {
        "weight": torch.tensor([[w]], dtype=F64),
        "weight_error": 0.0,
        "weight_norm": Interval(abs(w)),
        "injection": torch.tensor([[u]], dtype=F64),
        "injection_error": 0.0,
        "unique": (),
        "resolvent": 1 / (1 - Interval(w)),
        "reason": "",
        **known,
    }
    model = eq.GaussianReLU(1, 1, dtype=F64)
    return Equilibria(model, Enclosure(**at), torch.tensor([[z]], dtype=F64))  # type: ignore[arg-type]


@pytest.mark.parametrize("q", [0.0, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("off", [0.25, -0.25])
def test_the_distance_to_the_equilibrium_is_the_bound_where_the_unit_is_active(q, off):
    """The residual is (1 − q)|z − z*|, and (1 − q)(1 + q/(1 − q)) = 1: no term can be left out."""
    star = 1 / (1 - q)
    found = one_unit(star + off, q, 1.0).error
    assert abs(off) * (1 - 1e-12) <= found
    assert found <= abs(off) * (1 + 1e-6)


def test_what_was_rounded_before_counts_in_the_residual():
    assert one_unit(2.0).residual.hi >= 2.0  # z − relu(0)
    assert one_unit(2.0, weight_error=0.25).residual.hi >= 2.5
    assert one_unit(2.0, injection_error=0.5).residual.hi >= 2.5
    assert one_unit(2.0, weight_error=0.25, injection_error=0.5).residual.hi >= 3.0
    assert one_unit(2.0, weight_error=0.25, injection_error=0.5).residual.hi <= 3.0 * (1 + 1e-12)
    assert one_unit(2.0, injection_error=math.inf).error == math.inf


def test_the_rounding_of_the_map_itself_counts():
    """z = relu(w z + u) holds in floats: the roundings of w z, of + u and of the difference may be in it."""
    unit = 2.0**-53
    exact = one_unit(3.0, 0.5, 1.5)
    assert exact.residual.hi >= unit * (3.0 * 0.5 + 1.5 + 3.0)
    assert exact.residual.hi <= 40 * unit * 3.0
    assert one_unit(0.0, 0.0, -1e9).residual.hi >= unit * 1e9  # u − relu(u) may hide its own rounding
    far = one_unit(1e9)  # besides that of its norm, the difference z − 0 has a rounding of its own
    assert far.residual.hi >= frobenius(far.Z).hi + gamma(3) * 1e9

    fixed = one_unit(1e9, 1.0, resolvent=Interval(1.0))  # 3 of the product, 5 of the sum, 8 of the difference
    assert gamma(14) * 1e9 <= fixed.residual.hi <= gamma(20) * 1e9


def test_the_norm_of_the_equilibria_is_as_near_as_they_are():
    found = one_unit(2.5, 0.5, 1.0)  # whose equilibrium is 2
    assert found.frobenius.lo <= 2.0 <= 2.5 <= found.frobenius.hi <= 3.0 + 1e-9
    assert found.spectrum.norm.lo <= 2.0 <= 2.5 <= found.spectrum.norm.hi
    assert found.spectrum.sigma_min.lo <= 2.0


def test_products_are_allowed_the_rounding_of_every_term_and_their_underflow():
    A, B = torch.full((2, 3), 4.0, dtype=F64), torch.full((3, 5), 8.0, dtype=F64)
    assert product_rounding(A, B).hi >= gamma(3) * 4.0 * math.sqrt(6) * 8.0 * math.sqrt(15)
    tiny = 2.0**-600  # its square is below every float: each of the 10 entries may lose 3 halves of the least
    assert product_rounding(tiny * A, tiny * B).hi >= math.sqrt(10) * 1.5 * 2.0**-1074
    assert product_rounding(A, B[:, 0]).hi >= gamma(3) * 4.0 * math.sqrt(6) * 8.0 * math.sqrt(3)


def test_bounds_of_a_matrix_hold_for_every_matrix_as_near_as_the_error():
    found = widened(SingularBounds(norm=Interval(2.0, 3.0), sigma_min=Interval(0.5, 1.0)), 0.75)
    assert found.norm.lo <= 1.25
    assert found.norm.hi >= 3.75
    assert found.sigma_min.lo == 0.0
    assert found.sigma_min.hi >= 1.75


def test_a_contraction_is_strict_and_its_resolvent_is_that_of_the_worst_norm():
    assert not contracts(Interval(0.5, 1.0)).holds
    assert contracts(Interval(0.5, 1 - 2.0**-53)).holds
    assert resolvent_of(contracts(Interval(0.25, 0.75))).hi >= 4.0
    assert resolvent_of(contracts(Interval(0.5, 1.0))).hi == math.inf


def test_a_margin_must_be_positive_and_a_softmax_shrink():
    monotone, linear = eq.Monotone(1, 2, dtype=F64), eq.LinearEquilibrium(4, gamma=0.75, dtype=F64)
    assert is_monotone(monotone.margin).holds
    assert is_stochastic(linear.gamma).holds
    linear.gamma = 1.0
    assert not is_stochastic(linear.gamma).holds
    linear.gamma = -0.75
    assert is_stochastic(linear.gamma).left == Interval(0.75)


def test_the_bounds_of_a_softmax_are_attained_or_nearly_so():
    """With all columns the same unit vector e, γS = γ e 1ᵀ has norm γ√m and I + γS/(1 − γ) is the inverse."""
    m, g = 9, 0.75
    model = eq.LinearEquilibrium(m, gamma=g, dtype=F64)
    S = torch.zeros(m, m, dtype=F64)
    S[0] = 1.0
    norm, inverse = stochastic_bounds(model.gamma, m)
    assert norm.hi >= g * math.sqrt(m)
    assert norm.lo <= g * math.sqrt(m) * (1 + 1e-12)
    exact = float(torch.linalg.matrix_norm(torch.linalg.inv(torch.eye(m, dtype=F64) - g * S), 2))
    assert exact <= inverse.hi <= 1.3 * exact
    assert inverse.hi >= math.sqrt(m) / (1 - g)


@pytest.mark.parametrize(("relation", "left", "right"), [("<", 1.0, 1.0), (">", 1.0, 1.0)])
def test_equality_proves_nothing_strict(relation, left, right):
    assert not Claim("", "", Interval(left), relation, Interval(right)).holds
    assert Claim("", "", Interval(left), relation + "=", Interval(right)).holds


def test_a_large_margin_is_rounded_too():
    model = eq.Monotone(1, 4, margin=1e6, dtype=F64)
    with torch.no_grad():
        model.A.zero_()
        model.B.zero_()
    found = facts(model).enclosure(torch.ones(1, 1, dtype=F64))
    assert found.weight_error >= gamma(4) * math.sqrt(4) * 1e6  # of 1 − μ, and of three sums


def test_a_scale_below_zero_contracts_by_its_size():
    model = eq.ScaledReLU(1, 3, gamma=0.5, dtype=F64)
    with torch.no_grad():
        model.A.copy_(-torch.eye(3))  # W = γAᵀ = 5I, which neither contracts nor is monotone
    model.gamma = -5.0
    with torch.no_grad():
        model.A.copy_(-torch.eye(3))  # so that W = 5I, which neither contracts nor is monotone
    (reason,) = facts(model).enclosure(torch.ones(1, 1, dtype=F64)).unique
    assert not reason.holds
    assert reason.left.lo > 1


def test_a_bias_and_the_error_of_a_weight_count():
    model = eq.Monotone(1, 4, bias=True, dtype=F64)
    with torch.no_grad():
        model.bias.fill_(1e6)
    found = facts(model).enclosure(torch.zeros(1, 1, dtype=F64))
    assert found.injection_error >= gamma(2) * 2e6
    assert found.weight_norm.hi >= frobenius(found.weight).hi + 0.5 * found.weight_error


@pytest.mark.parametrize("family", [eq.GaussianReLU, eq.ScaledReLU, eq.Monotone])
def test_an_injection_that_underflows_is_off_by_all_of_it(family):
    model = family(1, 1, dtype=F64)
    with torch.no_grad():
        facts(model).input_map().fill_(2.0**-600)
    found = facts(model).enclosure(torch.full((1, 1), 2.0**-500, dtype=F64))
    assert not found.injection.any()
    assert Fraction(2) ** -1100 <= Fraction(found.injection_error) <= 2.0**-1070


def test_every_part_of_a_monotone_weight_is_rounded():
    for name, allowed in (("A", gamma(12) * 4e4**2), ("B", gamma(7) * 2 * 4e4)):  # A: of the product too
        model = eq.Monotone(1, 4, dtype=F64)
        with torch.no_grad():
            model.A.zero_()
            model.B.zero_()
            model.get_parameter(name).fill_(1e4)  # whose norm is 4e4
        assert facts(model).enclosure(torch.ones(1, 1, dtype=F64)).weight_error >= allowed
