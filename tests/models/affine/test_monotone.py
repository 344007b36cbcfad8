import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from contracts.model import TIGHT, ModelContract
from equipoise.models.affine import Monotone
from equipoise.models.norms import spectral_norm
from equipoise.theory.hieu2022 import certified_start
from problems import exact_affine


def kron(A, B):
    return torch.kron(A.contiguous(), B.contiguous())


def draw(seed=0, n=6, d=4, N=5, scale=1.0, **options):
    generator = torch.Generator().manual_seed(seed)
    model = Monotone(d, n, dtype=torch.float64, generator=generator, **options)
    with torch.no_grad():
        model.A *= scale
        model.B *= scale
    return model, torch.randn(N, d, dtype=torch.float64, generator=generator)


class TestMonotone(ModelContract):
    family = Monotone
    equation = "Z = relu(Z Wᵀ + X Uᵀ"
    curved = "A"
    learning_rate = 0.02

    def kronecker(self, model, X, Z, D):
        """[hieu2022, §3.2] with samples as columns: Q = I − D(I_N ⊗ W), P_A, P_B by commutation."""
        N, n = Z.shape
        one, eye, u = torch.eye(N, dtype=Z.dtype), torch.eye(n, dtype=Z.dtype), model.u.detach()
        mask = torch.diag(D.flatten())
        Q = torch.eye(N * n, dtype=Z.dtype) - mask @ kron(one, model.weight().detach())
        R = kron(one, u[None]) @ torch.linalg.inv(Q) @ mask  # (N, Nn)
        K = torch.stack([e.reshape(n, n).T.flatten() for e in torch.eye(n * n, dtype=Z.dtype)])
        square = torch.eye(n * n, dtype=Z.dtype)
        P_A = -(square + K) @ kron(eye, model.A.detach().T)
        P_B = square - K

        def by_rows(columns, width):  # from vec by columns of (n, width) to row-major
            return columns.reshape(N, width, n).transpose(1, 2).reshape(N, -1)

        ones = torch.ones(N, 1, dtype=Z.dtype)
        return {
            "A": by_rows(R @ kron(Z, eye) @ P_A, n),
            "B": by_rows(R @ kron(Z, eye) @ P_B, n),
            "U": by_rows(R @ kron(X, eye), model.inputs),
            "u": Z,
            "bias": by_rows(R @ kron(ones, eye), 1),
            "c": ones,
        }


class TestMonotoneOfLargeNormWithBias(TestMonotone):
    options = {"bias": True, "output_bias": True, "margin": 0.3}  # noqa: RUF012
    learning_rate = 0.01
    loss_falls_to = 0.9

    def build(self, *args, **options):
        model = super().build(*args, **options)
        with torch.no_grad():
            model.A *= 1.7
            model.B *= 1.7
            model.bias.copy_(torch.linspace(-0.3, 0.5, model.width))
        return model

    def test_it_is_beyond_plain_iteration(self):
        model, X = self.build(), self.data()
        assert spectral_norm(model.weight()) > 2
        assert model.contraction() is None
        assert not model.solve(X, solver=eq.Picard()).converged.all()


# -- well-posedness -----------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**31), margin=st.floats(0.01, 3.0), scale=st.floats(0, 5))
@settings(max_examples=25)
def test_the_margin_holds_for_every_a_and_b_and_the_equilibrium_is_found(seed, margin, scale):
    model, X = draw(seed, margin=margin, scale=scale)
    W = model.weight().detach()
    sym = torch.eye(6, dtype=W.dtype) - (W + W.T) / 2
    assert torch.linalg.eigvalsh(sym)[0] >= margin - 1e-12 * (1 + scale**2)
    Z = model.equilibrium(X, stop=eq.Stop(rtol=1e-13)).detach()
    exact = exact_affine(W, model.injection(X).detach())
    torch.testing.assert_close(Z, exact, rtol=0, atol=1e-12 * max(1.0, exact.norm().item()) / margin)
    # ‖Z‖_F ≤ ‖X‖_F ‖U‖/μ
    assert Z.norm() <= X.norm() * spectral_norm(model.U) / margin * (1 + 1e-12)


