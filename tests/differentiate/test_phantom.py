import pytest
import torch

import equipoise as eq
from contracts.gradient import DTYPE, STOP, GradientContract, make_case


class TestPhantom(GradientContract):
    gradient = eq.Phantom(steps=2)
    exact = False


class TestLongPhantom(GradientContract):
    gradient = eq.Phantom(steps=60)  # long enough to be exact to rounding, at every order


def test_one_step_is_the_jacobian_free_gradient():
    # z = tanh(W z + b + U x), s = 1 − z²: with v = g ∘ s, b̄ = Σv, W̄ = Σ v zᵀ, Ū = Σ v xᵀ, x̄ = Uᵀ v
    case = make_case("tanh")
    tensors = case.tensors
    x, U = tensors[0], tensors[3]
    z = case.function(case.layer(eq.Phantom(steps=1)))(*tensors)
    g = torch.linspace(-1, 2, z.numel(), dtype=DTYPE).reshape(z.shape)
    got = torch.autograd.grad((g * z).sum(), tensors)
    z = z.detach()
    v = g * (1 - z**2)
    with torch.no_grad():
        for a, want in zip(got, (v @ U, v.T @ z, v.sum(dim=0), v.T @ x), strict=True):
            torch.testing.assert_close(a, want, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("damping", [1.0, 0.5])
def test_it_is_the_truncated_series(damping):
    # θ̄ = β Σ_{k<K} (∂f/∂θ)ᵀ ((1 − β) I + β J)ᵀᵏ g, for a linear cell with J = W and b̄ = β Σ_k (…)ᵏ g
    case = make_case("linear")
    tensors = case.tensors
    z = case.function(case.layer(eq.Phantom(steps=4, damping=damping)))(*tensors)
    g = torch.linspace(-1, 2, z.numel(), dtype=DTYPE).reshape(z.shape)
    got = torch.autograd.grad((g * z).sum(), tensors[2])[0]
    W = tensors[1].detach()
    step = (1 - damping) * torch.eye(3, dtype=DTYPE) + damping * W
    want = damping * sum(g @ torch.linalg.matrix_power(step, k) for k in range(4)).sum(dim=0)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-13)


def test_the_error_falls_like_the_contraction_to_the_power_of_the_steps():
    # For z = q z + x the exact gradient is 1/(1 − q), K steps give (1 − q^K)/(1 − q): the error is q^K.
    q = 0.7
    x = torch.ones(3, 2, dtype=DTYPE, requires_grad=True)
    for steps in (1, 2, 5, 10, 20):
        layer = eq.Equilibrium(lambda z, x: q * z + x, gradient=eq.Phantom(steps), stop=STOP)
        error = 1 - torch.autograd.grad(layer(x).sum(), x)[0] * (1 - q)
        torch.testing.assert_close(error, torch.full_like(error, q**steps), rtol=1e-9, atol=1e-13)


def test_the_error_on_a_nonlinear_cell_is_bounded_by_the_same_power():
    case = make_case("tanh")
    exact = TestLongPhantom().gradients_of(case, case.unrolled(150))
    for steps in (1, 3, 9, 27):
        got = TestLongPhantom().gradients_of(case, case.function(case.layer(eq.Phantom(steps))))
        # ‖Σ_{k≥K} Jᵏ‖ ≤ q^K/(1 − q) with q = ‖W‖ = 0.6; the sums of two rows and ‖z‖ are in the constant
        for a, b in zip(got, exact, strict=True):
            assert (a - b).norm() <= 0.6**steps / 0.4 * 20
            assert (a - b).norm() > 0 or steps == 27


def test_the_value_is_exactly_the_equilibrium():
    case = make_case("tanh")
    layer = case.layer(eq.Phantom(steps=3))
    assert torch.equal(layer(case.x), layer.last.forward.value)


def test_masked_rows_have_no_gradient():
    x = torch.tensor([[0.5], [torch.inf], [0.3]], dtype=DTYPE, requires_grad=True)
    layer = eq.Equilibrium(
        lambda z, x: 0.5 * z + x, gradient=eq.Phantom(60), on_failure=eq.OnFailure("mask", share=0.5)
    )
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[2.0], [0.0], [2.0]], dtype=DTYPE))


@pytest.mark.parametrize(("options", "message"), [({"steps": 0}, "steps"), ({"damping": 0.0}, "damping")])
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=f"{message} must"):
        eq.Phantom(**options)
