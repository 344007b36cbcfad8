"""Numbers, times and nested values as text."""

from __future__ import annotations

import math

import pytest

from equipoise.report.words import count, duration, leaf, moment, number, percent, rows, typeset

NARROW = "\N{NARROW NO-BREAK SPACE}"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.012345, "0.0123"),
        (1797, f"1{NARROW}797"),
        (-3, "−3"),
        (3.2e-7, "3.2·10⁻⁷"),
        (True, "yes"),
        (None, "—"),
        (math.nan, "not finite"),
        (-math.inf, "−∞"),
        ("word", "word"),
    ],
)
def test_numbers(value, shown):
    assert number(value) == shown


def test_shares_counts_times():
    assert percent(0.97777) == f"97.8{NARROW}%"
    assert count(1, "step") == "1 step"
    assert count(2000, "step") == f"2{NARROW}000 steps"
    assert [duration(s) for s in (0.84, 42.2, 185, 7800)] == ["0.8 s", "42 s", "3 min 5 s", "2 h 10 min"]
    assert moment("2026-11-16T04:08:04+00:00") == "2026-11-16 04:08:04 UTC"
    assert moment("<b>") == "<b>"


def test_a_program_s_sentence_is_typeset():
    assert (
        typeset("below 1.6e-14, moved 8.3e-01, L ≤ 0.9^k L(0)")
        == "below 1.6·10⁻¹⁴, moved 0.83, L ≤ 0.9ᵏ L(0)"
    )
    assert typeset("file3e-5x.csv") == "file3e-5x.csv"


def test_nested_values_are_flattened_and_long_ones_cut():
    found = dict(rows({"a": {"b": 1, "c": [{"d": 0.5}, {"d": None}]}, "e": list(range(100)), "f": []}))
    assert found["a · b"] == "1"
    assert found["a · c · 1 · d"] == "0.5"
    assert found["a · c · 2 · d"] == "—"
    assert found["e"].endswith("39 … and 60 more")
    assert found["f"] == "none"
    assert leaf(["x", True]) == "x, yes"
    many = list(rows({"files": [{"name": str(i)} for i in range(50)]}))
    assert len(many) == 41
    assert many[-1] == ("files", "… and 10 more")
