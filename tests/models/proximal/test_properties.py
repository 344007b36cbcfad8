import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import equipoise as eq
from contracts.model import TIGHT
from equipoise.models.proximal import DeepOptEq, OptEq
from equipoise.models.proximal.properties import (
    L1,
    Box,
    GradientStep,
    GroupLasso,
    SquaredL2,
    as_property,
    differentiable,
)
from equipoise.solve import decorrelation, half_squared_distance, half_squared_norm, inverse_norm
from equipoise.theory.xie2021 import selection

PROXIMAL = [L1(0.3), SquaredL2(0.4), GroupLasso(0.5, 3), Box(-0.5, 0.2)]


def draw(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layer(seed=0, n=8, m=6, **options):
    generator = torch.Generator().manual_seed(seed)
    model = OptEq(3, m, n, dtype=torch.float64, generator=generator, **options)
    with torch.no_grad():
        model.b.copy_(draw(seed + 1, n))
    return model, draw(seed + 2, 7, 3)


# -- proximal layers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("R", PROXIMAL, ids=str)
def test_each_layer_is_the_proximal_map_of_its_regulariser(R):
    z = 2 * draw(0, 4, 6)
    p = R(z)
    best = R.value(p) + (z - p).square().sum(dim=1) / 2
    torch.testing.assert_close(R.envelope(z), best)
    for seed in range(20):
        other = R(p + 10.0 ** (-(seed % 5)) * draw(10 + seed, 4, 6))  # finite R
        value = R.value(other) + (z - other).square().sum(dim=1) / 2
        assert (value >= best + (other - p).square().sum(dim=1) / 2 - 1e-12).all()  # strong convexity
    slope = torch.func.grad(lambda z: R.envelope(z).sum())(z)
    torch.testing.assert_close(slope, z - p, rtol=1e-10, atol=1e-12)  # ∇M_R


def test_the_group_lasso_against_a_general_minimiser():
    R, z = GroupLasso(0.7, 2), draw(1, 1, 6)
    F = lambda p: 0.7 * (np.linalg.norm(p[:3]) + np.linalg.norm(p[3:])) + np.sum((p - z[0].numpy()) ** 2) / 2
    found = minimize(
        F, z[0].numpy(), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14, "maxiter": 9000}
    )
    np.testing.assert_allclose(R(z)[0].numpy(), found.x, atol=1e-5)  # as near as it gets without a gradient
    for p, part in zip(R(z)[0].split(3), z[0].split(3), strict=True):
        torch.testing.assert_close(part - p, 0.7 * p / p.norm(), rtol=1e-12, atol=1e-14)  # z − p ∈ ∂R(p)
    assert R(0.1 * z).abs().max() == 0
    with pytest.raises(ValueError, match=r"groups must divide the state's 6 entries\. Got 4"):
        GroupLasso(0.1, 4)(z)


@pytest.mark.parametrize("R", [*PROXIMAL, GradientStep(half_squared_norm(), 1.7)], ids=str)
def test_properties_are_nonexpansive_and_differentiable(R):
    assert R.nonexpansive
    x, y = 3 * draw(0, 2, 50, 6)
    assert ((R(x) - R(y)).norm(dim=1) <= (x - y).norm(dim=1) * (1 + 1e-12)).all()
    z = draw(2, 3, 6).requires_grad_()
    assert torch.autograd.gradcheck(R, z)
    assert torch.autograd.gradgradcheck(R, z)


@settings(max_examples=20)
@given(seed=st.integers(0, 500), weight=st.sampled_from([0.02, 0.1, 0.4]))
def test_an_l1_layer_makes_sparse_states_and_a_box_keeps_its_bounds(seed, weight):
    dense, X = layer(seed)
    sparse, _ = layer(seed, regulariser=L1(weight))
    boxed, _ = layer(seed, regulariser=Box(-weight, weight))
    Z = dense.equilibrium(X).detach()
    dead = (dense.injection(X) <= 0).all(dim=1)  # no unit is active at 0, which is the equilibrium then
    assert torch.equal(Z == 0, dead[:, None].expand_as(Z))
    S = sparse.equilibrium(X).detach()
    T = sparse.layer_map(S, sparse.injection(X), sparse.weight())
    assert torch.equal(S == 0, T.abs() <= weight) or (T.abs() - weight).abs().min() < 1e-6  # exact zeros
    B = boxed.equilibrium(X).detach()
    assert B.abs().max() <= weight
    assert (B.abs() == weight).any()


