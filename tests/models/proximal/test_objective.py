"""The network solves a convex problem: values, proxes and minimisers against scipy, without the network."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize

import equipoise as eq
from contracts.model import TIGHT
from equipoise.models.proximal import DeepOptEq, OptEq, Phi, QuadraticProgramme
from equipoise.models.proximal.activations import KNOWN
from equipoise.models.proximal.properties import L1, Box, GradientStep, GroupLasso, SquaredL2
from equipoise.solve import half_squared_norm

SHAPES = [(4, 4), (7, 3), (3, 6)]
ALL = ["relu", "tanh", "softplus", "leaky_relu", "identity", "hardtanh", "softshrink", "relu6"]


def draw(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layer(activation="relu", n=6, m=4, seed=0, size=0.9, **options):
    model = OptEq(3, m, n, activation=activation, dtype=torch.float64, **options)
    with torch.no_grad():
        W = draw(seed, n, m)
        model.W.copy_(size * model.proximal_norm * W / torch.linalg.matrix_norm(W, 2))
        model.U.copy_(draw(seed + 1, n, 3))
        model.b.copy_(draw(seed + 2, n))
    return model, draw(seed + 3, 5, 3)


def deep(hidden=(5, 4), alpha=0.4, seed=0, size=0.9, **options):
    model = DeepOptEq(3, 4, list(hidden), alpha, dtype=torch.float64, **options)
    with torch.no_grad():
        for l, block in enumerate(model.layers):
            W = draw(seed + 10 * l, *block.W.shape)
            block.W.copy_(size * model.proximal_norm * W / torch.linalg.matrix_norm(W, 2))
            block.U.copy_(draw(seed + 10 * l + 1, *block.U.shape))
            block.b.copy_(draw(seed + 10 * l + 2, *block.b.shape))
    return model, draw(seed + 3, 5, 3)


def slope_of(F, z, step):
    """F'(z), central differences of the fourth order."""
    return (8 * (F(z + step) - F(z - step)) - F(z + 2 * step) + F(z - 2 * step)) / (12 * step)


# -- Theorem 1 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ALL)
@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_the_layer_is_the_proximal_map_of_phi(activation, n, m):
    """p = f(y) minimises φ(p) + ½‖p − y‖²: every other point in the domain is worse, by strong convexity."""
    model, X = layer(activation, n, m, mu=1.5)
    (phi,) = model.potentials(X)
    y = draw(9, 5, m)
    p = phi.map(y)
    best = phi.value(p) + (p - y).square().sum(dim=1) / 2
    torch.testing.assert_close(phi.value(p), phi.at_image(y), rtol=1e-9, atol=1e-9)
    for seed in range(5):
        other = phi.map(y + 10 ** (-seed) * draw(20 + seed, 5, m))
        value = phi.value(other) + (other - y).square().sum(dim=1) / 2
        assert (value >= best + (other - p).square().sum(dim=1) / 2 - 1e-9).all()
    torch.testing.assert_close(phi.prox(1.0, y), p, rtol=0, atol=1e-12)


def printed_solution(W, c, target):
    """argmin ½‖v‖² − cᵀv over v ≥ 0, Wᵀv = target: the best of the supports, with equalities on each."""
    best, least = None, math.inf
    for support in product([False, True], repeat=len(c)):
        S = np.flatnonzero(support)
        v, A = np.zeros(len(c)), W[S].T  # Wᵀv = A v_S
        v[S] = c[S] + np.linalg.pinv(A) @ (target - A @ c[S])
        value = v @ v / 2 - c @ v
        if value < least and v.min() > -1e-12 and np.abs(W.T @ v - target).max() < 1e-12:
            best, least = v, value
    return best


@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_phi_of_relu_is_the_printed_minimum_over_v(n, m):
    model, X = layer("relu", n, m, mu=1.5)
    (phi,) = model.potentials(X)
    z = phi.map(draw(4, 5, m))
    for row, c, value in zip(z.numpy(), phi.c.numpy(), phi.value(z).tolist(), strict=True):
        v = printed_solution(phi.W.numpy(), c, phi.mu * row)
        want = (v @ v / 2 - c @ v) / phi.mu - row @ row / 2
        assert value == pytest.approx(want, abs=1e-10)


