"""The readout's own step: gradient or Gauss-Newton, with and without slack, wide and tall."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.train.readout import Readout, gauss_newton

SHAPES = [(6, 10), (10, 10), (14, 10)]


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def features(Z, slack):
    return torch.cat([Z, math.sqrt(slack) * torch.eye(len(Z), dtype=Z.dtype)], dim=1)


@given(
    seed=st.integers(0, 1000), slack=st.sampled_from([0.0, 1e-6, 0.3, 50.0]), shape=st.sampled_from(SHAPES)
)
@settings(max_examples=40)
def test_gauss_newton_is_the_solution_of_least_norm(seed, slack, shape):
    Z, r = random(*shape, seed=seed), random(shape[0], 2, seed=seed + 1)
    da, de = gauss_newton(Z, r, slack)
    expected = torch.linalg.pinv(features(Z, slack)) @ r
    scale = float(expected.norm())
    torch.testing.assert_close(da, expected[: shape[1]], rtol=1e-6, atol=1e-8 * scale)
    if slack:
        torch.testing.assert_close(de, expected[shape[1] :], rtol=1e-6, atol=1e-6 * scale)


@pytest.mark.parametrize("shape", [(8, 20), (20, 8)])
def test_gauss_newton_survives_features_too_ill_conditioned_for_cholesky(shape):
    U, _, Vt = torch.linalg.svd(random(*shape), full_matrices=False)
    s = torch.logspace(0, -11, 8, dtype=torch.float64)
    Z = (U * s) @ Vt
    a = Vt.T @ random(8, 1, seed=1)
    da, _ = gauss_newton(Z, Z @ a)
    assert float((Z @ da - Z @ a).norm()) <= 1e-9 * float((Z @ a).norm())


def test_features_without_full_rank_are_refused_in_words():
    with pytest.raises(ValueError, match="slack > 0"):
        gauss_newton(torch.zeros(3, 5, dtype=torch.float64), random(3, 1))


@pytest.mark.parametrize("slack", [0.0, 0.3])
def test_a_gradient_step_is_that_of_half_the_square(slack):
    Z, y = random(6, 10), random(6, 2, seed=1)
    readout = Readout(random(10, 2, seed=2), y, slack)
    a, e = readout.a.clone().requires_grad_(), readout.e.clone().requires_grad_()
    r = Z @ a + math.sqrt(slack) * e - y
    ga, ge = torch.autograd.grad(0.5 * r.square().sum(), (a, e))
    torch.testing.assert_close(readout.residual(Z), r.detach())
    stepped = readout.stepped(Z, r.detach(), 0.01)
    torch.testing.assert_close(stepped[0], (a - 0.01 * ga).detach())
    torch.testing.assert_close(stepped[1], (e - 0.01 * ge).detach())
    torch.testing.assert_close(readout.a, a.detach())  # nothing in place


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("eta", [1.0, 0.4])
def test_gauss_newton_from_zero_ends_at_ridge_regression(shape, eta):
    Z, y, slack = random(*shape), random(shape[0], 2, seed=1), 0.3
    readout = Readout(torch.zeros(shape[1], 2, dtype=torch.float64), y, slack, "gauss-newton")
    for _ in range(1 if eta == 1 else 80):
        readout.a, readout.e = readout.stepped(Z, readout.residual(Z), eta)
    ridge = torch.linalg.solve(Z.T @ Z + slack * torch.eye(shape[1], dtype=Z.dtype), Z.T @ y)
    torch.testing.assert_close(readout.a, ridge, rtol=1e-9, atol=1e-11)
    assert float(readout.residual(Z).norm()) < 1e-12 * float(y.norm())


@pytest.mark.parametrize("size", [1e-170, 1e170])
@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_gauss_newton_of_features_whose_squares_are_no_floats(shape, size):
    generator = torch.Generator().manual_seed(0)
    Z, r = (torch.randn(*s, dtype=torch.float64, generator=generator) for s in (shape, (shape[0], 2)))
    da, _ = gauss_newton(Z, r)
    scaled, _ = gauss_newton(Z * size, r)
    torch.testing.assert_close(scaled * size, da)
