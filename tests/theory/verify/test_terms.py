"""Every term of the bounds of a verified network, each against what it must hold."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from equipoise.linalg import gamma
from equipoise.theory.verify import sets, smoothing
from equipoise.theory.verify.bounds import Functionals, Problem, lower_bounds
from equipoise.theory.verify.network import UnitNetwork
from equipoise.theory.verify.outputs import Wanted
from equipoise.theory.verify.sets import InputSets

F64 = torch.float64


def net(n, d=1, **more):
    """n units without connections, one output that is their sum, and R = 1."""
    plain = {"inputs": torch.zeros(n, d), "offset": torch.zeros(n), "readout": torch.ones(1, n)}
    known = {"weight": torch.zeros(n, n), "shift": torch.zeros(1), **plain, **more}
    known = {name: value.to(F64) for name, value in known.items()}
    return UnitNetwork(weight_error=0.0, readout_error=0.0, resolvent=1.0, **known)


@pytest.mark.parametrize("seed", range(4))
def test_an_injection_is_as_near_as_it_is_said_to_be(seed):
    g = torch.Generator().manual_seed(seed)
    U, u, x = (torch.randn(*shape, dtype=F64, generator=g) for shape in ((3, 5), (3,), (1, 5)))
    b, error = net(3, inputs=U, offset=u).injection(x)
    off = []
    for row, c, found, most in zip(U.tolist(), u.tolist(), b[0].tolist(), error[0].tolist(), strict=True):
        exact = sum(Fraction(p) * Fraction(q) for p, q in zip(row, x[0].tolist(), strict=True)) + Fraction(c)
        off.append(abs(exact - Fraction(found)))
        assert off[-1] <= Fraction(most)
    assert max(off) > 0


def test_scores_are_off_by_the_readout_of_what_the_units_are_off():
    _, error = net(4).scores(torch.zeros(1, 4, dtype=F64), torch.tensor([3.0], dtype=F64))
    assert 3 * 2 <= float(error) <= 6 * (1 + 1e-12)  # ‖(1, 1, 1, 1)‖ = 2


def test_a_sum_of_injections_that_cancel_is_rounded():
    """Σ ν_i b_i of n terms with ν_i = 1 and b_i = ±1, and nothing else that may be lost."""
    n = 256
    one, zero = torch.ones(1, n, dtype=F64), torch.zeros(1, dtype=F64)
    signs = one[0] * torch.tensor([1.0, -1.0], dtype=F64).repeat(n // 2)
    problem = Problem.of(net(n, offset=signs), InputSets.of_box(zero[None], zero[None]))
    problem = replace(problem, injection_error=0 * one, spread=0 * one)
    at = torch.zeros(1, dtype=torch.long)
    value = lower_bounds(problem, at, 0 * one, 0 * one, Functionals(0 * one, zero, 0 * one, zero), one)
    assert -n * Fraction(gamma(3 * n)) <= Fraction(float(value)) <= -n * Fraction(gamma(n - 1))


def test_no_more_copies_vote_than_were_asked(monkeypatch):
    monkeypatch.setattr(smoothing, "_BATCH", 4)
    answer = lambda copies: (copies[:, :2], torch.ones(len(copies), dtype=torch.bool))
    found = smoothing._votes(answer, torch.zeros(3), 1.0, torch.Generator().manual_seed(0), 10)
    assert len(found) == 10


def test_a_constant_far_above_the_scores_is_rounded_when_they_are_added():
    wanted = Wanted(1, matrix=torch.ones(1, 1, dtype=F64), constant=torch.ones(1, dtype=F64))
    value, size = wanted.margins(torch.full((1, 1), 2.0**-54, dtype=F64), torch.zeros(1, 1, dtype=F64))
    assert abs(1 + Fraction(1, 2**54) - Fraction(float(value))) <= Fraction(float(size))


@pytest.mark.parametrize("seed", range(4))
def test_a_sum_over_columns_is_as_near_as_it_is_said_to_be(seed):
    g = torch.Generator().manual_seed(seed)
    W, nu = torch.randn(5, 5, dtype=F64, generator=g), torch.randn(1, 5, dtype=F64, generator=g)
    units = net(5, weight=W)
    found, error, off = units.back(nu)[0].tolist(), units.back_error(nu)[0].tolist(), []
    for column, value, most in zip(W.T.tolist(), found, error, strict=True):
        exact = sum(Fraction(p) * Fraction(q) for p, q in zip(column, nu[0].tolist(), strict=True))
        off.append(abs(exact - Fraction(value)))
        assert off[-1] <= Fraction(most)
    assert max(off) > 0


@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.3])
def test_a_class_that_every_copy_has_is_no_likelier_than_alpha_allows(alpha):
    """P(n hits of n) = pⁿ ≤ α exactly."""
    for draws in range(1, 40):
        p = smoothing.least_probability(draws, draws, alpha)
        assert Fraction(p) ** draws <= Fraction(alpha)


def test_a_box_reaches_as_far_as_its_farther_side():
    lower, upper, centre = (torch.tensor([row], dtype=F64) for row in ([-1.0, -4.0], [2.0, 1.0], [0.0, 0.0]))
    assert bool((sets._reach(lower, upper, centre) >= torch.tensor([2.0, 4.0])).all())
