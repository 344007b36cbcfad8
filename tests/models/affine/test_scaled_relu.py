import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from contracts.model import TIGHT, ModelContract
from equipoise.models.affine import ScaledReLU
from equipoise.models.norms import spectral_norm


def kron(A, B):
    return torch.kron(A.contiguous(), B.contiguous())


class TestScaledReLU(ModelContract):
    family = ScaledReLU
    options = {"init": "section5.2", "gamma": 0.08}  # noqa: RUF012
    equation = "Z = relu(γ Z A + "
    curved = "A"
    learning_rate = 0.003

    def kronecker(self, model, X, Z, D):
        """[gao2022, (7)-(9)]: samples are rows, vec stacks columns, Q = I − γ D (Aᵀ ⊗ I_N)."""
        n, m = Z.shape
        A, W, b, one = model.A.detach(), model.W.detach(), model.b.detach(), torch.eye(n, dtype=Z.dtype)
        mask, features = (torch.diag(M.T.flatten()) for M in (D, (X @ W > 0).to(Z.dtype)))
        Q = torch.eye(n * m, dtype=Z.dtype) - model.gamma * mask @ kron(A.T, one)
        R = kron(b[None], one) @ torch.linalg.inv(Q) @ mask  # (n, nm)
        middle = torch.eye(m, dtype=Z.dtype)

        def by_rows(columns, height):  # from vec by columns of (height, m) to row-major
            return columns.reshape(n, m, height).transpose(1, 2).reshape(n, -1)

        return {
            "W": by_rows(R @ features @ kron(middle, X), model.inputs),
            "A": by_rows(model.gamma * R @ kron(middle, Z), m),
            "b": Z,
        }


def draw(seed=0, n=5, d=4, m=7, **options):
    generator = torch.Generator().manual_seed(seed)
    model = ScaledReLU(d, m, dtype=torch.float64, generator=generator, **options)
    return model, torch.randn(n, d, dtype=torch.float64, generator=generator)


