"""Interval arithmetic encloses the exact result: rationals for + − × ÷ √, 300-bit balls for the rest."""

import math
import pickle
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.linalg import Estimate, Interval, maximum, minimum
from equipoise.linalg.rounding import _make

flint = pytest.importorskip("flint")

floats = st.floats(allow_nan=False, allow_infinity=False)
moderate = st.floats(min_value=-1e3, max_value=1e3, allow_nan=False)
many = settings(max_examples=300, deadline=None)


def holds(interval, exact):
    """interval.lo ≤ exact ≤ interval.hi for a rational."""
    below = interval.lo == -math.inf or Fraction(interval.lo) <= exact
    above = interval.hi == math.inf or exact <= Fraction(interval.hi)
    return below and above


def sharp(interval, ulps):
    gap, at = interval.lo, interval.hi
    for _ in range(ulps):
        gap = math.nextafter(gap, math.inf)
    return gap >= at or not (math.isfinite(interval.lo) and math.isfinite(interval.hi))


@many
@given(floats, floats)
def test_sums_and_differences_are_directed_roundings(a, b):
    for x, exact in (
        (Interval(a) + b, Fraction(a) + Fraction(b)),
        (a + Interval(b), Fraction(a) + Fraction(b)),
        (a - Interval(b), Fraction(a) - Fraction(b)),
    ):
        assert holds(x, exact)
        assert sharp(x, 1)
        assert x.lo != x.hi or Fraction(x.lo) == exact  # a point only where the sum is exact


@many
@given(floats, floats)
def test_products_and_quotients_enclose(a, b):
    assert holds(Interval(a) * b, Fraction(a) * Fraction(b))
    assert sharp(Interval(a) * b, 2)
    if b:
        assert holds(a / Interval(b), Fraction(a) / Fraction(b))
        assert sharp(Interval(a) / b, 2)


@many
@given(st.tuples(floats, floats), st.tuples(floats, floats), st.floats(0, 1), st.floats(0, 1))
def test_operations_hold_for_every_member(x, y, s, t):
    X, Y = Interval(min(x), max(x)), Interval(min(y), max(y))
    a = min(max(min(x) * (1 - s) + max(x) * s, X.lo), X.hi)
    b = min(max(min(y) * (1 - t) + max(y) * t, Y.lo), Y.hi)
    for p, q in ((a, b), (X.lo, Y.hi), (X.hi, Y.lo), (X.lo, Y.lo), (X.hi, Y.hi)):
        p, q = Fraction(p), Fraction(q)
        assert holds(X + Y, p + q)
        assert holds(X - Y, p - q)
        assert holds(X * Y, p * q)
        assert holds(X**2, p * p)
        assert holds(X**3, p**3)
        assert holds(abs(X), abs(p))
        assert holds(minimum(X, Y), min(p, q))
        assert holds(maximum(X, Y), max(p, q))
        if q:
            assert holds(X / Y, p / q)


@many
@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_square_roots_enclose(a):
    r = Interval(a).sqrt()
    assert Fraction(r.lo) ** 2 <= Fraction(a) <= Fraction(r.hi) ** 2
    assert sharp(r, 2)


def ball(f, *args):
    with flint.ctx.workprec(300):
        return f(*[flint.arb(x) for x in args])


def holds_ball(interval, value):
    """Both ends lie outside a ball of relative radius 2^-290."""
    with flint.ctx.workprec(300):
        below = interval.lo == -math.inf or not (flint.arb(interval.lo) > value)
        above = interval.hi == math.inf or not (flint.arb(interval.hi) < value)
    return below and above


@many
@given(floats)
def test_exp_and_log_enclose(a):
    assert holds_ball(Interval(a).exp(), ball(lambda x: x.exp(), a))
    assert holds_ball(Interval(a).expm1(), ball(lambda x: x.expm1(), a))
    if a > 0:
        assert holds_ball(Interval(a).log(), ball(lambda x: x.log(), a))
        assert sharp(Interval(a).log(), 9)
    if a > -1:
        assert holds_ball(Interval(a).log1p(), ball(lambda x: x.log1p(), a))


@many
@given(moderate, st.integers(-2000, 2000), st.floats(-50, 50))
def test_powers_enclose(a, k, y):
    if a or k >= 0:
        assert holds_ball(Interval(a) ** k, ball(lambda x: x**k, a))
    if a > 0:
        assert holds_ball(Interval(a) ** y, ball(lambda x, e: x**e, a, y))


def test_what_is_exact_stays_exact():
    x = Interval(0.3)
    assert 1 - Interval(1.0) == Interval(0.0) == x - 0.3 == 0 * Interval(-1, math.inf)
    assert x**1 == x == 1 * x == x / 1 == -Interval(-0.3)
    assert x**0 == Interval(1) == Interval(0).exp() == Interval(1).sqrt()
    assert Interval(1).log() == Interval(0).sqrt() == Interval(0.0)
    assert Interval(3).ldexp(-2) == Interval(0.75)
    assert Interval(0.1) * 0.1 != Interval(0.1 * 0.1)


