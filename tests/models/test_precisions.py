"""Affine families at every size, in every dtype, under autocast: equilibria and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import equipoise as eq

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
FAMILIES = {
    "gaussian": lambda g: eq.GaussianReLU(4, 10, dtype=torch.float64, generator=g),
    "scaled": lambda g: eq.ScaledReLU(4, 10, dtype=torch.float64, generator=g),
    "monotone": lambda g: eq.Monotone(4, 10, dtype=torch.float64, generator=g),
    "linear": lambda g: eq.LinearEquilibrium(4, 2, dtype=torch.float64, generator=g),
}


def family(name, dtype, seed=0):
    return FAMILIES[name](torch.Generator().manual_seed(seed)).to(dtype)


def relative(got, want):
    return float((got - want.detach()).norm() / want.detach().norm())


# -- sizes -------------------------------------------------------------------------------------------------


def check(name, dtype, size, cotangent, seed):
    """Z and its gradients are homogeneous in X and in the cotangent: those of size 1 tell the others."""
    model, exact = family(name, dtype, seed), family(name, dtype, seed).double()
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    x = (size * X).to(dtype).requires_grad_()
    Z = model.equilibrium(x)
    C = torch.randn(Z.shape, dtype=torch.float64, generator=generator)
    got = torch.autograd.grad(Z, [x, *hidden(model)], (cotangent * C).to(dtype))
    X = (x.detach().double() / size).requires_grad_()
    Z1 = exact.equilibrium(X, stop=eq.Stop(rtol=1e-13, max_steps=5000))
    want = torch.autograd.grad(Z1, [X, *hidden(exact)], (cotangent * C).to(dtype).double() / cotangent)
    asked = 100 * eq.Stop().resolve(dtype).rtol
    assert relative(Z.detach().double() / size, Z1) <= asked
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert relative(a.double() / cotangent / (size if i else 1.0), b) <= asked


def hidden(model):
    return [getattr(model, name) for name in model.hidden_names if name != "b"]


def powers(dtype):
    """Sizes of X and of the cotangent whose product, a gradient, is in range too."""
    info, log = torch.finfo(dtype), lambda v: torch.tensor(v, dtype=torch.float64).log10().item()
    low, high = log(info.tiny) + 3, log(info.max) - 3
    within = st.floats(low, high)
    return (
        st.tuples(within, within)
        .filter(lambda p: low <= sum(p) <= high)
        .map(lambda p: (10 ** p[0], 10 ** p[1]))
    )


CASES = st.sampled_from(DTYPES).flatmap(
    lambda dtype: st.tuples(
        st.sampled_from(sorted(FAMILIES)), st.just(dtype), powers(dtype), st.integers(0, 2**31)
    )
)


@given(CASES)
@settings(max_examples=40)
def test_equilibria_and_gradients_of_every_size(case):
    name, dtype, (size, cotangent), seed = case
    check(name, dtype, size, cotangent, seed)


@pytest.mark.slow
@given(CASES)
@settings(max_examples=3000)
def test_equilibria_and_gradients_of_every_size_at_length(case):
    name, dtype, (size, cotangent), seed = case
    check(name, dtype, size, cotangent, seed)


@pytest.mark.parametrize("name", ["gaussian", "scaled", "monotone"])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 1e-12), (torch.float32, 1e-9)], ids=str)
def test_small_inputs_are_solved_as_large_ones_are_from_any_start(name, dtype, size):
    model, exact = family(name, dtype), family(name, dtype).double()
    x = (size * torch.randn(5, 4, generator=torch.Generator().manual_seed(1))).to(dtype)
    want = exact.equilibrium(x.double() / size, stop=eq.Stop(rtol=1e-13)).detach()
    for start in (None, torch.ones(5, 10, dtype=dtype)):
        assert relative(model.equilibrium(x, start=start).detach().double() / size, want) <= 1e-2
    large, small = (eq.tangent_kernel(model, X).total for X in ((x.double() / size).to(dtype), x))
    scaled = small.double() / size**2  # every block of a kernel without bias is quadratic in X
    torch.testing.assert_close(scaled, large.double(), rtol=1e-3, atol=1e-3 * float(large.abs().max()))


@pytest.mark.parametrize("cotangent", [1e-23, 1e-30, 1e20])
def test_gradients_of_small_and_large_cotangents_in_float32(cotangent):
    for name in FAMILIES:
        check(name, torch.float32, 1.0, cotangent, seed=3)


# -- autocast ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_family_computes_in_the_dtype_of_its_parameters_under_autocast(name, dtype):
    model = family(name, dtype)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)).to(dtype)

    def losses():
        model.zero_grad()
        y = model(x)
        model.adjoint(model.equilibrium(x).detach(), x)
        return y, (y + 1).square().sum()

    y, loss = losses()
    loss.backward()
    before = [p.grad.clone() for p in model.parameters()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lowered, loss = losses()
    loss.backward()
    assert torch.equal(y, lowered)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model.masks(model.solve(x).value, x), model.masks(model.solve(x).value, x))
        assert eq.verify(model.affine_map(x), model.solve(x).value).stop.rtol == eq.Stop().resolve(dtype).rtol


def test_autocast_lowers_neither_a_float64_layer_nor_its_tolerance():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            w = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
            self.W = nn.Parameter(0.7 * w / torch.linalg.matrix_norm(w, ord=2))

        def forward(self, z, x):
            return torch.tanh(z @ self.W.T + x)

    layer = eq.Equilibrium(Cell())
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    z = layer(x)
    z.sum().backward()
    gradient, layer.cell.W.grad = layer.cell.W.grad.clone(), None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lowered = layer(x)
        lowered.sum().backward()
    assert layer.last.forward.stop.rtol == 1e-8
    assert layer.last.adjoint.stop.rtol == 1e-8
    torch.testing.assert_close(lowered, z, rtol=1e-7, atol=0)
    torch.testing.assert_close(layer.cell.W.grad, gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_formulas_of_a_family_are_not_lowered_by_autocast(name, dtype):
    model = family(name, dtype)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    with torch.no_grad():
        Z = model.equilibrium(x)
        V, R = model.adjoint(Z, x), model.readout(Z)
        formulas = lambda: (model.pullback(V, R, Z, x), model.gram(V, Z, x, V, Z, x))
        plain = formulas()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            lowered = formulas()
    for before, after in zip(plain, lowered, strict=True):
        assert all(torch.equal(after[key], before[key]) for key in before)
