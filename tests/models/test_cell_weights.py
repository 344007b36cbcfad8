"""Cells whose weights are computed, shared, or those of a layer inside."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import equipoise as eq

DTYPE = torch.float64
STOP = eq.Stop(rtol=1e-12)


# -- parametrised weights -------------------------------------------------------------------------------


class Counting(nn.Module):
    """W ↦ q W/‖W‖, counted."""

    def __init__(self, q: float = 0.6) -> None:
        super().__init__()
        self.q, self.calls = q, 0

    def forward(self, w):
        self.calls += 1
        return self.q * w / torch.linalg.matrix_norm(w, ord=2)


class Parametrised(nn.Module):
    def __init__(self, m: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w, self.u = nn.Linear(m, m), nn.Linear(m, m, bias=False)
        parametrize.register_parametrization(self.w, "weight", Counting())
        self.to(DTYPE)

    def forward(self, z, x):
        return torch.tanh(self.w(z) + self.u(x))


def inputs(n=3, m=4):
    return torch.randn(n, m, dtype=DTYPE, generator=torch.Generator().manual_seed(2))


def reference(cell, x, steps=120):
    z = torch.zeros_like(x)
    for _ in range(steps):
        z = cell(z, x)
    return z


@pytest.mark.parametrize(
    ("gradient", "precision", "count"),
    [
        (eq.Implicit(), "native", 2),  # the solve, and the evaluation that is differentiated
        (eq.Implicit(), "mixed", 3),  # the solve in each precision
        (eq.Phantom(20), "native", 2),
        (eq.Unrolled(60), "native", 1),
    ],
    ids=str,
)
def test_a_parametrised_weight_is_computed_once_a_solve_and_its_gradient_is_exact(gradient, precision, count):
    cell = Parametrised()
    x = inputs()
    layer = eq.Equilibrium(cell, stop=STOP, gradient=gradient, precision=precision)
    counter = cell.w.parametrizations.weight[0]
    counter.calls = 0
    z = layer(x)
    assert counter.calls == count
    assert layer.last.forward.counts.evaluations > count or isinstance(gradient, eq.Unrolled)
    parameters = list(cell.parameters())
    got = torch.autograd.grad(z.square().sum(), parameters)
    assert counter.calls == count
    if not isinstance(gradient, eq.Phantom):
        want = torch.autograd.grad(reference(cell, x).square().sum(), parameters)
        for g, h in zip(got, want, strict=True):
            torch.testing.assert_close(g, h, rtol=1e-7, atol=1e-9)
    assert "forward" not in vars(cell.w.parametrizations.weight)


def test_gradients_pass_gradcheck_through_a_parametrisation():
    cell = Parametrised()
    layer = eq.Equilibrium(cell, stop=eq.Stop(rtol=1e-14, atol=1e-16))
    original = cell.w.parametrizations.weight.original.detach().clone().requires_grad_()

    def f(w):
        return torch.func.functional_call(layer, {"cell.w.parametrizations.weight.original": w}, (inputs(),))

    assert torch.autograd.gradcheck(f, original, fast_mode=True)
    assert torch.autograd.gradgradcheck(f, original, fast_mode=True, atol=1e-5)


def test_a_cache_opened_around_the_layer_does_not_cut_the_gradient():
    cell = Parametrised()
    layer = eq.Equilibrium(cell, stop=STOP)
    want = torch.autograd.grad(layer(inputs()).sum(), list(cell.parameters()))
    with parametrize.cached():
        got = torch.autograd.grad(layer(inputs()).sum(), list(cell.parameters()))
        assert parametrize._cache_enabled == 1
    for g, h in zip(got, want, strict=True):
        torch.testing.assert_close(g, h)


def test_copies_of_a_parametrised_module_keep_their_own_weights():
    first = Parametrised().w

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = first, copy.deepcopy(first)
            with torch.no_grad():
                self.b.parametrizations.weight.original.copy_(-self.a.parametrizations.weight.original)

        def forward(self, z, x):
            return torch.tanh(self.a(z)) + 0.5 * torch.tanh(self.b(z)) + x

    cell = Two()
    torch.testing.assert_close(eq.Equilibrium(cell, stop=STOP)(inputs()), reference(cell, inputs()))


def test_orthogonal_weights():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.w = parametrizations.orthogonal(nn.Linear(4, 4, bias=False).double())

        def forward(self, z, x):
            return 0.7 * torch.sin(self.w(z)) + x

    cell = Cell()
    layer = eq.Equilibrium(cell, stop=STOP)
    got = torch.autograd.grad(layer(inputs()).square().sum(), list(cell.parameters()))[0]
    want = torch.autograd.grad(reference(cell, inputs()).square().sum(), list(cell.parameters()))[0]
    torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9)


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = parametrizations.spectral_norm(nn.Linear(4, 4).double())

    def forward(self, z, x):
        return 0.7 * torch.tanh(self.w(z)) + x


def test_spectral_norm_takes_one_power_iteration_a_call_and_stands_still_in_the_solve():
    cell = Spectral()
    layer = eq.Equilibrium(cell, stop=STOP)
    with torch.no_grad():
        cell.w.parametrizations.weight.original.add_(torch.randn(4, 4, dtype=DTYPE))
    twin = copy.deepcopy(cell)
    twin.w.weight  # noqa: B018  one evaluation in training is one power iteration
    z = layer(inputs())
    power = cell.w.parametrizations.weight[0]
    torch.testing.assert_close(power._u, twin.w.parametrizations.weight[0]._u, rtol=1e-12, atol=1e-14)
    held = power._u.clone()
    first = torch.autograd.grad(z.square().sum(), list(cell.parameters()), create_graph=True)
    sum(g.square().sum() for g in first).backward()
    assert torch.equal(power._u, held)
    assert power.training

    twin.eval()  # where the power iteration rests, as it did in the solve
    x = inputs()
    for g, h in zip(
        first, torch.autograd.grad(reference(twin, x).square().sum(), list(twin.parameters())), strict=True
    ):
        torch.testing.assert_close(g, h, rtol=1e-8, atol=1e-10)
    layer.solve(x)  # looking does not move it
    layer.eval()
    layer(x)
    assert torch.equal(power._u, held)


def test_many_training_steps_keep_the_norm_near_one():
    torch.manual_seed(0)
    cell = Spectral()
    layer = eq.Equilibrium(cell)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.3)
    for _ in range(40):
        optimiser.zero_grad()
        (-layer(inputs()).square().sum()).backward()  # pushes the weights up
        optimiser.step()
    layer.eval()
    assert float(torch.linalg.matrix_norm(cell.w.weight.detach(), ord=2)) == pytest.approx(1, rel=0.1)


def test_the_older_spectral_norm_is_refused():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.utils.spectral_norm(nn.Linear(3, 3))

        def forward(self, z, x):
            return 0.5 * torch.tanh(self.w(z)) + x

    with pytest.raises(RuntimeError, match=r"changes `w\.weight_u`.*parametrizations\.spectral_norm"):
        eq.Equilibrium(Cell())(torch.ones(2, 3))


# -- layers inside of cells -----------------------------------------------------------------------------


class Inner(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.v = nn.Parameter(0.2 * torch.randn(4, 4, dtype=DTYPE))
        self.dropout = eq.SharedDropout(dropout)

    def forward(self, y, z):
        return torch.tanh(self.dropout(y @ self.v.T) + z)


class Outer(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(0.15 * torch.randn(4, 4, dtype=DTYPE))
        stop = eq.Stop(rtol=1e-14, atol=1e-16)
        self.inner = eq.Equilibrium(Inner(dropout), stop=stop, gradient=eq.Implicit(stop=stop))

    def forward(self, z, x):
        return torch.tanh(self.inner(z) @ self.w.T + x)


def nested_reference(cell, x, mask=1.0):
    z = torch.zeros_like(x)
    for _ in range(60):
        y = torch.zeros_like(z)
        for _ in range(60):
            y = torch.tanh((y @ cell.inner.cell.v.T) * mask + z)
        z = torch.tanh(y @ cell.w.T + x)
    return z


def test_a_layer_whose_cell_holds_a_layer_is_differentiated_to_second_order():
    cell = Outer()
    layer = eq.Equilibrium(cell, stop=eq.Stop(rtol=1e-12))
    x = inputs(2).requires_grad_()
    tensors = (x, *cell.parameters())
    results = []
    for z in (layer(x), nested_reference(cell, x)):
        first = torch.autograd.grad(z.square().sum(), tensors, create_graph=True)
        results.append((*first, *torch.autograd.grad(sum(g.square().sum() for g in first), tensors)))
    for g, h in zip(*results, strict=True):
        torch.testing.assert_close(g, h, rtol=1e-8, atol=1e-10)


def test_masks_inside_an_inner_layer_are_held_through_the_outer_solve():
    cell = Outer(dropout=0.5)
    layer = eq.Equilibrium(cell, stop=eq.Stop(rtol=1e-12))
    x = inputs()
    torch.manual_seed(5)
    z = layer(x)
    mask = cell.inner.cell.dropout.mask
    assert mask.shape == (3, 4)
    torch.testing.assert_close(z, nested_reference(cell, x, mask), rtol=1e-10, atol=1e-12)
    got = torch.autograd.grad(z.sum(), list(cell.parameters()))
    want = torch.autograd.grad(nested_reference(cell, x, mask).sum(), list(cell.parameters()))
    for g, h in zip(got, want, strict=True):
        torch.testing.assert_close(g, h, rtol=1e-8, atol=1e-10)


def test_an_inner_layer_that_fails_says_so_itself():
    class Bad(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = eq.Equilibrium(lambda y, z: y + 1, state=(2,))

        def forward(self, z, x):
            return 0.1 * self.inner(z).sum(dim=1, keepdim=True) + x

    with pytest.raises(eq.EquilibriumError) as caught:
        eq.Equilibrium(Bad())(torch.ones(3, 4))
    assert caught.value.solution.value.shape == (3, 2)