def test_a_theorem_reads_as_printed():
    tau, eta, s = Interval(0.5), Interval(0.1), Interval(2.0)
    nu = eta * (1 - tau) ** 2 * s**2
    exact = Fraction(0.1) * Fraction(1, 4) * 4
    assert holds(nu, exact)
    assert nu.hi - nu.lo < 1e-15
    assert (1 - nu).certainly_lt(1)
    assert not (1 - 0 * nu).certainly_lt(1)  # a strict theorem is strict


def test_comparisons_speak_of_every_pair_of_members():
    x, y = Interval(1, 2), Interval(2, 3)
    assert x.certainly_le(y)
    assert y.certainly_ge(x)
    assert not x.certainly_lt(y)
    assert not y.certainly_gt(x)
    assert x.certainly_lt(2.5)
    assert not x.certainly_gt(1.5)
    assert not x.certainly_le(1.5)
    assert 1.5 in x
    assert 2.5 not in x
    with pytest.raises(TypeError):
        x < y  # noqa: B015


ENTIRE = Interval(-math.inf, math.inf)


def test_division_by_zero_and_nan_leave_nothing_known():
    assert 1 / Interval(0) == 1 / Interval(-1, 1) == Interval(1, 2) / Interval(0, 1) == ENTIRE
    assert Interval(math.nan) == Interval(0, math.nan) * 0 + math.nan == ENTIRE
    assert Interval(-2, -1).sqrt() == Interval(-2, -1).log() == Interval(-3, -2).log1p() == ENTIRE
    assert Interval(-2, -1) ** 0.5 == Interval(0, 1) ** -2 == ENTIRE
    assert not ENTIRE.certainly_lt(math.inf)
    assert not Interval(math.nan).certainly_ge(-math.inf)


def test_nan_at_one_end_leaves_nothing_known_at_the_other():
    for ends in ((1.0, math.nan), (math.nan, 1.0)):
        assert _make(*ends) == Interval(-math.inf, math.inf)


def test_an_interval_of_intervals_holds_their_members_and_its_ends_are_members():
    x, y = Interval(1.0, 2.0), Interval(3.0, 4.0)
    assert Interval(x) == x
    assert Interval(x, y) == Interval(1.0, 4.0)
    assert Interval.within(x) == Interval(-2.0, 2.0)
    for end, beyond in ((1.0, -math.inf), (2.0, math.inf)):
        assert end in x
        assert math.nextafter(end, beyond) not in x


@pytest.mark.parametrize("a", [1e-300, -1e-300, 5e-324, -5e-324])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_is_below_every_float_keeps_its_sign(a, sign):
    for x in (Interval(a) / (sign * 1e300), Interval(a) * (sign * 1e-300)):
        assert x == (Interval(0.0, 5e-324) if a * sign > 0 else Interval(-5e-324, 0.0))


def test_logarithms_know_their_domain_and_are_sharp_in_it():
    for at in (-0.5, 0.5, 3.0):
        assert sharp(Interval(at).log1p(), 9)
        assert sharp(Interval(1 + at).log(), 9)
    for beyond in (Interval(-2.0, -1.0).log1p(), Interval(-1.0, 0.0).log()):
        assert beyond == Interval(-math.inf, math.inf)
    assert Interval(-2.0, 0.5).log1p().lo == -math.inf


def test_overflow_opens_an_interval_and_never_closes_one():
    huge = Interval(1e308)
    for x in (huge * 10, huge + huge, huge / 0.1, huge**2, huge**3, Interval(800).exp(), huge.ldexp(10)):
        assert x.hi == math.inf
        assert x.lo <= 1.7976931348623157e308
    assert Interval(math.inf).lo == 1.7976931348623157e308
    assert (-huge * 10).lo == -math.inf
    small = Interval(1e-300)
    for x in (small * small, small / huge, Interval(-800).exp(), small.ldexp(-300), small**3):
        assert 0 <= x.lo < x.hi < 1e-300
    assert (-small * small).lo < 0
    assert Interval(2, math.inf) / Interval(1, math.inf) == Interval(0, math.inf)


def test_ints_that_are_no_floats_are_enclosed():
    k = 2**60 + 1
    assert Interval(k).lo < k < Interval(k).hi
    assert Interval(10**400).hi == math.inf
    assert Interval(-(10**400)).lo == -math.inf
    with pytest.raises(TypeError, match="2\\^53"):
        Interval(2.0) ** (2**53 + 1)


def test_estimates_and_tensors_are_refused():
    estimate = Estimate(0.5, 10, 1e-3)
    for refused in (estimate, torch.tensor(0.5), "0.5", None):
        with pytest.raises(TypeError, match="proves nothing"):
            Interval(refused)
        with pytest.raises(TypeError, match="proves nothing"):
            1 - Interval(1) * refused
        with pytest.raises(TypeError, match="proves nothing"):
            Interval(1).certainly_gt(refused)


def test_bad_ends_are_errors_and_intervals_are_values():
    with pytest.raises(ValueError, match="lo ≤ hi"):
        Interval(2, 1)
    with pytest.raises(ValueError, match="radius"):
        Interval.within(-1)
    assert Interval.within(2) == Interval(-2, 2)
    assert pickle.loads(pickle.dumps(Interval(1, 2))) == Interval(1, 2)
    assert eval(repr(Interval(0.1, 0.3))) == Interval(0.1, 0.3)
    assert len({Interval(1), Interval(1.0)}) == 1
    with pytest.raises(AttributeError):
        Interval(1).lo = 2
