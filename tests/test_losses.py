import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.losses import LOSSES, HalfSquare, Logistic, SmoothedHinge, Square, as_loss

EVERY = [Square(), HalfSquare(), Logistic(), Logistic(tau=0.3), SmoothedHinge(), SmoothedHinge(power=3)]


def labels(loss, shape, generator):
    draw = torch.randn(shape, dtype=torch.float64, generator=generator)
    return {"logistic": (draw > 0).double(), "smoothed_hinge": draw.sign()}.get(loss.name, draw)


@pytest.mark.parametrize("loss", EVERY, ids=repr)
@pytest.mark.parametrize("shape", [(7,), (7, 3), (0,), (0, 2)])
def test_derivatives_are_those_of_autograd(loss, shape):
    generator = torch.Generator().manual_seed(0)
    q = (2 * torch.randn(shape, dtype=torch.float64, generator=generator)).requires_grad_()
    y = labels(loss, shape, generator)
    value = loss(q, y)
    assert value.shape == ()
    (first,) = torch.autograd.grad(value, q, create_graph=True)
    torch.testing.assert_close(loss.gradient(q, y), first, rtol=1e-12, atol=1e-12)
    second = loss.second_derivative(q, y)
    assert second.shape == q.shape
    if first.requires_grad and q.numel():
        (by_autograd,) = torch.autograd.grad(first.sum(), q)
        torch.testing.assert_close(second, by_autograd, rtol=1e-12, atol=1e-12)


def test_values_by_hand():
    q, y = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.0])
    assert Square()(q, y).item() == pytest.approx(2.0)
    assert HalfSquare()(q, y).item() == pytest.approx(1.0)
    p = 1 / (1 + torch.exp(-q))
    want = -(y * p.log() + (1 - y) * (1 - p).log()).sum() + 0.5 * (q**2).sum()
    assert Logistic(tau=0.5)(q, y).item() == pytest.approx(want.item(), rel=1e-6)
    signs = torch.tensor([1.0, 1.0])
    assert SmoothedHinge(power=3)(q, signs).item() == pytest.approx(8.0)  # (1 + 1)³ and 0


def test_the_logistic_loss_is_stable_far_out():
    q = torch.tensor([800.0, -800.0, 800.0, -800.0], dtype=torch.float64)
    y = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    loss = Logistic()
    assert loss.value(q, y).tolist() == [0.0, 0.0, 800.0, 800.0]
    assert loss.gradient(q, y).tolist() == [0.0, 0.0, 1.0, -1.0]
    assert torch.isfinite(loss.second_derivative(q, y)).all()
    small = loss.second_derivative(torch.full((1,), 40.0, dtype=torch.float64), y[:1])
    assert small.item() == pytest.approx(math.exp(-40), rel=1e-12)  # p(1 − p) without cancellation


def test_the_hinge_is_flat_beyond_the_margin_and_at_its_kink():
    q = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)
    y = torch.ones(3, dtype=torch.float64)
    assert SmoothedHinge().gradient(q, y).tolist() == [0.0, 0.0, -2.0]
    assert SmoothedHinge().second_derivative(q, y).tolist() == [0.0, 0.0, 2.0]
    assert SmoothedHinge(power=4).second_derivative(q, y).tolist() == [0.0, 0.0, 12.0]


# -- PL -------------------------------------------------------------------------------------------------


def minimise(loss, Phi, y):
    """min L₀ by Newton's method, to rounding."""
    M = torch.zeros(Phi.shape[1], dtype=Phi.dtype)
    for _ in range(100):
        q = Phi @ M
        H = Phi.T @ (loss.second_derivative(q, y)[:, None] * Phi)
        M = M - torch.linalg.pinv(H, hermitian=True) @ (Phi.T @ loss.gradient(q, y))
    return loss(Phi @ M, y)


@given(seed=st.integers(0, 2**31), n=st.integers(1, 6), m=st.integers(1, 6), tau=st.floats(1e-2, 1.0))
@settings(max_examples=30)
def test_pl_inequality_holds_with_the_constant(seed, n, m, tau):
    generator = torch.Generator().manual_seed(seed)
    Phi = torch.randn(n, m, dtype=torch.float64, generator=generator)
    M = 3 * torch.randn(m, dtype=torch.float64, generator=generator)
    for loss in (Square(), HalfSquare(), Logistic(tau=tau)):
        y = labels(loss, (n,), generator)
        kappa = loss.pl_constant(Phi)
        gradient = Phi.T @ loss.gradient(Phi @ M, y)
        gap = loss(Phi @ M, y) - minimise(loss, Phi, y)
        assert 0.5 * gradient.square().sum() >= kappa * gap * (1 - 1e-9) - 1e-9