def test_more_weight_gives_more_zeros_and_smaller_states():
    zeros, sizes = [], []
    for weight in (0.0, 0.05, 0.2, 0.8):
        model, X = layer(regulariser=L1(weight))
        zeros.append(int((model.equilibrium(X) == 0).sum()))
        model, X = layer(regulariser=SquaredL2(weight))
        sizes.append(model.equilibrium(X).norm().item())
    assert zeros == sorted(zeros)
    assert zeros[0] == 0
    assert zeros[-1] > 20
    assert sizes == sorted(sizes, reverse=True)


def test_a_gradient_step_of_any_differentiable_r():
    """R(z) = Σ√(1 + z²), by automatic differentiation; the equilibrium's gradient goes through it."""
    R = differentiable(lambda z: (1 + z * z).sqrt().sum(dim=1), lipschitz=1.0, convex=True, name="smooth l1")
    step = GradientStep(R, 0.5)
    z = draw(0, 4, 6)
    torch.testing.assert_close(step(z), z - 0.5 * z / (1 + z * z).sqrt())
    model, X = layer(regulariser=step)
    model(X, stop=TIGHT).sum().backward()
    exact = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(X, gradient=eq.Unrolled(400)).sum().backward()
    for a, p in zip(exact, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, rtol=1e-9, atol=1e-9)
    Z = model.equilibrium(X, stop=TIGHT).detach()
    y = model.layer_map(Z, model.injection(X), model.weight())
    torch.testing.assert_close(step(y), Z, rtol=0, atol=1e-12)
    assert eq.certify(model, X).proved
    assert "GradientStep(smooth l1, step=0.5)" in repr(model)
    assert GradientStep(R).gamma == 1.0
    with pytest.raises(TypeError, match="must be a Regulariser"):
        GradientStep(torch.sum)


@pytest.mark.parametrize("R", [inverse_norm(0.5), decorrelation(2)], ids=["inverse_norm", "decorrelation"])
def test_what_is_not_convex_says_so(R):
    model, X = layer(regulariser=GradientStep(R))
    assert not model.regulariser.nonexpansive
    certificate = eq.certify(model, X)
    assert certificate.verdict == "hypotheses_fail"
    assert "not known to be nonexpansive" in certificate.obstacle
    assert eq.theory.equilibrium_error(model, X, torch.zeros(7, 6, dtype=torch.float64)) == math.inf
    assert model.contraction() is None
    with pytest.raises(ValueError, match="nothing says that an input has one equilibrium"):
        model.check_wellposed()
    verdict = selection(layer()[0], eq.SAM(R))
    assert not verdict.promised
    assert "is not convex" in str(verdict)
    assert not GradientStep(half_squared_norm(), 2.1).nonexpansive


# -- SAM -----------------------------------------------------------------------------------------------------


def continuum():
    """z = Wᵀ clamp(W z + c, −1, 1), orthonormal rows: v_i = ±1 where c_i ≠ 0, any in [−1, 1] where 0."""
    model = OptEq(1, 6, 4, activation="hardtanh", dtype=torch.float64)
    with torch.no_grad():
        model.W.copy_(torch.linalg.qr(draw(0, 6, 4)).Q.T)
        model.U.copy_(torch.tensor([[1.0], [-2.0], [0.0], [0.0]]))
        model.b.zero_()
    return model.project_(), torch.tensor([[1.0], [0.5], [-1.0]], dtype=torch.float64)


