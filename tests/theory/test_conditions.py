"""The right sides of every condition of the papers' theorems, in exact rational numbers.

The numbers are coprime, so that no power of one is the multiple of another; the formulas are those that the
modules of the theorems state at their heads.
"""

from __future__ import annotations

from fractions import Fraction as Q

import pytest
import torch

import equipoise as eq
from certifiable import instance
from equipoise.linalg import Interval
from equipoise.theory import gao2022, hieu2022, ling2023

X, r = Q(7), Q(11)


def test_gao2022():
    gamma, W, A, b, C = Q(1, 29), Q(3), Q(5), Q(13), (Q(2), Q(17, 19), Q(1, 23))
    at = gao2022.Gao2022Ball.of(gamma, W, A, b, C, max)
    l1, l2, l3 = W + C[0], A + C[1], b + C[2]
    g = gamma * l2
    B = 1 + (g / (1 - g)) ** 2 * (l1 / l2) ** 2
    l0 = max(l1 / C[2], g * l1 * l3 / ((1 - g) * C[1] * l2), l3 / C[0])
    assert (at.l1, at.l2, at.l3, at.g0, at.gap, at.B, at.l0) == (l1, l2, l3, g, 1 - g, B, l0)
    assert gao2022.Flow().sides(at, X, r) == {
        "(14)": 4 / (1 - g) * l0 * X * r,
        "(15)": 8 * l3 * B / (1 - g) ** 2 * X**2 * r,
    }
    assert gao2022.Descent().sides(at, X, r) == {
        "(17)": 8 / (1 - g) * l0 * X * r,
        "(18)": 16 * l3 * B / (1 - g) ** 2 * X**2 * r,
        "(19)": 16 * l3**2 * B / (1 - g) ** 2 * X**2,
    }
    # Each of the three of λ₀ is the largest somewhere.
    for C in ((Q(1), Q(1), Q(1, 99)), (Q(1, 99), Q(1), Q(1)), (Q(1), Q(1, 9999), Q(1))):
        at = gao2022.Gao2022Ball.of(gamma, W, A, b, C, max)
        assert at.l0 == max(at.l1 / C[2], at.g0 * at.l1 * at.l3 / (at.gap * C[1] * at.l2), at.l3 / C[0])


def test_ling2023():
    W, U, a, delta, root2 = Q(1, 3), Q(5), Q(13), Q(2, 17), Q(99, 70)
    at = ling2023.Ling2023Ball.of(W, U, a, delta, max)
    gap, u, A = 1 - W - delta, U + delta, a + delta
    c_w, c_u, c_a = u * A / gap**2, A / gap, u / gap
    both = c_w**2 + c_u**2
    assert at.sides(X, r, root2) == {
        "(7)": 4 / delta * max(c_w, c_u, c_a) * X * r,
        "(8)": 4 * (2 + root2) / A * both * X**2 * r,
        "(9)": 8 * both * X**2,
    }
    assert at.step(X) == 2 * both / ((both + c_a**2) ** 2 * X**2)


def test_ling2023_prints_half_of_what_its_proof_needs():
    model, data, y = instance("ling2023")
    found = eq.certify(model, data, y, theorem="ling2023", printed=True)
    needed, printed = (c for c in found.claims if c.name == "(9)")
    assert printed.printed
    assert printed.rhs == pytest.approx(needed.rhs / 2, rel=1e-12, abs=0.0)


def test_hieu2022():
    a, U, u, mu = Q(2), Q(3), Q(5), Q(1, 13)
    R = {"A": Q(1, 17), "B": Q(1, 19), "U": Q(1, 23), "u": Q(1, 29)}
    at = hieu2022.Hieu2022Ball(a, U, u, mu, X, r, R)
    terms = {
        "A": 2 * U * u * a / (mu**2 * R["A"]),
        "B": 2 * U * u / (mu**2 * R["B"]),
        "U": u / (mu * R["U"]),
        "u": U / (mu * R["u"]),
    }
    assert at.worst(max) == X * r * max(terms.values())
    seen = []
    hieu2022.Hieu2022Ball(a, U, u, mu, Q(1), Q(1), R).worst(lambda *given: seen.extend(given) or Q(1))
    assert sorted(seen) == sorted(terms.values())
    assert at.flow_spectrum() == 8 * X**2 * r * u / mu**2 * (1 + 4 * (U**2 * a**2 + U**2) / mu**2)
    assert at.descent_spectrum() == 16 * X**2 * r * u / mu**2 * (1 + (6 * U**2 * a**2 + 4 * U**2) / mu**2)
    cross = 4 * u**2 * U**2 * (1 + a**2) / mu**4
    assert at.descent() == (
        X**2 * ((u**2 + U**2) / mu**2 + cross),
        X**2 * u**2 * U**2 * a**2 / (4 * mu**4),
        X**2 * (u**2 / mu**2 + cross),
    )
    assert at.printed_spectrum() == 8 * X**2 * r * u * (1 + 6 * U**2 * a**2 + 4 * U**2)
    printed = X**2 * (u**2 + 4 * u**2 * U**2 * a**2 + 4 * u**2 * U**2 + U**2)
    assert at.printed_curvature() == printed


@pytest.mark.parametrize("lambda0", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("a", [1e-4, 1.0, 1e2])
def test_hieu2022_prints_a_step(lambda0, a):
    U, u, mu, x = 3.0, 0.01, 0.5, 2.0
    at = hieu2022.Hieu2022Ball(*map(Interval, (a, U, u, mu, x, 1.0)), {k: Interval(1.0) for k in "ABUu"})
    curvature = x**2 * (u**2 + 4 * u**2 * U**2 * a**2 + 4 * u**2 * U**2 + U**2)
    several = (
        4 / lambda0**2,
        1 / curvature,
        1 / (2 * x * lambda0 * U * u * a),
        1 / (6 * (lambda0 * u * a) ** 2),
    )
    assert at.printed_step(Interval(lambda0)).lo == pytest.approx(min(several), rel=1e-12, abs=0.0)


def test_the_loss_of_kawaguchi2021_is_the_one_that_was_asked_for():
    model, data, y = instance("kawaguchi2021")
    of = lambda labels, **more: " ".join(
        eq.certify(model, data, labels, theorem="kawaguchi2021", **more).hypotheses
    )
    assert "‖ŷ − y‖²" in of(y)
    assert "log p" not in of(y)
    assert "log p" in of((y > 0).to(torch.float64), loss="logistic", tau=0.1)