def test_pl_constants_by_hand():
    Phi = torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.5, -0.5]], dtype=torch.float64)  # N < m: σ₂ = √½, ‖φ‖₁ ≤ 3
    assert Square().pl_constant(Phi) == pytest.approx(2 * 0.5)
    assert HalfSquare().pl_constant(Phi) == pytest.approx(0.5)
    assert Logistic(tau=0.2).pl_constant(Phi) == pytest.approx(2 * 0.2 * 0.5)
    assert Logistic().pl_constant(Phi) == 0
    rho = math.exp(-6) / (1 + math.exp(-6)) ** 2
    assert Logistic(tau=0.2).pl_constant(Phi, radius=2.0) == pytest.approx((0.4 + rho) * 0.5)
    with pytest.raises(ValueError, match="no PL constant is known for the smoothed_hinge loss"):
        SmoothedHinge().pl_constant(Phi)
    with pytest.raises(ValueError, match="radius must be > 0"):
        Square().pl_constant(Phi, radius=0.0)
    with pytest.raises(ValueError, match=r"Phi must be \(N, m\)"):
        Square().pl_constant(Phi[0])


# -- words ----------------------------------------------------------------------------------------------


def test_targets_that_do_not_fit_are_refused():
    q = torch.zeros(3, 1)
    with pytest.raises(ValueError, match=r"y must be \(3, 1\) like ŷ\. Got shape \(3,\) .* y\[:, None\]"):
        Square()(q, torch.zeros(3))
    with pytest.raises(ValueError, match=r"y must be \(3, 1\) like ŷ\. Got shape \(2, 1\)"):
        Square().gradient(q, torch.zeros(2, 1))
    with pytest.raises(ValueError, match=r"y must be torch\.float32 like ŷ\. Got torch\.int64"):
        Logistic().second_derivative(q, torch.zeros(3, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"y must be \(3, 1\) like ŷ\. Got list"):
        Square()(q, [0, 0, 0])
    q = torch.zeros(3)
    with pytest.raises(ValueError, match=r"y must be in \[0, 1\] for the logistic loss\. Got -1 in row 1"):
        Logistic()(q, torch.tensor([1.0, -1.0, 1.0]))
    with pytest.raises(ValueError, match=r"y must be −1 or 1 for the smoothed_hinge loss\. Got 0 in row 2"):
        SmoothedHinge()(q, torch.tensor([1.0, -1.0, 0.0]))
    with pytest.raises(ValueError, match=r"y must be finite for the square loss\. Got nan in row 0"):
        Square()(q, torch.tensor([math.nan, 0.0, 0.0]))


def test_losses_by_name():
    assert {name: type(as_loss(name)) for name in LOSSES} == LOSSES
    assert as_loss("logistic", tau=0.1) == Logistic(tau=0.1)
    assert as_loss(Square()) == Square()
    with pytest.raises(ValueError, match=r"one of 'square', 'half_square', 'logistic', 'smoothed_hinge'"):
        as_loss("mse")
    with pytest.raises(ValueError, match=r"the logistic loss takes tau\. Got 'tua'"):
        as_loss("logistic", tua=0.1)
    with pytest.raises(ValueError, match=r"the square loss takes no options\. Got 'tau'"):
        as_loss("square", tau=0.1)
    with pytest.raises(ValueError, match=r"has its options already\. Got tau"):
        as_loss(Logistic(), tau=0.1)
    with pytest.raises(ValueError, match="tau must be a finite number ≥ 0"):
        Logistic(tau=-1.0)
    for power in (1, 2.5, True):
        with pytest.raises(ValueError, match="power must be an integer ≥ 2"):
            SmoothedHinge(power=power)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Logistic().tau = 1.0


def test_losses_under_function_transforms():
    q, y = torch.randn(4, 3, dtype=torch.float64), torch.ones(4, 3, dtype=torch.float64)
    each = torch.func.vmap(torch.func.grad(Logistic(tau=0.1)))(q, y)
    torch.testing.assert_close(each, Logistic(tau=0.1).gradient(q, y))