def test_phi_of_relu_is_infinite_outside_the_cone():
    model, X = layer("relu", 3, 5)  # the image is a cone in a plane of three dimensions
    (phi,) = model.potentials(X)
    assert (phi.value(draw(5, 5, 5)) == math.inf).all()
    z = phi.map(draw(6, 5, 5))
    assert torch.isfinite(phi.value(z)).all()
    v = -torch.ones(5, 3, dtype=torch.float64)
    assert (phi.value(v @ phi.W) == math.inf).all()
    wide, X = layer("relu", 9, 2)  # v has many solutions, some of them ≥ 0 or none
    (phi,) = wide.potentials(X)
    inside = phi.value(draw(7, 5, 9).abs() @ phi.W / phi.mu)
    assert torch.isfinite(inside).all()
    bounded, X = layer("tanh", 4, 4)
    (phi,) = bounded.potentials(X)
    assert (phi.value(100 * draw(8, 5, 4)) == math.inf).all()


def test_phi_of_an_invertible_weight_is_the_closed_form():
    """φ = (μ/2)‖W⁻ᵀz‖² − ⟨c, W⁻ᵀz⟩ − ½‖z‖², with W⁻ᵀ where the paper prints W⁻¹."""
    model, X = layer("relu", 4, 4, mu=1.5)
    (phi,) = model.potentials(X)
    z = phi.map(draw(4, 5, 4))
    t = torch.linalg.solve(phi.W.T, z.T).T  # W⁻ᵀz
    want = 0.75 * t.square().sum(dim=1) - (phi.c * t).sum(dim=1) - z.square().sum(dim=1) / 2
    torch.testing.assert_close(phi.value(z), want, rtol=1e-10, atol=1e-10)
    printed = torch.linalg.solve(phi.W, z.T).T
    other = 0.75 * printed.square().sum(dim=1) - (phi.c * printed).sum(dim=1) - z.square().sum(dim=1) / 2
    assert (other - want).abs().max() > 1e-2


@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize("mu", [1.0, 2.5])
def test_the_equilibrium_of_relu_solves_the_quadratic_programme(n, m, mu):
    model, X = layer("relu", n, m, mu=mu)
    Z = model.equilibrium(X, stop=TIGHT).detach()
    found = model.minimise(X)
    torch.testing.assert_close(found.z, Z, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.v @ model.W / mu, Z, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.value, model.objective(Z, X), rtol=0, atol=1e-10)
    programme = model.quadratic_programme(X)
    want = (found.v.square().sum(dim=1) / 2 - (model.injection(X) * found.v).sum(dim=1)) / mu
    want = want - found.z.square().sum(dim=1) / 2
    torch.testing.assert_close(programme.value(found.v), want, rtol=0, atol=1e-12)
    slope = found.v @ programme.H - programme.g  # the KKT conditions
    assert slope.min() > -1e-9
    assert (found.v * slope).abs().max() < 1e-9


@pytest.mark.parametrize("activation", ALL)
def test_the_equilibrium_minimises_phi_for_every_activation(activation):
    model, X = layer(activation)
    Z = model.equilibrium(X, stop=TIGHT).detach()
    found = model.minimise(X)
    torch.testing.assert_close(found.z, Z, rtol=0, atol=1e-10)
    (phi,) = model.potentials(X)
    value = phi.at_image(Z)
    torch.testing.assert_close(found.value, value, rtol=0, atol=1e-9)
    for seed in range(4):
        assert (phi.at_image(Z + draw(30 + seed, 5, 4)) >= value - 1e-10).all()
    assert (model.optimality_gap(Z, X) < 1e-20).all()


@pytest.mark.parametrize("activation", ["relu", "tanh", "softplus"])
def test_the_optimality_gap_bounds_the_true_one_along_the_iteration(activation):
    model, X = layer(activation)
    (phi,) = model.potentials(X)
    least = phi.at_image(model.equilibrium(X, stop=TIGHT).detach())
    z = 3 * draw(2, 5, 4)
    for _ in range(12):
        true = phi.at_image(z) - least  # φ(f(z)) − min φ
        bound = model.optimality_gap(z, X)
        assert (true >= -1e-10).all()
        assert (true <= bound + 1e-10).all()
        z = phi.map(z)
    assert bound.max() < 0.1
    with torch.no_grad():
        model.W.mul_(1 / 0.9)
        model.project_()  # ‖W‖ = 1 but for rounding: no strong convexity worth the name
    assert (model.optimality_gap(3 * draw(2, 5, 4), X) > 1e8).all()


