import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from contracts.model import TIGHT, ModelContract
from equipoise.models.affine import LinearEquilibrium
from equipoise.models.affine.linear import d_operator


def draw(seed=0, m=6, k=1, gamma=0.8, scale=1.0, **options):
    generator = torch.Generator().manual_seed(seed)
    model = LinearEquilibrium(m, k, gamma, dtype=torch.float64, generator=generator, **options)
    with torch.no_grad():
        model.A *= scale
    return model, torch.randn(9, m, dtype=torch.float64, generator=generator)


class TestLinearEquilibrium(ModelContract):
    family = LinearEquilibrium
    inputs = 6
    iterates = False
    column_outputs = True
    equation = "Z = γ Z Sᵀ + φ(X)"
    curved = "A"
    learning_rate = 0.002

    def build(self, outputs=1, seed=0, dtype=torch.float64, **options):
        generator = torch.Generator().manual_seed(seed)
        return LinearEquilibrium(6, outputs, dtype=dtype, generator=generator, **options)

    def kronecker(self, model, X, Z, D):
        """vec(dM) = −Σ_j … by the product rule: ∂ŷ/∂vec(A) = γ Σ_j (z_j ⊗ M J_j), column by column of A."""
        S, M = torch.softmax(model.A.detach(), dim=0), model.predictor().detach()
        columns = []
        for j in range(6):
            J = torch.diag(S[:, j]) - torch.outer(S[:, j], S[:, j])
            columns.append(model.gamma * torch.kron(Z[:, j : j + 1], M @ J))  # (N, m): ∂ŷ/∂A_·j
        return {"A": torch.stack(columns, dim=2).reshape(len(Z), -1), "B": Z}


# -- the closed form ------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**31), gamma=st.floats(0.01, 0.97), k=st.integers(1, 3), scale=st.floats(0, 30))
@settings(max_examples=25)
def test_the_closed_form_is_the_iterated_fixed_point(seed, gamma, k, scale):
    model, X = draw(seed, k=k, gamma=gamma, scale=scale)
    Z = X
    for _ in range(int(40 / -math.log10(gamma)) + 2):
        Z = Z @ model.weight().detach().T + X
    torch.testing.assert_close(model.equilibrium(X).detach(), Z, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model(X).detach(), Z @ model.B.detach().T, rtol=1e-9, atol=1e-9)
    assert model.solve(X).converged.all()


@pytest.mark.parametrize("k", [1, 2])
def test_solvers_iterate_to_the_factored_answer_and_adjoint(k):
    model, X = draw(k=k)
    iterated = model.solve(X, solver=eq.Picard(), stop=TIGHT)
    assert iterated.steps.min() > 20
    torch.testing.assert_close(iterated.value, model.solve(X).value, rtol=0, atol=1e-12)
    V = model.adjoint(iterated.value, X)
    assert V.shape == (9, k, 6)
    other = model.adjoint(iterated.value, X, solver=eq.Picard(), stop=TIGHT)
    torch.testing.assert_close(other, V, rtol=0, atol=1e-12)
    torch.testing.assert_close(V, model.predictor().detach().expand(9, k, 6))


def test_existence_for_every_a():
    for scale in (0.0, 1.0, 100.0):
        model, _ = draw(scale=scale, gamma=0.95)
        S = model.weight().detach() / 0.95
        torch.testing.assert_close(S.sum(dim=0), torch.ones(6, dtype=S.dtype))
        inverse = torch.linalg.inv(model.umat().detach())
        assert torch.linalg.matrix_norm(inverse, ord=1).item() == pytest.approx(1 / 0.05, rel=1e-9)
        assert torch.linalg.matrix_norm(inverse, ord=2) <= model.resolvent_bound()


def test_training_never_forms_the_equilibria_and_factors_once(monkeypatch):
    model, X = draw(k=2)
    calls = []
    factor = torch.linalg.lu_factor

    def counted(*args, **kwargs):
        calls.append(args[0].shape)
        return factor(*args, **kwargs)

    def forbidden(*_, **__):
        raise AssertionError("no other factorisation, and no equilibrium, is needed")

    monkeypatch.setattr(torch.linalg, "lu_factor", counted)
    for name in ("solve", "inv"):
        monkeypatch.setattr(torch.linalg, name, forbidden)
    model(X).square().sum().backward()
    assert calls == [(6, 6)]


