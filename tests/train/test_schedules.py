"""Learning rates over a run: the formulas, their ends, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.train.schedules import SCHEDULES, Constant, Cosine, Poly, Steps, as_schedule


def test_the_formulas():
    assert [Constant().factor(s, 4) for s in range(4)] == [1.0] * 4
    for s in range(10):
        expected = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * s / 10))
        assert Cosine(floor=0.1).factor(s, 10) == pytest.approx(expected, rel=1e-14)
        assert Poly(power=2.0, floor=0.2).factor(s, 10) == pytest.approx(0.2 + 0.8 * (1 - s / 10) ** 2)
    assert [Steps().factor(s, 8) for s in range(8)] == pytest.approx([1] * 4 + [0.1] * 2 + [0.01] * 2)
    assert [Steps(at=(0.25,), decay=0.5).factor(s, 4) for s in range(4)] == [1, 0.5, 0.5, 0.5]


def test_warmup_rises_in_equal_parts():
    assert [Constant(warmup=3).factor(s, 6) for s in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 50), st.integers(0, 20))
def test_factors_lie_in_the_unit_interval_and_fall(name, steps, warmup):
    factors = [as_schedule(name, warmup=warmup).factor(s, steps) for s in range(steps)]
    assert all(0 <= f <= 1 for f in factors)
    rest = factors[warmup:]
    assert rest == sorted(rest, reverse=True)
    assert as_schedule(name).factor(0, steps) == 1


def test_names_and_options():
    assert as_schedule("poly", power=3.0) == Poly(power=3.0)
    assert as_schedule(Cosine(floor=0.5)) == Cosine(floor=0.5)
    for wrong, words in (
        (lambda: as_schedule("linear"), "schedule must be one of 'constant', 'cosine'"),
        (lambda: as_schedule("poly", floor=0.1, at=3), "poly schedule takes .* Got 'at'"),
        (lambda: as_schedule(Constant(), warmup=3), "must be one of"),
        (lambda: Cosine(floor=2.0), r"floor must lie in \[0, 1\]"),
        (lambda: Steps(at=(1.5,)), "at must lie"),
        (lambda: Steps(decay=0.0), "decay must lie"),
        (lambda: Poly(power=0.0), "power must be"),
        (lambda: Constant(warmup=-1), "warmup must be"),
        (lambda: Constant().factor(4, 4), r"step must lie in \[0, 4\)"),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()