def test_the_equation_of_the_optimiser_holds_for_one_dimension_by_plain_search():
    model, X = layer("softplus", 3, 1, mu=2.0)
    Z = model.equilibrium(X, stop=TIGHT).detach()
    for i in range(2):
        (phi,) = model.potentials(X[i : i + 1].expand(200, 3))
        span = abs(Z[i].item()) + 2.0
        grid = torch.linspace(-span, span, 200, dtype=torch.float64)[:, None]
        inside = grid[torch.isfinite(phi.value(grid))]
        assert len(inside) > 20
        F = lambda z, i=i: model.objective(torch.tensor([[z]], dtype=torch.float64), X[i : i + 1]).item()
        low, high = inside.min().item() + 0.01, inside.max().item() - 0.01
        found = brentq(lambda z, F=F: slope_of(F, z, 1e-3), low, high)
        assert found == pytest.approx(Z[i].item(), abs=1e-9)


# -- Moreau envelopes and the skip connection ----------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "tanh", "leaky_relu", "softplus"])
@pytest.mark.parametrize("t", [0.2, 0.7, 1.0])
def test_envelopes_are_what_their_definition_says(activation, t):
    model, X = layer(activation, 5, 3)
    (phi,) = model.potentials(X)
    x = draw(3, 5, 3)
    p, M = phi.prox(t, x), phi.envelope(t, x)
    y = x + (1 - t) / t * (x - p) if t < 1 else x  # t y + (1−t) p = x
    torch.testing.assert_close(phi.map(y), p, rtol=0, atol=1e-10)
    for seed in range(6):
        other = phi.map(draw(40 + seed, 5, 3))
        value = phi.value(other) + (x - other).square().sum(dim=1) / (2 * t)
        assert (value >= M - 1e-9).all()
    gradient, hessian = phi.envelope_gradient(t, x), phi.envelope_hessian(t, x)
    for seed in range(3):
        d = draw(50 + seed, 5, 3)
        slope = slope_of(lambda s, d=d: phi.envelope(t, x + s * d), 0.0, 1e-4)
        torch.testing.assert_close(slope, (gradient * d).sum(dim=1), rtol=0, atol=1e-9)
        turn = slope_of(lambda s, d=d: phi.envelope_gradient(t, x + s * d), 0.0, 1e-4)
        torch.testing.assert_close(turn, torch.einsum("imk,ik->im", hessian, d), rtol=0, atol=1e-9)


def test_the_envelope_of_relu_against_a_general_minimiser():
    model, X = layer("relu", 5, 3, mu=1.3)
    (phi,) = model.potentials(X)
    x, t = draw(3, 5, 3), 0.4
    for i in range(5):
        W, c, row = phi.W.numpy(), phi.c[i].numpy(), x[i].numpy()

        def F(v, W=W, c=c, row=row):
            p = W.T @ v / phi.mu
            return (v @ v / 2 - c @ v) / phi.mu - p @ p / 2 + (row - p) @ (row - p) / (2 * t)

        found = minimize(F, np.ones(5), bounds=[(0, None)] * 5, method="L-BFGS-B", options={"ftol": 1e-15})
        assert phi.envelope(t, x)[i].item() == pytest.approx(found.fun, abs=1e-8)


@pytest.mark.parametrize("activation", ["relu", "tanh", "softplus"])
@pytest.mark.parametrize("alpha", [0.2, 0.6])
def test_the_skip_form_is_the_proximal_map_of_alpha_times_the_envelope(alpha, activation):
    """x = αf(z) + (1−α)z has z − x = α∇M_φ^{1−α}(x); without the factor α, as printed, it has not."""
    model, X = layer(activation, alpha=alpha)
    (phi,) = model.potentials(X)
    z = draw(6, 5, 4)
    x = model.layer_map(z, phi.c, phi.W).detach()
    gradient = phi.envelope_gradient(1 - alpha, x)
    torch.testing.assert_close(z - x, alpha * gradient, rtol=0, atol=1e-10)
    assert (z - x - gradient).abs().max() > 1e-2