def test_the_gradient_is_the_printed_one_with_g_of_the_linear_model():
    model, X = draw(k=2, m=5)
    y = torch.randn(9, 2, dtype=X.dtype, generator=torch.Generator().manual_seed(1))
    (model(X) - y).square().sum().backward()
    with torch.no_grad():
        S, M, inverse = torch.softmax(model.A, 0), model.predictor(), torch.linalg.inv(model.umat())
        g = 2 * (X @ M.T - y).T @ X  # ∇L₀(M)
        T = S * (M.T @ g @ inverse.T)
        torch.testing.assert_close(model.B.grad, g @ inverse.T, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(
            model.A.grad, 0.8 * (T - S @ torch.diag(T.sum(dim=0))), rtol=1e-11, atol=1e-11
        )


@pytest.mark.parametrize("gamma", [0.5, 0.8, 0.9999])
@pytest.mark.parametrize("spoilt", [False, True])
def test_wide_models_factor_in_single_and_answer_in_double(gamma, spoilt, monkeypatch):
    model, _ = draw(m=280, k=2, gamma=gamma, scale=20.0)
    factor, kinds = torch.linalg.lu_factor, []

    def spoil(matrix):
        LU, pivots = factor(matrix)
        kinds.append(LU.dtype)
        return (LU.flip(0) if spoilt else LU), pivots  # no correction converges from a wrong one

    solve, again = torch.linalg.solve, []
    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "lu_factor", spoil)
        patch.setattr(torch.linalg, "solve", lambda *a, **k: again.append(1) or solve(*a, **k))
        M = model.predictor()
        G = torch.randn(M.shape, dtype=M.dtype, generator=torch.Generator().manual_seed(1))
        gradients = torch.autograd.grad(M, (model.A, model.B), G)
    assert kinds == [torch.float32]
    assert len(again) == (2 if spoilt else 0)  # forward and backward, in double after all
    exact = torch.linalg.solve(model.umat(), model.B, left=False)
    scale = 1e-15 * 280 / (1 - gamma)  # the conditioning of Umat, in float64
    for got, want in zip(
        (M, *gradients), (exact, *torch.autograd.grad(exact, (model.A, model.B), G)), strict=True
    ):
        assert (got - want).norm() <= scale * want.norm()
    residual = (M @ model.umat() - model.B).norm() / (M.norm() + model.B.norm())
    assert residual <= 1e-14


def test_column_sums_of_a_are_conserved_by_gradient_steps():
    model, X = draw(k=2, m=7)
    y = torch.randn(9, 2, dtype=X.dtype, generator=torch.Generator().manual_seed(1))
    before, start = model.A.detach().sum(dim=0), model.A.detach().clone()
    optimiser = torch.optim.SGD(model.parameters(), lr=2e-4)
    for _ in range(100):
        optimiser.zero_grad()
        (model(X) - y).square().sum().backward()
        optimiser.step()
    assert (model.A.detach() - start).norm() > 1e-3
    torch.testing.assert_close(model.A.detach().sum(dim=0), before, rtol=0, atol=1e-13)


# -- the operator of Theorem 1 --------------------------------------------------------------------------


def by_definition(model):
    """D = Σ_j (Umat⁻ᵀ)_·j (Umat⁻¹)_j· ⊗ (I + γ² M J_j J_jᵀ Mᵀ), formed."""
    S, M = torch.softmax(model.A.detach(), 0), model.predictor().detach()
    inverse = torch.linalg.inv(model.umat().detach())
    total = 0
    for j in range(model.width):
        J = torch.diag(S[:, j]) - torch.outer(S[:, j], S[:, j])
        Q = torch.eye(model.outputs, dtype=S.dtype) + model.gamma**2 * M @ J @ J.T @ M.T
        total = total + torch.kron(torch.outer(inverse[j], inverse[j]), Q)
    return total