def chosen(model, X, preferred):
    """The point of Fix(T) nearest to `preferred`: v_i = sign(c_i), and clamp((W a)_i) where c_i = 0."""
    c = model.injection(X)
    v = torch.where(c == 0, (preferred @ model.W.T).clamp(-1, 1), c.sign())
    return (v @ model.W).detach()


@pytest.mark.parametrize("preferred", [torch.zeros(6), torch.linspace(-1, 1.5, 6)], ids=["norm", "distance"])
def test_sam_finds_the_fixed_point_that_r_prefers_at_the_rate_of_its_schedule(preferred):
    model, X = continuum()
    preferred = preferred.double()
    R = half_squared_norm() if preferred.norm() == 0 else half_squared_distance(preferred)
    sam, goal = eq.SAM(R, rho=0.6, c=0.19), chosen(model, X, preferred)
    start = 2 * draw(4, 3, 6)
    errors = []
    for steps in (150, 2400):
        stop = eq.Stop(rtol=1e-12, max_steps=steps, patience=steps)
        value = model.solve(X, solver=sam, stop=stop, start=start).value
        errors.append((value - goal).norm(dim=1).max().item())
    assert errors[1] < 0.3
    order = math.log(errors[0] / errors[1]) / math.log(16)
    assert 0.48 < order < 0.72 if preferred.norm() == 0 else 0.19 < order < 0.6  # ρ, and c from above
    plain = model.solve(X, start=start, solver=eq.Picard()).value
    assert (plain - goal).norm(dim=1).max() > 0.5  # iteration alone ends elsewhere
    assert selection(model, sam).promised
    chain = [sam, eq.Picard()]  # ended by plain iteration: a fixed point, as near as SAM came
    stop = eq.Stop(rtol=1e-10, max_steps=2400, patience=2400)
    solution = model.solve(X, solver=chain, stop=stop, start=start)
    assert solution.converged.all()
    assert (solution.value - goal).norm(dim=1).max() < 1.1 * errors[1]


def test_twenty_steps_of_sam_shrink_and_do_not_select():
    model, X = continuum()
    goal, start = chosen(model, X, torch.zeros(6).double()), 2 * draw(4, 3, 6)
    value = model.equilibrium(X, solver=eq.SAM(), gradient=20, start=start).detach()
    assert (value - goal).norm(dim=1).min() > 0.1 * goal.norm(dim=1).min()
    assert (value.norm(dim=1) < start.norm(dim=1)).all()
    assert model.last.forward.relative_residual.min() > 1e-2  # recorded, and no failure


def test_sam_trains_unrolled_and_is_refused_with_an_implicit_gradient():
    model, X = layer()
    sam = eq.SAM()
    y = model(X, solver=sam, gradient=eq.Unrolled(20))
    z = torch.zeros(7, 6, dtype=torch.float64)  # the same by hand, [xie2021, (10)]
    for k in range(1, 21):
        beta, decay = 0.5 / k**0.34, 0.5 / k**0.32
        T = torch.relu(z @ model.W.T + model.injection(X)) @ model.W
        z = beta * ((1 - 0.5 * decay) * z - 0.5 * z) + (1 - beta) * T
    torch.testing.assert_close(y, z @ model.V, rtol=0, atol=1e-12)
    found = torch.autograd.grad(y.sum(), list(model.parameters()))
    want = torch.autograd.grad((z @ model.V).sum(), list(model.parameters()))
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
    for options in (
        {"solver": sam},
        {"solver": [sam, eq.Picard()]},
        {"solver": sam, "gradient": eq.Phantom()},
    ):
        with pytest.raises(
            ValueError, match=r"I − ∂T/∂z is singular and .* Train it unrolled, solver=SAM\(…\)"
        ):
            model(X, **options)
    with torch.no_grad():
        assert torch.equal(model(X, solver=sam, gradient=20), y)  # evaluated as it was trained
        assert model.solve(X, solver=sam).status.max() > 0
    kept = OptEq(3, 6, 8, solver=sam, gradient=eq.Unrolled(20), dtype=torch.float64)
    kept.load_state_dict(model.state_dict())
    torch.testing.assert_close(kept(X), y, rtol=0, atol=0)
    assert torch.equal(kept.eval()(X), y)


