"""A claim holds only where it is certain, and says by how much it misses."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.linalg import Interval
from equipoise.theory import Claim
from equipoise.theory.claim import Claims

numbers = st.floats(-1e3, 1e3)
intervals = st.tuples(numbers, numbers).map(lambda ends: Interval(min(ends), max(ends)))
relations = st.sampled_from(["<", "<=", ">", ">="])
TRUE = {"<": float.__lt__, "<=": float.__le__, ">": float.__gt__, ">=": float.__ge__}


def make(left, relation, right, **more):
    return Claim("(1)", "it is so", Interval(left), relation, Interval(right), **more)


@given(intervals, relations, intervals, st.floats(0, 1), st.floats(0, 1))
def test_what_holds_holds_for_every_pair_and_what_is_refuted_for_none(left, relation, right, s, t):
    claim = make(left, relation, right)
    x = min(max(left.lo + s * (left.hi - left.lo), left.lo), left.hi)
    y = min(max(right.lo + t * (right.hi - right.lo), right.lo), right.hi)
    assert not (claim.holds and claim.refuted)
    if claim.holds:
        assert TRUE[relation](x, y)
    if claim.refuted:
        assert not TRUE[relation](x, y)


@given(intervals, relations, intervals)
def test_undecided_claims_can_go_either_way(left, relation, right):
    claim = make(left, relation, right)
    if not claim.holds and not claim.refuted:
        outcomes = {TRUE[relation](x, y) for x in (left.lo, left.hi) for y in (right.lo, right.hi)}
        assert outcomes == {True, False}


def test_a_strict_relation_is_strict():
    assert not make(1.0, "<", 1.0).holds
    assert make(1.0, "<", 1.0).refuted
    assert make(1.0, "<=", 1.0).holds
    assert make(math.nextafter(1, 0), "<", 1.0).holds
    assert not make(1.0, ">", 1.0).holds
    assert make(1.0, ">=", 1.0).holds


@pytest.mark.parametrize("relation", ["<", "<=", ">", ">="])
@pytest.mark.parametrize("sides", [(math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan)])
def test_nan_decides_nothing(relation, sides):
    claim = make(sides[0], relation, sides[1])
    assert not claim.holds
    assert not claim.refuted


def test_overflow_proves_nothing():
    assert not make(math.inf, ">=", math.inf).holds
    assert not make(math.inf, "<", math.inf).holds
    unknown = make(2.0, ">=", Interval(0.0, math.inf))
    assert not unknown.holds
    assert not unknown.refuted


def test_the_sides_shown_are_those_the_proof_must_use():
    above, below = make(Interval(4, 5), ">=", Interval(1, 2)), make(Interval(1, 2), "<", Interval(4, 5))
    assert (above.lhs, above.rhs, above.margin) == (4, 2, 2)
    assert (below.lhs, below.rhs, below.margin) == (2, 4, 0.5)


def test_how_far_a_claim_misses():
    assert make(2.0, ">=", 10.0).short == 5
    assert make(10.0, "<", 2.0).short == 5
    assert make(0.0, ">=", 1.0).short == math.inf
    assert make(0.0, ">", 0.0).short == math.inf
    assert math.isnan(make(0.0, ">", 0.0).margin)
    assert make(3.0, ">", 0.0).margin == math.inf


def test_sides_that_look_alike_are_shown_apart():
    assert make(2.0, ">=", 10.0).sides == ("2", "10")
    assert make(1 + 1e-9, "<", 1.0).sides == ("1.000000001", "1")
    assert "1.000000001 < 1: fails" in str(make(1 + 1e-9, "<", 1.0))


def test_unknown_relations_are_refused():
    with pytest.raises(ValueError, match="one of"):
        make(1.0, "==", 1.0)


@given(intervals, relations, intervals)
def test_json_keeps_every_bit(left, relation, right):
    claim = make(left, relation, right, method="by hand", printed=True, remedy="more")
    assert Claim.from_dict(claim.to_dict()) == claim


def test_json_keeps_infinities_and_refuses_a_false_verdict():
    claim = make(Interval(-math.inf, math.inf), "<", 1.0)
    assert Claim.from_dict(claim.to_dict()) == claim
    with pytest.raises(ValueError, match="numbers say otherwise"):
        Claim.from_dict({**claim.to_dict(), "holds": True})


def test_a_list_under_construction():
    claims = Claims()
    assert claims.need("(2)", 1, "<", 2, "one is less than two", remedy="none").holds
    assert [c.name for c in claims.items] == ["(2)"]