@given(seed=st.integers(0, 2**31), gamma=st.floats(0.05, 0.95), k=st.integers(1, 3), scale=st.floats(0, 10))
@settings(max_examples=25)
def test_d_is_applied_inverted_and_bounded_without_being_formed(seed, gamma, k, scale):
    model, _ = draw(seed, m=5, k=k, gamma=gamma, scale=scale)
    D, formed = d_operator(model), by_definition(model)
    V = torch.randn(k, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    vec = V.T.flatten()  # by columns
    torch.testing.assert_close(D(V).T.flatten(), formed @ vec, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(D.solve(D(V)), V, rtol=1e-8, atol=1e-9)
    least = torch.linalg.eigvalsh(formed)[0].item()
    assert D.lambda_min() == pytest.approx(least, rel=1e-7)
    assert D.lambda_min() >= 1 / (5 * (1 + gamma) ** 2) * (1 - 1e-10)


def test_gradient_flow_moves_the_predictor_by_minus_d_of_its_gradient():
    model, X = draw(k=2, m=5)
    y = torch.randn(9, 2, dtype=X.dtype, generator=torch.Generator().manual_seed(1))
    (model(X) - y).square().sum().backward()
    M = model.predictor().detach()
    step = 1e-7
    moved = []
    for sign in (1, -1):
        other, _ = draw(k=2, m=5)
        with torch.no_grad():
            for p, q in zip(other.parameters(), model.parameters(), strict=True):
                p.copy_(q - sign * step * q.grad)
        moved.append(other.predictor().detach())
    g = 2 * (X @ M.T - y).T @ X
    torch.testing.assert_close(
        (moved[0] - moved[1]) / (2 * step), -d_operator(model)(g), rtol=1e-5, atol=1e-5
    )


def test_the_tangent_kernel_is_that_of_d_on_the_features():
    # ∂ŷ_ip/∂θ · ∂ŷ_lq/∂θ = φ_iᵀ D_pq φ_l: the kernel in function space, D in the space of M.
    model, X = draw(k=2, m=5)
    Z = model.solve(X).value
    V = model.adjoint(Z, X)
    total = sum(model.gram(V, Z, X, V, Z, X).values())
    formed = by_definition(model).reshape(5, 2, 5, 2)  # (j, p), (l, q)
    want = torch.einsum("ij,jplq,nl->ipnq", X, formed, X)
    torch.testing.assert_close(total, want, rtol=1e-10, atol=1e-10)


# -- features, options, words ---------------------------------------------------------------------------


def test_a_feature_map_may_be_a_function_or_a_frozen_module(tmp_path):
    X = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def cubic(X):
        return torch.cat([X, X**3], dim=1)

    model, _ = draw(feature_map=cubic)
    plain, _ = draw()
    assert torch.equal(model(X), plain(cubic(X)))
    Z = model.solve(X).value
    torch.testing.assert_close(Z, plain.solve(cubic(X)).value)
    model.save(tmp_path / "m.safetensors")
    with pytest.raises(TypeError, match=r"feature_map must be a function .* Got 'cubic' instead"):
        LinearEquilibrium.load(tmp_path / "m.safetensors")
    again = LinearEquilibrium.load(tmp_path / "m.safetensors", feature_map=cubic)
    assert torch.equal(again(X), model(X))
    with pytest.raises(ValueError, match=r"feature_map must return \(8, 6\).* Got shape \(8, 3\)"):
        draw(feature_map=lambda X: X)[0](X)
    with pytest.raises(ValueError, match="NaN or infinity in row 0"):
        draw(feature_map=lambda X: cubic(X) / 0)[0](X)


def test_a_trained_feature_map_learns_by_autograd_and_is_refused_by_the_formulas():
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 6, dtype=torch.float64)
    model, _ = draw(feature_map=net)
    X = torch.randn(8, 3, dtype=torch.float64)
    model(X).sum().backward()
    assert net.weight.grad.norm() > 0
    Z = model.solve(X).value
    V = model.adjoint(Z, X)
    with pytest.raises(ValueError, match=r"requires_grad_\(False\)"):
        model.gram(V, Z, X, V, Z, X)
    net.requires_grad_(False)
    assert model.gram(V, Z, X, V, Z, X).keys() == {"A", "B"}


@pytest.mark.parametrize("gamma", [0.0, 1.0, -0.5, 2.0, float("nan")])
def test_gamma_outside_its_range_is_refused(gamma):
    with pytest.raises(ValueError, match=r"gamma must lie in \(0, 1\)"):
        LinearEquilibrium(3, gamma=gamma)


def test_a_is_refused_where_it_is_not_finite():
    model, _ = draw()
    with torch.no_grad():
        model.A[1, 2] = torch.inf
    with pytest.raises(ValueError, match=r"A must be finite\. Got inf at \[1, 2\]"):
        model.check_wellposed()


def test_the_start_has_the_variances_of_the_paper():
    model = LinearEquilibrium(300, 100, generator=torch.Generator().manual_seed(0))
    for p in model.parameters():
        assert p.var().item() == pytest.approx(1 / 300, rel=0.03)


def test_residuals_are_measured_against_the_stop():
    model, X = draw()
    solution = model.solve(X, stop=TIGHT)
    f = X + solution.value @ model.weight().detach().T
    torch.testing.assert_close(solution.residual, (f - solution.value).norm(dim=1), rtol=0, atol=1e-15)
    assert solution.solver == "LU"
    assert solution.steps.tolist() == [0] * 9
