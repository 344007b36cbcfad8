"""Gradient flow of the linear model is a trust-region Newton method in M."""

from __future__ import annotations

import math

import pytest
import torch

import equipoise as eq
from equipoise.losses import SmoothedHinge
from equipoise.theory.trust_region import resolvent_limit, stationary, trust_region

M_, N_ = 4, 7


def instance(gamma=0.7, seed=0, logistic=False):
    g = torch.Generator().manual_seed(seed)
    model = eq.LinearEquilibrium(features=M_, gamma=gamma, dtype=torch.float64, generator=g)
    X = torch.randn(N_, M_, dtype=torch.float64, generator=g)
    y = torch.randn(N_, 1, dtype=torch.float64, generator=g)
    return model, X, (y > 0).double() if logistic else y


def measured_velocity(model, X, y, loss, h=1e-6):
    """dM/dt along the gradient flow, by finite differences of M."""
    model.zero_grad()
    eq.losses.as_loss(loss)(model(X), y).backward()

    def moved(t):
        with torch.no_grad():
            A, B = model.A - t * model.A.grad, model.B - t * model.B.grad
            U = torch.eye(M_, dtype=torch.float64) - model.gamma * torch.softmax(A, dim=0)
            return torch.linalg.solve(U, B, left=False)[0]

    return (moved(h) - moved(-h)) / (2 * h)


@pytest.mark.parametrize("loss", ["square", "logistic"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_velocity_is_that_of_gradient_flow(loss, seed):
    model, X, y = instance(seed=seed, logistic=loss == "logistic")
    at = trust_region(model, X, y, loss=loss)
    expected = measured_velocity(model, X, y, loss)
    assert float((at.velocity - expected).norm()) < 1e-6 * float(expected.norm())


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("loss", ["square", "logistic"])
def test_the_kkt_conditions_hold(loss, share):
    model, X, y = instance(logistic=loss == "logistic")
    top = trust_region(model, X, y, loss=loss).delta_max
    at = trust_region(model, X, y, delta=share * top, loss=loss)
    assert at.kkt_residual < 1e-11
    assert float(torch.linalg.eigvalsh(at.G)[0]) > 0
    assert at.radius == pytest.approx(math.sqrt(float(at.V @ at.G @ at.V)), rel=1e-10)


def test_no_point_of_the_trust_region_has_a_smaller_model_value():
    model, X, y = instance()
    at = trust_region(model, X, y)
    g = torch.Generator().manual_seed(3)
    v = torch.randn(20000, M_, dtype=torch.float64, generator=g)
    L = torch.linalg.cholesky(at.G)
    scale = torch.rand(20000, 1, dtype=torch.float64, generator=g) ** 0.1
    ball = (
        at.radius
        * scale
        * torch.linalg.solve_triangular(L.T, (v / v.norm(dim=1, keepdim=True)).T, upper=True).T
    )
    assert float(((ball @ at.G) * ball).sum(dim=1).sqrt().max()) <= at.radius * (1 + 1e-12)
    values = at.model(ball)
    least = float(at.model(at.V))
    assert least <= float(values.min())
    assert float(values.min()) < 0.9 * least  # the sample comes close: the test could have failed


def test_the_identities_behind_it():
    model, X, y = instance()
    at = trust_region(model, X, y)
    U = model.umat().detach()
    assert torch.allclose(U @ at.F @ U.T, at.hessian, rtol=1e-11, atol=1e-11)
    assert torch.allclose(at.hessian + at.G / at.delta, U @ torch.diag(1 / at.S) @ U.T / at.delta, rtol=1e-10)
    M = model.predictor().detach()[0]
    soft = torch.softmax(model.A.detach(), dim=0)
    for j in range(M_):
        J = torch.diag(soft[:, j]) - torch.outer(soft[:, j], soft[:, j])
        assert float(at.S[j]) == pytest.approx(
            1 + model.gamma**2 * float((J.T @ M).square().sum()), rel=1e-12
        )


def test_beyond_delta_bar_g_is_not_positive():
    model, X, y = instance()
    top = trust_region(model, X, y).delta_max
    with pytest.raises(ValueError, match="G ≻ 0"):
        trust_region(model, X, y, delta=top * 1.01)
    near = trust_region(model, X, y, delta=top * (1 - 1e-9))
    least, most = torch.linalg.eigvalsh(near.G)[[0, -1]].tolist()
    assert abs(least) < 1e-6 * most


def test_without_curvature_every_delta_will_do():
    model, X, _ = instance()
    with torch.no_grad():
        y = torch.sign(model(X))
        model.B.mul_(100 / model(X).abs().min())  # every sample beyond the hinge
    at = trust_region(model, X, y, loss=SmoothedHinge(2))
    assert at.delta_max == math.inf
    assert at.delta == 1.0
    assert at.kkt_residual == 0.0


def test_what_theorem_2_does_not_speak_of_is_refused():
    _, X, y = instance()
    with pytest.raises(ValueError, match="one output"):
        trust_region(eq.LinearEquilibrium(features=M_, outputs=2), X, y)
    with pytest.raises(TypeError, match="LinearEquilibrium"):
        trust_region(eq.GaussianReLU(inputs=M_, width=3), X, y)


@pytest.mark.parametrize("gamma", [0.5, 0.99, 0.9999])
def test_the_resolvent_splits_into_pi_and_a_bounded_rest(gamma):
    model, _, _ = instance(gamma=gamma)
    leading, rest = resolvent_limit(model)
    inverse = torch.linalg.inv(model.umat().detach())
    assert torch.allclose(leading + rest, inverse, rtol=1e-9, atol=1e-9)
    assert float(torch.linalg.matrix_norm(rest, 2)) < 3
    pi, S = stationary(model), torch.softmax(model.A.detach(), dim=0)
    assert torch.allclose(S @ pi, pi, atol=1e-14)
    assert float(pi.sum()) == pytest.approx(1, abs=1e-14)
    assert bool((pi > 0).all())


def test_the_printed_limit_is_wrong_unless_doubly_stochastic():
    """With 11ᵀ/m the rest grows as 1/(1 − γ); for A = 0, where S = 11ᵀ/m, both agree."""
    sizes = []
    for gamma in (0.99, 0.999):
        model, _, _ = instance(gamma=gamma)
        inverse = torch.linalg.inv(model.umat().detach())
        printed = torch.full((M_, M_), 1 / M_, dtype=torch.float64) / (1 - gamma)
        sizes.append(float(torch.linalg.matrix_norm(inverse - printed, 2)))
    assert sizes[1] / sizes[0] == pytest.approx(10, rel=0.05)
    with torch.no_grad():
        model.A.zero_()
    assert torch.allclose(stationary(model), torch.full((M_,), 1 / M_, dtype=torch.float64), atol=1e-14)
