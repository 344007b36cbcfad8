"""PL, PL*, uniform conditioning and path length, against what networks and losses really do."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import equipoise as eq
from equipoise.linalg import Interval
from equipoise.theory.instance import Instance
from equipoise.theory.pl import (
    path_length,
    pl,
    pl_star,
    readout_gradient,
    uniform_conditioning,
)

N, D, WIDTH = 4, 5, 10
TIGHT = eq.Stop(rtol=1e-13, max_steps=5000)
FAMILIES = ["scaled", "gaussian", "monotone", "biased", "linear"]


def build(family: str, outputs: int = 1, seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    more = {"outputs": outputs, "dtype": torch.float64, "generator": g}
    if family == "scaled":
        model = eq.ScaledReLU(inputs=D, width=WIDTH, gamma=0.5, **more)
        with torch.no_grad():
            model.b.copy_(torch.randn(model.b.shape, dtype=torch.float64, generator=g))
    elif family == "gaussian":
        model = eq.GaussianReLU(inputs=D, width=WIDTH, **more)
    elif family == "linear":
        model = eq.LinearEquilibrium(features=D, gamma=0.6, **more)
    else:
        model = eq.Monotone(inputs=D, width=WIDTH, margin=0.8, bias=family == "biased", **more)
    X = torch.randn(N, D, dtype=torch.float64, generator=g)
    y = torch.randn(model(X).shape, dtype=torch.float64, generator=g)
    return model, X, y


def center(model, X):
    return float(torch.linalg.svdvals(model.equilibrium(X, stop=TIGHT).detach())[N - 1]) ** 2


def pushed(model, X, radius, seed):
    """Weights at distance `radius`: straight down the gradient of σ_min(Z), or at random."""
    moved = copy.deepcopy(model)
    if seed == 0:
        least = torch.linalg.svdvals(moved.equilibrium(X))[-1]
        parts = torch.autograd.grad(least, list(moved.parameters()), allow_unused=True)
        step = [
            torch.zeros_like(p) if d is None else -d for p, d in zip(moved.parameters(), parts, strict=True)
        ]
    else:
        g = torch.Generator().manual_seed(seed)
        step = [torch.randn(p.shape, dtype=p.dtype, generator=g) for p in moved.parameters()]
    size = math.sqrt(sum(float(d.square().sum()) for d in step))
    with torch.no_grad():
        for p, d in zip(moved.parameters(), step, strict=True):
            p.add_(d * (radius / size))
    return moved


@pytest.mark.parametrize("family", FAMILIES)
def test_the_kernel_stays_conditioned_over_the_ball(family):
    model, X, _ = build(family)
    radius = 1e-4
    while uniform_conditioning(model, X, 2 * radius).left.lo > 0.25 * center(model, X):
        radius *= 2
    claim = uniform_conditioning(model, X, radius)
    assert claim.holds
    for seed in range(6):
        moved = pushed(model, X, radius, seed)
        assert center(moved, X) >= claim.left.lo
        assert eq.tangent_kernel(moved, X).lambda_min >= claim.left.lo * (1 - 1e-9)
    gone = center(pushed(model, X, radius, 0), X)
    assert gone < center(model, X)  # the push does hurt
    assert uniform_conditioning(model, X, radius, mu=0.9 * claim.left.lo).holds
    assert not uniform_conditioning(model, X, radius, mu=1.1 * claim.left.lo).holds


@pytest.mark.parametrize("family", FAMILIES)
def test_no_ball_is_the_point_itself(family):
    model, X, _ = build(family)
    assert uniform_conditioning(model, X, 0.0).left.lo == pytest.approx(center(model, X), rel=1e-8)


def test_a_ball_that_reaches_ill_posed_weights_proves_nothing():
    model, X, _ = build("gaussian")
    room = 1 - float(torch.linalg.matrix_norm(model.W.detach(), 2))
    claim = uniform_conditioning(model, X, 1.01 * room)
    assert not claim.holds
    assert not claim.refuted
    assert claim.left.lo == 0
    X[1] = X[0]
    assert not uniform_conditioning(model, X, 0.0).holds
    X[1, 0] = math.nan
    assert "NaN" in uniform_conditioning(model, X, 0.1).statement


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_of_the_readout_is_enclosed(family, outputs):
    model, X, y = build(family, outputs)
    loss = 0.5 * (model(X, stop=TIGHT) - y).square().sum()
    true = float(torch.autograd.grad(loss, model.get_parameter(model.readout_name))[0].norm())
    found = readout_gradient(Instance(model, X, y))
    assert found.lo <= true * (1 + 1e-9)
    assert found.hi >= true * (1 - 1e-9)
    assert found.hi - found.lo < 1e-8 * true
    assert readout_gradient(Instance(model, X, y), 2.0).lo == pytest.approx(2 * true, rel=1e-8)


@pytest.mark.parametrize("readout", [0.0, 1.0])
def test_the_gradient_of_the_readout_allows_for_an_error_of_the_equilibria(readout):
    """Z moved by E = −ε y gᵀ/‖y‖‖g‖, g = Zᵀy, changes ‖Zᵀy‖ by all of ε‖y‖."""
    model, X, y = build("scaled")
    with torch.no_grad():
        model.b.mul_(readout)
    exact, off = Instance(model, X, y), Instance(model, X, y)
    true = float((exact.Z.T @ (model.readout(exact.Z).detach() - y)).norm())
    g = exact.Z.T @ y
    wrong = exact.Z - 1e-3 * torch.outer(y / y.norm(), g / g.norm())
    off.__dict__["equilibria"] = off.equilibria_of(wrong)
    found = readout_gradient(off)
    assert found.lo <= true <= found.hi
    assert found.hi - found.lo < 0.1 * true


@pytest.mark.parametrize("family", FAMILIES)
def test_conditioning_gives_pl_star_with_twice_the_constant(family):
    """‖∇L‖² = rᵀKr ≥ 2λL, and ≤ 2λ_max L: the factor 2 is needed on both sides."""
    model, X, y = build(family)
    loss = 0.5 * (model(X, stop=TIGHT) - y).square().sum()
    parts = torch.autograd.grad(loss, list(model.parameters()))
    g = Interval(math.sqrt(sum(float(p.square().sum()) for p in parts)))
    L, kernel = Interval(float(loss.detach())), eq.tangent_kernel(model, X)
    assert pl_star(g, L, 2 * uniform_conditioning(model, X, 0.0).left.lo).holds
    assert pl_star(g, L, 2.001 * kernel.lambda_max).refuted
    r = torch.linalg.eigh(kernel.matrix).eigenvectors[:, 0]
    worst = model(X, stop=TIGHT).detach() - r.reshape(y.shape)
    loss = 0.5 * (model(X, stop=TIGHT) - worst).square().sum()
    parts = torch.autograd.grad(loss, list(model.parameters()))
    g = Interval(math.sqrt(sum(float(p.square().sum()) for p in parts)))
    assert pl_star(g, Interval(0.5), 2.01 * kernel.lambda_min).refuted  # attained along the last eigenvector
    assert pl_star(g, Interval(0.5), 1.99 * kernel.lambda_min).holds


def test_pl_measures_from_the_least_loss():
    """L = ½(x² + 1): PL with μ = 2 exactly, never PL*."""
    for x in (0.1, 1.0, 5.0):
        g, L = Interval(x), Interval(0.5 * (x * x + 1))
        assert pl(g, L, 1.999, 0.5).holds
        assert pl(g, L, 2.001, 0.5).refuted
    assert pl_star(Interval(0.1), Interval(0.505), 1.0).refuted


@pytest.mark.parametrize("eta_beta", [0.05, 1.0, 1.5])
def test_the_path_of_descent_is_within_its_bound(eta_beta):
    """On quadratics ½Σλ_i x_i² with β = λ_max, μ = 2λ_min."""
    g = torch.Generator().manual_seed(0)
    for _ in range(20):
        lam = torch.rand(3, dtype=torch.float64, generator=g) + 0.05
        x = torch.randn(3, dtype=torch.float64, generator=g)
        beta, mu = float(lam.max()), 2 * float(lam.min())
        eta, L0, length = eta_beta / beta, 0.5 * float((lam * x * x).sum()), 0.0
        for _ in range(600):
            length += float((eta * lam * x).norm())
            x = x - eta * lam * x
        assert path_length(length, L0, mu, step_size=eta, smoothness=beta).holds


def test_overshooting_breaks_the_printed_path_bound_and_not_the_corrected_one():
    """½x² from 1 with η = 1.9: the path is 1.9/(1 − .9) = 19, the flow's bound 1, the corrected one 20."""
    length = 1.9 * sum(0.9**k for k in range(2000))
    more = {"step_size": 1.9, "smoothness": 1.0}
    claim = path_length(length, 0.5, 2.0, **more)
    assert claim.holds
    assert claim.margin == pytest.approx(0.95, rel=1e-6)
    assert path_length(length, 0.5, 2.0, printed=True, **more).refuted


def test_the_flow_attains_its_bound():
    assert path_length(1.0, 0.5, 2.0 - 1e-9).holds
    assert path_length(1.0 + 1e-9, 0.5, 2.0).refuted


def test_nonsense_is_refused():
    model, X, _ = build("gaussian")
    with pytest.raises(ValueError, match="radius"):
        uniform_conditioning(model, X, -1.0)
    with pytest.raises(ValueError, match="mu"):
        uniform_conditioning(model, X, 1.0, mu=0.0)
    with pytest.raises(ValueError, match="step_size"):
        path_length(1.0, 1.0, 1.0, step_size=2.0, smoothness=1.0)
    with pytest.raises(ValueError, match="y is required"):
        readout_gradient(Instance(model, X))
