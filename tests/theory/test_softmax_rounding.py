"""The computed softmax weights of the linear family against balls: every entry within the units allowed."""

from __future__ import annotations

import pytest
import torch

import equipoise as eq
from equipoise.linalg import gamma
from equipoise.theory.families.linear import softmax_units

flint = pytest.importorskip("flint")


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
