"""The computed softmax weights of the linear family against balls: every entry within the units allowed."""

from __future__ import annotations

import pytest
import torch

import equipoise as eq
from equipoise.linalg import gamma
from equipoise.theory.families.linear import LinearFacts, softmax_units

flint = pytest.importorskip("flint")
F64 = torch.float64


@pytest.mark.parametrize("spread", [1.0, 30.0, 300.0, 700.0])
def test_every_entry_is_within_the_units_allowed_for_it(spread):
    """exp of a rounded difference is off by as many units as the difference is large."""
    m, worst = 3, 0.0
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        model = eq.LinearEquilibrium(m, gamma=0.8, dtype=torch.float64).requires_grad_(False)
        draw = torch.rand(m, m, dtype=torch.float64, generator=generator) - 0.5
        model.A.copy_(draw * spread)
        allowed = gamma(m + softmax_units(model.A))
        computed = model.weight().T.tolist()
        for column, found in zip(model.A.T.tolist(), computed, strict=True):
            with flint.ctx.workprec(200):
                powers = [flint.arb(x).exp() for x in column]
                total = sum(powers, flint.arb(0))
                for power, value in zip(powers, found, strict=True):
                    true = flint.arb(0.8) * power / total
                    error = abs(flint.arb(value) - true) / true
                    assert error < allowed
                    worst = max(worst, float(error))
    if spread >= 300:  # the sum and the product alone would not explain it
        assert worst > gamma(m)


@pytest.mark.parametrize("spread", [0.5, 3.0, 400.0, 745.0, 1e4])
def test_the_units_allowed_count_an_entry_and_the_sum_that_it_is_divided_by(spread):
    """An exponent and those of the sum, both off by a spread that exp does not bring to 0; and exp itself."""
    A = torch.tensor([[0.0, 0.2], [spread, 0.0]], dtype=F64)
    assert softmax_units(A) >= 2 * min(spread, 745.0) + 6


def weight_and_error(A, rate):
    """The computed weight, a bound of its error, and the Frobenius norm of the true one and of the error."""
    m = len(A)
    model = eq.LinearEquilibrium(m, gamma=rate, dtype=F64).requires_grad_(False)
    model.A.copy_(A)
    found = LinearFacts(model).enclosure(torch.ones(1, m, dtype=F64))
    size = error = flint.arb(0)
    with flint.ctx.workprec(200):
        for column, computed in zip(A.T.tolist(), found.weight.T.tolist(), strict=True):
            powers = [flint.arb(x).exp() for x in column]
            total = sum(powers, flint.arb(0))
            for power, value in zip(powers, computed, strict=True):
                true = flint.arb(rate) * power / total
                size, error = size + true**2, error + (flint.arb(value) - true) ** 2
        return found.weight_error, size.sqrt(), error.sqrt()


def test_the_bound_of_the_weight_counts_the_sum_and_the_size_of_the_weight():
    A = torch.zeros(40, 40, dtype=F64)
    A[0] = 5.0  # one large row: ‖γS‖_F is beyond 1
    bound, size, error = weight_and_error(A, 0.9)
    assert error < bound
    assert size > 2
    assert size * (40 + softmax_units(A)) * 2.0**-53 < bound


def test_the_bound_of_a_weight_that_underflows_is_not_relative_to_it():
    """Entries near the smallest subnormal number 2^−1074 are off by a good part of themselves."""
    bound, size, error = weight_and_error(torch.tensor([[0.0, 1.0], [2.0, 0.0]], dtype=F64), 7e-323)
    assert error > 1e-3 * size
    assert error < bound


def test_the_column_that_spreads_most_counts():
    A = torch.tensor([[0.0, 0.0], [0.0, 500.0]], dtype=F64)
    assert softmax_units(A) == softmax_units(A.flip(1)) >= 1000 + 6