# -- ties ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slope", [0, 1])
def test_ties_of_the_identity_start_read_the_same_from_every_start(slope):
    model, X = draw(n=30, m=40, relu_at_zero=slope, outputs=2)
    with torch.no_grad():
        model.b.normal_(generator=torch.Generator().manual_seed(1))
    P = X @ model.W.detach()
    assert 0.3 < (P < 0).double().mean() < 0.7  # where Z ties at 0, since A = I
    Z = torch.relu(P) / (1 - model.gamma)
    starts = {
        "default": None,
        "zeros": torch.zeros_like(Z),
        "ones": torch.ones_like(Z),
        "solution": Z,
        "previous": 1.01 * Z + 0.01,
        "extrapolated": 2 * Z - (Z + 0.02 * torch.sign(P)),
        "huge": 1e3 * torch.ones_like(Z),
    }
    # D = 1{x·W > 0}, or 1 everywhere with slope 1 at the ties; V = D∘b/(1 − γ), ∇A = γ Zᵀ diag(r) V.
    D = (P > 0).double() if slope == 0 else torch.ones_like(P)
    for name, start in starts.items():
        solution = model.solve(X, start=start)
        assert torch.equal(model.masks(solution.value, X), D), name
        model.zero_grad()
        model(X, start=start).sum().backward()
        V = D * model.b.detach().sum(dim=1) / (1 - model.gamma)
        torch.testing.assert_close(model.A.grad, model.gamma * Z.T @ V, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(model.W.grad, X.T @ ((P > 0) * V), rtol=1e-6, atol=1e-6)


def test_a_mask_read_without_care_would_be_wrong():
    model, X = draw(n=10, m=20)
    problem = model.affine_map(X)
    Z = model.solve(X, start=torch.ones(10, 20, dtype=torch.float64)).value
    careless = model.activation.slope(problem.preactivation(Z))
    assert (careless != model.masks(Z, X)).double().mean() > 0.3


def test_small_activations_that_are_no_ties_keep_their_mask():
    model, X = draw(n=3, m=4)
    with torch.no_grad():
        model.W.fill_(0.0)
        model.W[0] = torch.tensor([1.0, 1e-9, 1e-11, -1.0])
    X = torch.ones_like(X[:, :4])
    Z = model.solve(X, start=torch.ones(3, 4, dtype=X.dtype), stop=eq.Stop(rtol=1e-6)).value
    assert model.masks(Z, X).tolist() == [[1.0, 1.0, 1.0, 0.0]] * 3


# -- lemmas ------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**31), gamma0=st.floats(0.05, 0.95))
@settings(max_examples=20)
def test_lemma_3_1_bounds_the_equilibrium_and_the_resolvent(seed, gamma0):
    model, X = draw(seed, m=6)
    with torch.no_grad():
        model.A.normal_(generator=torch.Generator().manual_seed(seed))
        model.A *= gamma0 / (model.gamma * spectral_norm(model.A))
    Phi, Z = model.injection(X).detach(), model.solve(X, stop=TIGHT).value
    assert model.contraction() == pytest.approx(gamma0)
    assert Z.norm() <= Phi.norm() / (1 - gamma0) * (1 + 1e-12)
    eye = torch.eye(6, dtype=X.dtype)
    for D in model.masks(Z, X):  # Q is block diagonal, one block for each sample
        Q = eye - D[:, None] * model.weight().detach()
        assert torch.linalg.svdvals(Q)[-1] >= 1 - gamma0 - 1e-12


@given(seed=st.integers(0, 2**31), gamma0=st.floats(0.05, 0.95))
@settings(max_examples=20)
def test_lemma_5_1_closed_form_where_a_is_not_negative(seed, gamma0):
    model, X = draw(seed, init="section5.2")
    with torch.no_grad():
        model.A *= gamma0 / (model.gamma * spectral_norm(model.A))
    assert (model.A >= 0).all()
    torch.testing.assert_close(model.closed_form(X), model.equilibrium(X, stop=TIGHT), rtol=1e-11, atol=1e-12)
    (by_solve,) = torch.autograd.grad(model.closed_form(X).sum(), model.W)
    (implicit,) = torch.autograd.grad(model.equilibrium(X, stop=TIGHT).sum(), model.W)
    torch.testing.assert_close(by_solve, implicit, rtol=1e-10, atol=1e-11)


def test_the_closed_form_says_where_it_does_not_apply():
    model, X = draw()
    with torch.no_grad():
        model.A[2, 3] = -0.5
    with pytest.raises(ValueError, match=r"needs A ≥ 0 entrywise\. Got A\[2, 3\] = -0\.5 instead"):
        model.closed_form(X)
    with torch.no_grad():
        model.A.copy_(3.0 * torch.eye(7, dtype=X.dtype))
    with pytest.raises(ValueError, match="γ‖A‖ must be < 1"):
        model.closed_form(X)


@given(seed=st.integers(0, 2**31), size=st.floats(1e-4, 1.0))
@settings(max_examples=20)
def test_lemma_4_3_bounds_the_change_of_the_equilibrium(seed, size):
    first, X = draw(seed, gamma=0.3)
    other, _ = draw(seed, gamma=0.3)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for model in (first, other):
            model.A.normal_(generator=generator).mul_(0.4)
        other.A.copy_(first.A + size * 0.1 * torch.randn(7, 7, dtype=X.dtype, generator=generator))
        other.W.copy_(first.W + size * torch.randn(4, 7, dtype=X.dtype, generator=generator))
        l1, l2 = (max(spectral_norm(getattr(m, n)) for m in (first, other)) for n in "WA")
        g0 = 0.3 * l2
        if g0 >= 1:
            return
        dA, dW = (spectral_norm(getattr(first, n) - getattr(other, n)) for n in "AW")
    bound = X.norm() / (1 - g0) * (g0 / (1 - g0) * l1 / l2 * dA + dW)
    change = first.solve(X, stop=TIGHT).value - other.solve(X, stop=TIGHT).value
    assert change.norm() <= bound * (1 + 1e-12)


# -- initialisations ------------------------------------------------------------------------------


def test_start_of_the_experiments():
    model, _ = draw(d=300, m=200)
    assert model.gamma == 0.5
    assert model.W.var().item() == pytest.approx(1 / 200, rel=0.03)
    assert torch.equal(model.A.detach(), torch.eye(200, dtype=torch.float64))
    assert model.b.abs().max() == 0


@pytest.mark.parametrize("beta", [1.0, 30.0])
def test_start_of_section_5_1_rescales_gamma_with_beta(beta):
    model, _ = draw(d=300, m=200, init="section5.1", beta=beta)
    norm = spectral_norm(model.W)
    assert model.W.var().item() == pytest.approx(beta**2 / 300, rel=0.03)
    torch.testing.assert_close(model.A.detach(), norm * torch.eye(200, dtype=torch.float64))
    assert model.b.abs().max() == 0
    assert model.gamma == pytest.approx(1 / (2 * (norm + 1)))  # γ₀ = γ(‖A(0)‖ + C₂) = ½ with C₂ = 1
    model.check_wellposed()


def test_start_of_section_5_2_is_random_and_wellposed():
    model, _ = draw(d=100, m=200, init="section5.2")
    assert model.W.var().item() == pytest.approx(1, rel=0.03)
    assert (model.A >= 0).all()
    assert model.A.square().mean().item() == pytest.approx(1, rel=0.03)
    assert model.b.var().item() == pytest.approx(1 / 200, rel=0.3)
    # The half-normal norm grows like √(2/π) m, not like √m.
    assert spectral_norm(model.A) == pytest.approx((2 / torch.pi) ** 0.5 * 200, rel=0.02)
    assert model.gamma * (spectral_norm(model.A) + 1) == pytest.approx(0.5)


def test_a_given_gamma_is_used_as_it_is():
    assert draw(init="section5.1", gamma=0.01)[0].gamma == 0.01


@pytest.mark.parametrize("gamma", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_gamma_outside_its_range_is_refused(gamma):
    with pytest.raises(ValueError, match=r"gamma must lie in \(0, 1\)"):
        ScaledReLU(2, 3, gamma=gamma)


def test_other_options_are_refused_in_words():
    with pytest.raises(ValueError, match=r"init must be one of 'experiments', 'section5\.1', 'section5\.2'"):
        ScaledReLU(2, 3, init="lecun")
    with pytest.raises(ValueError, match="beta must be a finite number > 0, and is the factor of"):
        ScaledReLU(2, 3, beta=2.0)
    with pytest.raises(ValueError, match="beta must be a finite number > 0"):
        ScaledReLU(2, 3, init="section5.1", beta=0.0)


def test_weights_that_are_not_wellposed_are_told_by_how_much_and_what_to_do():
    model, X = draw(gamma=0.8)
    with torch.no_grad():
        model.A.mul_(1.5)
    with pytest.raises(ValueError, match=r"Got 0\.8·1\.5 = 1\.2, which is 0\.2 too much: take γ < 0\.6667"):
        model.check_wellposed()
    with pytest.raises(eq.EquilibriumError, match=r"diverged[\s\S]*= 1\.2, which is 0\.2 too much"):
        model(X)


def test_a_large_norm_with_a_small_symmetric_part_is_wellposed():
    model = ScaledReLU(2, 2, gamma=0.5, dtype=torch.float64)
    with torch.no_grad():
        model.A.copy_(torch.tensor([[1.0, 6.0], [-6.0, 1.0]]))  # sym A = I
    model.check_wellposed()
    with torch.no_grad():
        model.A.copy_(torch.tensor([[3.0, 6.0], [-6.0, 1.0]]))
    with pytest.raises(ValueError, match=r"Got 0\.5·3 = 1\.5, which is 0\.5 too much.*\(γ‖A‖ is 3\.\d+\.\)"):
        model.check_wellposed()
    with torch.no_grad():
        model.A.copy_(torch.tensor([[0.0, 3.0], [0.0, 0.0]]))  # γ‖A‖ = 1.5, γλ_max(sym A) = 0.75
    X = torch.ones(1, 2, dtype=torch.float64)
    Z = model.closed_form(X)
    torch.testing.assert_close(torch.relu(0.5 * Z @ model.A + model.injection(X)), Z)