def test_the_scalar_model_on_which_picard_cycles_converges_by_splitting():
    model = Monotone(1, 1, margin=0.5, dtype=torch.float64)
    with torch.no_grad():
        model.A.fill_(2.0)  # W = 0.5 − 4 = −3.5
        model.B.zero_()
        model.U.fill_(1.0)
    X = torch.ones(1, 1, dtype=torch.float64)
    assert model.weight().item() == -3.5
    plain = model.solve(X, solver=eq.Picard())
    assert plain.status.tolist() == [eq.Status.stalled]
    trace = eq.fixed_point(model.affine_map(X), solver=eq.Picard(), trace=True).trace
    assert trace.iterates(0)[:6].flatten().tolist() == [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    for solver in (None, eq.solve.ForwardBackward(), eq.solve.PeacemanRachford(), eq.solve.Newton()):
        found = model.solve(X, solver=solver, stop=eq.Stop(rtol=1e-12, max_steps=5000)).raise_if_failed()
        assert found.value.item() == pytest.approx(1 / 4.5, rel=1e-11)
    with pytest.raises(eq.EquilibriumError, match=r"stalled[\s\S]*splitting[\s\S]*weights are well-posed"):
        model(X, solver=eq.Picard())


def test_active_set_and_splitting_agree():
    model, X = draw(n=40, d=10, N=20, scale=2.0)
    split = model.solve(X, solver=eq.solve.PeacemanRachford(margin=0.5), stop=eq.Stop(rtol=1e-14, atol=1e-14))
    newton = model.solve(X, solver=eq.solve.Newton(), stop=eq.Stop(rtol=1e-14, atol=1e-14))
    torch.testing.assert_close(split.value, newton.value, rtol=0, atol=1e-12)
    problem = model.affine_map(X)
    torch.testing.assert_close(split.value, exact_affine(problem.weight, problem.bias), rtol=0, atol=1e-12)


@given(seed=st.integers(0, 2**31), margin=st.floats(0.05, 1.0), scale=st.floats(0.1, 5))
@settings(max_examples=25)
def test_the_resolvent_with_its_mask_is_bounded(seed, margin, scale):
    model, X = draw(seed, margin=margin, scale=scale)
    W = model.weight().detach()
    for D in model.masks(model.solve(X, stop=TIGHT_ENOUGH).value, X):
        Q = torch.eye(6, dtype=W.dtype) - D[:, None] * W
        assert spectral_norm(torch.linalg.inv(Q) @ torch.diag(D)) <= 1 / margin * (1 + 1e-10)


TIGHT_ENOUGH = eq.Stop(rtol=1e-12)


def test_lemma_3_3_2_as_printed_is_false_and_true_with_its_mask():
    # One unit off: Q = I − D W keeps that unit's row of W off Q⁻¹ D, but not off Q⁻¹.
    model, _ = draw(n=2, margin=0.5)
    with torch.no_grad():
        model.A.copy_(torch.diag(torch.tensor([0.0, 3.0])))
        model.B.copy_(torch.tensor([[0.0, 5.0], [0.0, 0.0]]))
    W = model.weight().detach()
    D = torch.diag(torch.tensor([1.0, 0.0], dtype=W.dtype))
    Q = torch.eye(2, dtype=W.dtype) - D @ W
    u = torch.tensor([1.0, 0.0], dtype=W.dtype)
    printed = (u @ torch.linalg.inv(Q)).norm().item()
    masked = (u @ torch.linalg.inv(Q) @ D).norm().item()
    assert printed > 5 / 0.5 * (1 - 1e-12)  # five times the printed bound ‖u‖/μ = 2
    assert masked <= 1 / 0.5 * (1 + 1e-12)


@given(seed=st.integers(0, 2**31), size=st.floats(1e-5, 1e-1))
@settings(max_examples=20)
def test_lemma_3_3_4_bounds_the_change_of_the_equilibrium(seed, size):
    # ‖Z − Z'‖_F ≤ ‖X‖_F/μ (‖U − U'‖ + ‖W − W'‖ ‖U'‖/μ)
    first, X = draw(seed)
    other, _ = draw(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for p in other.parameters():
            p += size * torch.randn(p.shape, dtype=p.dtype, generator=generator)
    dW, dU = spectral_norm(first.weight() - other.weight()), spectral_norm(first.U - other.U)
    bound = X.norm() / 0.5 * (dU + dW * spectral_norm(other.U) / 0.5)
    change = first.solve(X, stop=TIGHT_ENOUGH).value - other.solve(X, stop=TIGHT_ENOUGH).value
    assert change.norm() <= bound * (1 + 1e-9)


def test_the_error_bound_holds_where_the_plain_residual_is_none():
    for seed in range(20):
        model, X = draw(seed, margin=0.5, scale=2.0)
        problem, exact = model.affine_map(X), model.solve(X, stop=TIGHT_ENOUGH).value
        generator = torch.Generator().manual_seed(seed)
        Z = exact + 0.3 * torch.randn(exact.shape, dtype=X.dtype, generator=generator)
        error = (Z - exact).norm(dim=1)
        assert (error <= model._error(problem, problem(Z) - Z) * (1 + 1e-9)).all()
    # W = −3.5 with margin 4.5: z = 1 has f(z) = 0 and is .78 off, while ‖z − f(z)‖/μ = .22.
    model = Monotone(1, 1, margin=4.5, dtype=torch.float64)
    with torch.no_grad():
        model.A.zero_()
        model.U.fill_(1.0)
    problem = model.affine_map(torch.ones(1, 1, dtype=torch.float64))
    Z = torch.ones(1, 1, dtype=torch.float64)
    error, change = 1 - 1 / 4.5, problem(Z) - Z
    assert change.norm() / 4.5 < error / 3
    assert model._error(problem, change) >= error


# -- the certified start --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["flow", "descent"])
@pytest.mark.parametrize("margin", [0.2, 1.0])
def test_the_certified_start_satisfies_the_conditions(kind, margin):
    model, X = draw(3, n=40, d=8, N=6, margin=margin)
    y = torch.randn(6, dtype=X.dtype, generator=torch.Generator().manual_seed(1))
    A, B = model.A.detach().clone(), model.B.detach().clone()
    radii = certified_start(model, X, y, kind)
    assert torch.equal(model.A.detach(), A)
    assert torch.equal(model.B.detach(), B)
    assert model.u.abs().max() == 0
    assert model(X).abs().max() == 0

    Z = model.solve(X, stop=eq.Stop(rtol=1e-12)).value
    lam = torch.linalg.svdvals(Z)[5].item()
    x, r0, mu = X.norm().item(), y.norm().item(), margin
    a, U, u = (spectral_norm(model.A) + radii["A"], spectral_norm(model.U) + radii["U"], radii["u"])
    worst = max(
        2 * U * u * a / (mu**2 * radii["A"]),
        2 * U * u / (mu**2 * radii["B"]),
        u / (mu * radii["U"]),
        U / (mu * radii["u"]),
    )
    if kind == "flow":
        assert lam**2 >= 4 * x * r0 * worst  # (3.8)
        assert lam**3 >= 8 * x**2 * r0 * u / mu**2 * (4 * (U**2 * a**2 + U**2) / mu**2 + 1)  # (3.9)
    else:
        assert lam**2 >= 8 * x * r0 * worst  # (3.16)
        assert lam**3 >= 16 * x**2 * r0 * u / mu**2 * (1 + (6 * U**2 * a**2 + 4 * U**2) / mu**2)  # (3.17)
        C13 = x**2 * (u**2 / mu**2 + 4 * u**2 * U**2 * (1 + a**2) / mu**4)
        assert lam**2 >= 16 * C13  # (3.18), repaired


def test_the_certified_start_says_what_it_needs():
    model, X = draw(n=8, N=4)
    y = torch.ones(4, dtype=X.dtype)
    with pytest.raises(ValueError, match=r"kind must be one of 'flow', 'descent'"):
        certified_start(model, X, y, kind="newton")
    with pytest.raises(ValueError, match=r"y must be \(4,\).* Got shape \(3,\)"):
        certified_start(model, X, y[:3])
    with pytest.raises(ValueError, match=r"y must not be zero"):
        certified_start(model, X, 0 * y)
    with pytest.raises(ValueError, match=r"independent equilibria"):
        certified_start(model, X[[0, 1, 1, 2]], y)
    flat = copy.deepcopy(model)
    with torch.no_grad():
        flat.A.zero_()
    with pytest.raises(ValueError, match=r"A ≠ 0"):
        certified_start(flat, X, y)
    small, _ = draw(n=3)
    with pytest.raises(ValueError, match=r"Got N = 4 and n = 3"):
        certified_start(small, X, y)
    for options in ({"outputs": 2}, {"bias": True}):
        other, _ = draw(n=8, **options)
        with pytest.raises(ValueError, match="one output and no bias"):
            certified_start(other, X, y)


# -- what is held between calls -------------------------------------------------------------------------


def test_what_was_derived_of_the_weights_is_used_again_and_never_when_they_changed(monkeypatch):
    model, X = draw(n=8)
    calls = []
    invert = torch.linalg.inv
    monkeypatch.setattr(torch.linalg, "inv", lambda M: calls.append(1) or invert(M))
    first = model.solve(X, stop=TIGHT).value
    again = model.solve(X[:3], stop=TIGHT).value
    V = model.adjoint(first, X, stop=TIGHT)
    assert len(calls) == 1  # of W; the adjoint takes its transpose
    torch.testing.assert_close(again, first[:3], rtol=0, atol=1e-13)
    D, W = model.masks(first, X), model.weight().detach()
    torch.testing.assert_close(V, D * (model.u.detach() + V @ W), rtol=0, atol=1e-13)
    model.A.data.mul_(1.5)  # behind autograd's back
    moved = model.solve(X, stop=TIGHT).value
    assert len(calls) == 2
    exact = exact_affine(model.weight().detach(), model.injection(X).detach())
    torch.testing.assert_close(moved, exact, rtol=0, atol=1e-12)
    model.B.data.mul_(1.5)
    exact = exact_affine(model.weight().detach(), model.injection(X).detach())
    torch.testing.assert_close(model.solve(X, stop=TIGHT).value, exact, rtol=0, atol=1e-12)
    model.margin = 0.9
    exact = exact_affine(model.weight().detach(), model.injection(X).detach())
    torch.testing.assert_close(model.solve(X, stop=TIGHT).value, exact, rtol=0, atol=1e-12)
    assert model.float().solve(X.float()).converged.all()


def test_a_training_step_factors_once(monkeypatch):
    model, X = draw(n=8)
    calls = []
    invert = torch.linalg.inv
    monkeypatch.setattr(torch.linalg, "inv", lambda M: calls.append(1) or invert(M))
    model(X).square().sum().backward()
    assert len(calls) == 1
    for solution in (model.last.forward, model.last.adjoint):  # the splitting alone, with the right transpose
        assert solution.counts.retried == 0
        assert solution.steps.max() < 60


@pytest.mark.parametrize("margin", [0.0, -1.0, math.inf, math.nan])
def test_a_margin_that_is_not_positive_is_refused(margin):
    with pytest.raises(ValueError, match="margin must be a finite number > 0"):
        Monotone(2, 3, margin=margin)


def test_weights_that_are_not_finite_are_named():
    model, X = draw()
    with torch.no_grad():
        model.B[1, 2] = torch.nan
    with pytest.raises(ValueError, match=r"B must be finite\. Got nan at \[1, 2\]"):
        model.check_wellposed()
    with pytest.raises(ValueError, match="must be finite"):
        model(X)
