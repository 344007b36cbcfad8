"""Tensors a cell merely closes over: first-order eager gradients; anything more names them in an error."""

import functools

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import equipoise as eq
from contracts.gradient import DTYPE, STOP
from equipoise.differentiate.closure import closed_over

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


@pytest.fixture
def weight():
    torch.manual_seed(0)
    w = torch.randn(3, 3, dtype=DTYPE)
    return (0.5 * w / torch.linalg.matrix_norm(w, ord=2)).requires_grad_()


@pytest.fixture
def x():
    return torch.randn(4, 3, dtype=DTYPE, generator=torch.Generator().manual_seed(1)).requires_grad_()


def closing_over(weight):
    return eq.Equilibrium(
        lambda z, x: torch.tanh(z @ weight.T + x), stop=STOP, gradient=eq.Implicit(stop=STOP)
    )


def unrolled(weight, x):
    z = torch.zeros_like(x)
    for _ in range(100):
        z = torch.tanh(z @ weight.T + x)
    return z


def test_first_order_gradients_reach_a_leaf(weight, x):
    assert torch.autograd.gradcheck(lambda w, x: closing_over(w)(x), (weight, x))


def test_first_order_gradients_reach_beyond_a_tensor_that_was_computed(weight, x):
    scale = torch.tensor(0.7, dtype=DTYPE, requires_grad=True)
    got = torch.autograd.grad(closing_over(scale * weight)(x).square().sum(), (scale, weight, x))
    want = torch.autograd.grad(unrolled(scale * weight, x).square().sum(), (scale, weight, x))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_module_that_a_function_calls_is_trained(x):
    torch.manual_seed(0)
    linear = nn.Linear(3, 3).double()
    with torch.no_grad():
        linear.weight *= 0.4
    layer = eq.Equilibrium(lambda z, x: torch.tanh(linear(z) + x), stop=STOP)
    layer(x.detach()).sum().backward()
    assert linear.weight.grad.abs().sum() > 0
    assert closed_over(layer.cell, lambda t: t.requires_grad) == ["`linear`"]


def test_a_second_backward_pass_needs_a_retained_graph(weight, x):
    loss = closing_over(weight)(x).sum()
    loss.backward(retain_graph=True)
    once = weight.grad.clone()
    loss.backward()
    torch.testing.assert_close(weight.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_rows_whose_adjoint_fails_are_masked():
    b = torch.ones(2, dtype=DTYPE, requires_grad=True)
    x = torch.tensor([[0.5, 0.4], [1 - 1e-6, 0.9], [0.2, 0.3]], dtype=DTYPE)
    layer = eq.Equilibrium(
        lambda z, x: x * z + (1 - x) * b,
        gradient=eq.Implicit(eq.Picard(), eq.Stop(max_steps=40)),
        on_failure=eq.OnFailure("mask", share=0.4),
    )
    layer(x, start=torch.ones_like(x)).sum().backward()
    assert layer.last.masked == 1
    torch.testing.assert_close(b.grad, torch.full((2,), 2.0, dtype=DTYPE), rtol=1e-6, atol=0)


def test_a_second_derivative_names_the_tensor(weight, x):
    z = closing_over(weight)(x)
    with pytest.raises(RuntimeError, match=r"the cell closes over `weight`.*for a second derivative"):
        torch.autograd.grad(z.sum(), x, create_graph=True)


def test_transforms_name_the_tensor(weight, x):
    loss = lambda w: closing_over(w)(x.detach()).sum()
    tangent = torch.ones_like(weight)
    for transform in (
        lambda: torch.func.grad(loss)(weight.detach()),
        lambda: torch.func.jvp(loss, (weight.detach(),), (tangent,)),
        lambda: torch.func.vmap(loss)(torch.stack([weight.detach()] * 2)),
        lambda: torch.func.vmap(closing_over(weight))(torch.stack([x.detach()] * 2)),  # eager, above it
        lambda: torch.func.grad(lambda x: closing_over(weight)(x).sum())(x.detach()),
    ):
        with pytest.raises(RuntimeError, match=r"the cell closes over `(w|weight)`.*torch\.func"):
            transform()


def test_forward_mode_names_the_tensor(weight, x):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(weight.detach(), torch.ones_like(weight))
        with pytest.raises(RuntimeError, match=r"the cell closes over `weight`.*forward mode"):
            closing_over(dual)(x.detach())


def test_a_detached_tensor_may_be_closed_over_under_transforms(weight, x):
    layer = closing_over(weight.detach())
    got = torch.func.grad(lambda x: layer(x).square().sum())(x.detach())
    want = torch.autograd.grad(unrolled(weight.detach(), x).square().sum(), x)[0]
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_phantom_gradients_reach_what_is_closed_over(weight, x):
    layer = closing_over(weight)
    layer.gradient = eq.Phantom(100)
    got = torch.autograd.grad(layer(x).square().sum(), weight)[0]
    want = torch.autograd.grad(unrolled(weight, x).square().sum(), weight)[0]
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_every_hiding_place_is_named(weight):
    class Attribute(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Identity()
            self.inner.hidden = weight

        def forward(self, z, x):
            return z

    class Callable:
        def __init__(self):
            self.hidden = weight

        def __call__(self, z, x):
            return self.hidden

        def method(self, z, x):
            return self.hidden

    def function(z, x, hidden):
        return z @ hidden

    which = lambda t: t is weight
    assert closed_over(Attribute(), which) == ["`inner.hidden`"]
    assert closed_over(Callable(), which) == ["`hidden`"]
    assert closed_over(Callable().method, which) == ["`hidden`"]
    assert closed_over(functools.partial(function, hidden=weight), which) == ["`hidden`"]
    assert closed_over(lambda z, x: z @ weight, which) == ["`weight`"]
    assert closed_over(nn.Linear(3, 3).forward, lambda t: t.requires_grad) == ["`Linear`"]
    assert closed_over(nn.Linear(3, 3), lambda t: True) == []
    assert closed_over(torch.tanh, which) == []


def test_a_variable_that_has_no_value_yet_holds_no_tensor(weight):
    cell = lambda z, x: (z @ weight, later)
    assert closed_over(cell, torch.is_tensor) == ["`weight`"]
    later = weight
    assert sorted(closed_over(cell, torch.is_tensor)) == ["`later`", "`weight`"]