# -- two layers and more -------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.1, 0.4, 0.9, 1.0])
@pytest.mark.parametrize("hidden", [(5, 4), (3, 7)])
def test_two_relu_layers_minimise_the_joint_objective(alpha, hidden):
    model, X = deep(hidden, alpha)
    Z = model.equilibrium(X, stop=eq.Stop(rtol=1e-14, atol=1e-15, max_steps=20000)).detach()
    found = model.minimise(X)
    torch.testing.assert_close(found.z, Z, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.value, model.objective(Z, X), rtol=0, atol=1e-9)
    Z1 = model.block_states(Z, X)[0]
    torch.testing.assert_close(model.objective((Z1, Z), X), model.objective(Z, X), rtol=0, atol=1e-11)
    for seed in range(4):
        d1, d0 = 10.0**-seed * draw(60 + seed, 2, 5, 4)
        other = (Z1 + d1, Z + d0)
        if alpha == 1:  # φ is finite on a cone: stay in it
            first, second = model.potentials(X)
            other = (first.map(Z + d0), second.map(Z1 + d1))
        assert (model.objective(other, X) >= found.value - 1e-9).all()


@pytest.mark.parametrize("activation", ["tanh", "softplus", "leaky_relu"])
def test_two_layers_of_other_activations_minimise_it_too(activation):
    model, X = deep(activation=activation)
    Z = model.equilibrium(X, stop=TIGHT).detach()
    torch.testing.assert_close(model.minimise(X).z, Z, rtol=0, atol=1e-10)
    model.alpha = 1.0
    with pytest.raises(ValueError, match="at α = 1 the joint objective is not differentiable"):
        model.minimise(X)


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_the_joint_gap_bounds_the_true_one(alpha):
    model, X = deep((5, 4), alpha)
    first, second = model.potentials(X)
    least = model.minimise(X).value
    z = 2 * draw(1, 5, 4)
    for _ in range(8):
        z1 = model._layer(first, z)
        z0 = model._layer(second, z1)
        true = model.objective((z1, z0), X) - least
        bound = model.optimality_gap(z, X)
        assert (true >= -1e-9).all()
        assert (true <= bound + 1e-9).all()
        z = z0
    assert bound.max() < 0.1
    with torch.no_grad():
        model.layers[1].W.zero_()
    assert torch.isfinite(model.optimality_gap(z, X)).all()