def test_a_continuum_of_equilibria_has_no_implicit_gradient():
    model, X = continuum()
    with torch.no_grad():
        model.W.copy_(torch.eye(4, 6))  # ‖W‖ = 1 exactly: I − WᵀDW is singular
    y = model(X, start=0.5 * draw(4, 3, 6))
    with pytest.raises(eq.EquilibriumError, match="adjoint of the forward solve"):
        y.sum().backward()


def test_a_state_that_is_not_finite_is_a_failure_of_sam_too():
    model, X = layer()
    with torch.no_grad():
        model.W.mul_(1e30)
    how = {"solver": eq.SAM(), "gradient": eq.Unrolled(20)}
    with pytest.raises(eq.EquilibriumError, match="20 steps of SAM: "):
        model(X, **how)
    X2 = torch.cat([torch.zeros(1, 3, dtype=torch.float64), X])
    with torch.no_grad():
        model.b.zero_()  # x = 0 stays at z = 0
    y = model(X2, **how, on_failure=eq.OnFailure("mask", share=0.9))
    assert torch.isfinite(y).all()
    assert model.last.masked == int((model.last.forward.status == eq.Status.nonfinite).sum()) > 0
    y.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in (model.U, model.b, model.V))


def test_selection_reports_every_hypothesis_of_theorem_4():
    model, _ = layer()
    good = selection(model, eq.SAM(half_squared_distance(torch.ones(6))))
    assert good.promised
    assert "γ = 0.5, β_k = 0.5/k^0.34, λ_k = 0.5/k^0.32" in str(good)
    with torch.no_grad():
        model.W.mul_(2)
    assert "‖W‖ of layer 1 is not ≤ √(μ/L_σ) = 1 but 1.8" in selection(model, eq.SAM()).missing[0]
    with torch.no_grad():  # above 1 by less than any tolerance: still not proved
        model.W.mul_((1 + 1e-13) / torch.linalg.matrix_norm(model.W, 2))
    assert not selection(model, eq.SAM()).promised
    assert selection(model.project_(), eq.SAM()).promised
    deep = DeepOptEq(3, 4, [5, 6], regulariser=GradientStep(inverse_norm()))
    assert len(selection(deep, eq.SAM(inverse_norm())).missing) == 2


def test_properties_from_files_and_wrong_ones():
    for R in PROXIMAL:
        assert as_property(R.config()) == R
    for wrong in ("L1", {"kind": "L3"}, half_squared_norm(), 0.1):
        with pytest.raises(TypeError, match="regulariser must be a property such as L1"):
            OptEq(3, 4, 5, regulariser=wrong)
    for make in (lambda: L1(-1.0), lambda: SquaredL2(math.nan), lambda: GroupLasso(math.inf)):
        with pytest.raises(ValueError, match="weight must be a finite number ≥ 0"):
            make()
    with pytest.raises(ValueError, match="groups must be an integer"):
        GroupLasso(0.1, 0)
    with pytest.raises(ValueError, match="low must be < high"):
        Box(1.0, 1.0)


def test_a_regulariser_without_a_graph_is_refused():
    still = differentiable(lambda z: z.detach().square().sum(dim=1), lipschitz=2.0, convex=True, name="still")
    with pytest.raises(ValueError, match="still must depend on z by differentiable operations"):
        GradientStep(still)(torch.ones(2, 3))
    moving = differentiable(lambda z: z.square().sum(dim=1), lipschitz=2.0, convex=True)
    with torch.no_grad():
        assert torch.equal(moving.gradient(torch.ones(2, 3)), 2 * torch.ones(2, 3))


def test_options_of_properties_are_numbers():
    for wrong in ("a", None, math.nan, -1.0):
        with pytest.raises(ValueError, match="weight must be a finite number ≥ 0"):
            L1(wrong)
    with pytest.raises(ValueError, match="low must be < high, both numbers"):
        Box("a", 1.0)