@pytest.mark.parametrize("alpha", [0.3, 0.8])
def test_the_gaps_are_attained_by_scaled_identities(alpha):
    """A quadratic objective with one curvature: the bounds of strong convexity are equalities."""
    one, X = layer("identity", 4, 4)
    two, _ = deep((4, 4), alpha, activation="identity")
    with torch.no_grad():
        one.W.copy_(0.8 * torch.eye(4))
        for block, size in zip(two.layers, (0.9, 0.6), strict=True):
            block.W.copy_(size * torch.eye(4))
    z = draw(1, 5, 4)
    (phi,) = one.potentials(X)
    true = phi.at_image(z) - phi.at_image(one.equilibrium(X, stop=TIGHT).detach())
    torch.testing.assert_close(one.optimality_gap(z, X), true, rtol=1e-9, atol=1e-10)
    first, second = two.potentials(X)
    z1 = two._layer(first, z)
    least = two.objective(two.equilibrium(X, stop=TIGHT).detach(), X)
    true = two.objective((z1, two._layer(second, z1)), X) - least
    torch.testing.assert_close(two.optimality_gap(z, X), true, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("activation", ["relu", "tanh", "softplus"])
@pytest.mark.parametrize("alpha", [0.2, 0.7, 1.0])
def test_any_number_of_layers_solves_the_inclusion(alpha, activation):
    """Theorem 2, with the envelopes' gradients found by Newton's method on another equation."""
    model, X = deep((5, 4, 6), alpha, activation=activation)
    Z = model.equilibrium(X, stop=eq.Stop(rtol=1e-14, atol=1e-15, max_steps=20000)).detach()
    assert model.inclusion_residual(Z, X).max() < 1e-12
    assert model.inclusion_residual(Z + 0.1, X).min() > 1e-3
    with pytest.raises(ValueError, match=r"two layers minimise a joint objective .* Got 3 instead"):
        model.objective(Z, X)


def test_one_layer_is_sent_to_its_own_problem():
    one, X = deep((5,), 0.7)
    with pytest.raises(ValueError, match=r"Got one instead, which minimises φ alone: wide\(\)"):
        one.minimise(X)
    Z = one.equilibrium(X, stop=TIGHT).detach()
    torch.testing.assert_close(one.wide().minimise(X).z, Z, rtol=0, atol=1e-11)


# -- with a property, and what is refused --------------------------------------------------------------------


@pytest.mark.parametrize("regulariser", [L1(0.1), SquaredL2(0.3), GroupLasso(0.2, 2), Box(-0.2, 0.3)])
@pytest.mark.parametrize("alpha", [0.5, 1.0])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_property_adds_its_moreau_envelope_to_the_problem(regulariser, alpha, activation):
    """S(z) minimises Φ + M_R, and not Φ + R as printed."""
    model, X = layer(activation, 6, 4, alpha=alpha, regulariser=regulariser)
    Z = model.equilibrium(X, stop=TIGHT).detach()
    (phi,) = model.potentials(X)
    S = lambda z: model.layer_map(z, phi.c, phi.W).detach()
    y = S(Z)
    torch.testing.assert_close(regulariser(y), Z, rtol=0, atol=1e-12)
    pull = y - regulariser(y)  # ∇M_R(y)
    torch.testing.assert_close(S(y - pull), y, rtol=0, atol=1e-10)  # 0 ∈ ∂Φ(y) + ∇M_R(y)
    best = model.objective(y, X)
    for seed in range(5):
        assert (model.objective(S(Z + 0.3 * draw(70 + seed, 5, 4)), X) >= best - 1e-9).all()


def test_a_model_in_single_precision_has_its_problem_in_double():
    for double, X in (layer(), deep((5, 4), 1.0)):
        single, x = type(double)(**double.config()), X.float()
        single.load_state_dict(double.state_dict())
        Z = single.equilibrium(x).detach()
        found = single.minimise(x)
        assert found.z.dtype == torch.float64
        torch.testing.assert_close(found.z, Z.double(), rtol=0, atol=1e-3)
        assert single.optimality_gap(Z, x).max() < 1e-6
        assert torch.isfinite(single.objective(found.z, x)).all()


def test_what_is_not_a_convex_problem_is_refused_in_words():
    model, X = layer()
    Z = model.equilibrium(X).detach()
    with torch.no_grad():
        model.W.mul_(2)
    for call in (model.objective, model.optimality_gap):
        with pytest.raises(ValueError, match=r"φ is convex where L_σ‖W‖² ≤ μ\. Got 3\.24 μ for layer 1"):
            call(Z, X)
    tanh, X = layer("tanh")
    with pytest.raises(ValueError, match=r"the quadratic programme is that of relu\. Got tanh"):
        tanh.quadratic_programme(X)
    stepped, X = layer(regulariser=GradientStep(half_squared_norm()))
    with pytest.raises(ValueError, match="a gradient step is no proximal map in general"):
        stepped.objective(Z, X)
    with pytest.raises(ValueError, match=r"the network without L1.* equilibrium\(X\) is what"):
        layer(regulariser=L1(0.1))[0].minimise(X)
    with pytest.raises(ValueError, match=r"t must lie in \(0, 1\]"):
        tanh.potentials(X)[0].prox(1.5, Z)
    flat = QuadraticProgramme(
        torch.zeros(2, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64), 2
    )
    with pytest.raises(ValueError, match="strictly convex"):
        flat.solve()
    steep = Phi(
        3 * torch.eye(2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64), 1.0, KNOWN["relu"]
    )
    assert torch.isfinite(steep.psi(torch.ones(1, 2, dtype=torch.float64))).all()
