"""The suite every gradient must pass. A new one joins with a subclass that names itself:

class TestImplicit(GradientContract):
    gradient = eq.Implicit()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.differentiate import Gradient

DTYPE = torch.float64
STOP = eq.Stop(rtol=1e-14, atol=1e-16, max_steps=2000)


def shrink(cell: nn.Module, norm: float = 0.6) -> nn.Module:
    """The cell in float64 with each matrix that acts on the state, named `w…`, of that norm."""
    cell.to(DTYPE)
    with torch.no_grad():
        for name, p in cell.named_parameters():
            if name.startswith("w") and p.ndim > 1:
                flat = p.flatten(1)
                p *= norm / torch.linalg.matrix_norm(flat, ord=2) / (p[0, 0].numel() ** 0.5)
    return cell


class TanhCell(nn.Module):
    def __init__(self, d: int = 3, m: int = 3) -> None:
        super().__init__()
        self.w, self.u = nn.Linear(m, m), nn.Linear(d, m, bias=False)

    def forward(self, z, x):
        return torch.tanh(self.w(z) + self.u(x))


class ReLUCell(TanhCell):
    def forward(self, z, x):
        return torch.relu(self.w(z) + self.u(x))


class LinearCell(TanhCell):
    def forward(self, z, x):
        return self.w(z) + self.u(x)


class PairCell(nn.Module):
    """Two states of different shapes that act on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, z, x):
        a, b = z  # (N, 4), (N, 2, 2)
        return torch.tanh(self.w(a) + x + 0.1 * b.flatten(1)), self.scale * torch.sin(b + a.reshape(-1, 2, 2))


class ConvCell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Conv2d(2, 2, 3, padding=1)
        self.norm = nn.GroupNorm(1, 2)

    def forward(self, z, x):
        return torch.tanh(0.3 * self.norm(self.w(z)) + x)


class SharedCell(nn.Module):
    """With a batched mask of bools, a plain number, and a tensor that all samples share."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(3, 3)

    def forward(self, z, x, keep, power, mix):
        return torch.tanh(self.w(z) @ mix + x**power) * keep


@dataclass
class Case:
    cell: nn.Module
    x: torch.Tensor
    more: tuple[Any, ...] = ()
    shared: tuple[Any, ...] = ()
    state: Any = None
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = [name for name, _ in self.cell.named_parameters()]

    def layer(self, gradient: Gradient | None = None, **options: Any) -> eq.Equilibrium:
        options = {"state": self.state, "stop": STOP, **options}
        return eq.Equilibrium(self.cell, gradient=gradient, **options)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Everything with a derivative: x, the parameters, the shared tensors."""
        shared = [t for t in self.shared if isinstance(t, torch.Tensor)]
        return tuple(t.detach().clone().requires_grad_() for t in (self.x, *self.cell.parameters(), *shared))

    def function(self, layer: eq.Equilibrium) -> Callable[..., torch.Tensor]:
        """(x, *parameters, *shared) ↦ the equilibrium as one tensor, (N, D)."""

        def f(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
            count = len(self.names)
            named = {f"cell.{n}": t for n, t in zip(self.names, rest[:count], strict=True)}
            tensors = iter(rest[count:])
            shared = tuple(next(tensors) if isinstance(t, torch.Tensor) else t for t in self.shared)
            out = torch.func.functional_call(layer, named, (x, *self.more), {"shared": shared})
            return flat(out)

        return f

    def unrolled(self, steps: int) -> Callable[..., torch.Tensor]:
        """The same by plain iteration from zero, recorded by autograd: an independent reference."""

        def f(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
            count = len(self.names)
            named = dict(zip(self.names, rest[:count], strict=True))
            shapes = self.state or tuple(x.shape[1:])
            if isinstance(shapes, list):
                z: Any = tuple(torch.zeros(len(x), *s, dtype=DTYPE) for s in shapes)
            else:
                z = torch.zeros(len(x), *shapes, dtype=DTYPE)
            for _ in range(steps):
                z = torch.func.functional_call(self.cell, named, (z, x, *self.more, *rest[count:]))
            return flat(z)

        return f


def flat(z: Any) -> torch.Tensor:
    return torch.cat([p.flatten(1) for p in z], dim=1) if isinstance(z, tuple) else z.flatten(1)


def make_case(name: str) -> Case:
    generator = torch.Generator().manual_seed(11)
    torch.manual_seed(7)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=DTYPE, generator=generator)

    if name == "tanh":
        return Case(shrink(TanhCell()), randn(2, 3))
    if name == "wider state":
        return Case(shrink(TanhCell(2, 4)), randn(3, 2), state=(4,))
    if name == "relu":
        return Case(shrink(ReLUCell()), randn(3, 3))
    if name == "linear":
        return Case(shrink(LinearCell()), randn(2, 3))
    if name == "tuple":
        return Case(shrink(PairCell()), randn(2, 4), state=[(4,), (2, 2)])
    if name == "conv":
        return Case(shrink(ConvCell()), randn(2, 2, 3, 2))
    if name == "shared":
        keep = torch.tensor([[True, True, False], [True, False, True]])
        return Case(shrink(SharedCell()), randn(2, 3), (keep, 2), (0.5 * torch.eye(3) + 0.1 * randn(3, 3),))
    raise ValueError(name)


CASES = ["tanh", "wider state", "relu", "linear", "tuple", "conv", "shared"]
each_case = pytest.mark.parametrize("name", CASES)


class GradientContract:
    gradient: Gradient
    exact = True  # the gradient of the equilibrium, to every order
    reach = 1e-10  # how near a long unroll it comes, relative
    thorough: tuple[str, ...] = ()  # cases checked in every coordinate, the others along random directions

    def layer(self, case: Case, **options: Any) -> eq.Equilibrium:
        return case.layer(self.gradient, **options)

    def gradients(self, case: Case) -> tuple[torch.Tensor, ...]:
        """Of a fixed functional of the equilibrium, in everything."""
        return self.gradients_of(case, case.function(self.layer(case)))

    def gradients_of(self, case: Case, f: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        tensors = case.tensors
        z = f(*tensors)
        weights = torch.linspace(-1, 2, z.numel(), dtype=DTYPE).reshape(z.shape)
        return torch.autograd.grad((z * weights).sum() + z.square().sum(), tensors)

    # -- exactness ------------------------------------------------------------------------------------

    @each_case
    def test_first_derivatives_pass_gradcheck(self, name):
        self.need_exact()
        case = make_case(name)
        f = case.function(self.layer(case))
        fast = name not in self.thorough
        assert torch.autograd.gradcheck(f, case.tensors, atol=1e-7, rtol=1e-6, fast_mode=fast)

    @pytest.mark.parametrize("name", ["tanh", "relu", "tuple", "conv", "shared"])
    def test_second_derivatives_pass_gradgradcheck(self, name):
        self.need_exact()
        case = make_case(name)
        f = case.function(self.layer(case))
        fast = name not in self.thorough
        assert torch.autograd.gradgradcheck(f, case.tensors, atol=1e-6, rtol=1e-5, fast_mode=fast)

    @each_case
    def test_gradients_equal_those_of_a_long_unroll(self, name):
        self.need_exact()
        case = make_case(name)
        for got, want in zip(self.gradients(case), self.gradients_of(case, case.unrolled(150)), strict=True):
            assert relative(got, want) < self.reach

    def test_linear_cell_has_the_gradient_of_the_closed_form(self):
        # z = (I − W)⁻¹(Ux + b), so with v = (I − W)⁻ᵀ g: b̄ = Σv, W̄ = Σ v zᵀ, Ū = Σ v xᵀ, x̄ = Uᵀ v
        self.need_exact()
        case = make_case("linear")
        W, b, U = (p.detach() for p in case.cell.parameters())
        inverse = torch.linalg.inv(torch.eye(3, dtype=DTYPE) - W)
        z = (case.x @ U.T + b) @ inverse.T
        weights = torch.linspace(-1, 2, z.numel(), dtype=DTYPE).reshape(z.shape)
        v = (weights + 2 * z) @ inverse  # (N, m)
        for got, want in zip(self.gradients(case), (v @ U, v.T @ z, v.sum(dim=0), v.T @ case.x), strict=True):
            torch.testing.assert_close(got, want, rtol=self.reach, atol=self.reach)

    # -- use ------------------------------------------------------------------------------------------

    @each_case
    def test_the_value_is_the_equilibrium(self, name):
        case = make_case(name)
        layer = self.layer(case)
        torch.testing.assert_close(
            case.function(layer)(*case.tensors), case.unrolled(150)(*case.tensors), rtol=1e-11, atol=1e-11
        )
        assert bool(layer.last.forward.converged.all())

    def test_eval_mode_has_the_same_gradients(self):
        case = make_case("tanh")
        train = self.gradients(case)
        case.cell.eval()
        for got, want in zip(self.gradients(case), train, strict=True):
            assert torch.equal(got, want)

    def test_without_grad_mode_there_is_no_graph(self):
        case = make_case("tanh")
        layer = self.layer(case)
        with torch.no_grad():
            assert not layer(case.x).requires_grad
        with torch.inference_mode():
            assert layer(case.x).is_inference()

    def test_nothing_that_needs_a_gradient_gives_no_graph(self):
        case = make_case("tanh")
        case.cell.requires_grad_(False)
        assert not self.layer(case)(case.x).requires_grad

    def test_two_backward_passes_over_a_retained_graph_agree(self):
        case = make_case("tanh")
        loss = self.layer(case)(case.x).square().sum()
        first = torch.autograd.grad(loss, list(case.cell.parameters()), retain_graph=True)
        second = torch.autograd.grad(loss, list(case.cell.parameters()))
        for a, b in zip(first, second, strict=True):
            assert torch.equal(a, b)
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()

    def test_frozen_parameters_and_inputs_are_left_alone(self):
        case = make_case("tanh")
        full = self.gradients(case)
        case.cell.w.weight.requires_grad_(False)
        x = case.x.clone().requires_grad_()
        z = self.layer(case)(x)
        loss = (z * torch.linspace(-1, 2, z.numel(), dtype=DTYPE).reshape(z.shape)).sum() + z.square().sum()
        loss.backward()
        assert case.cell.w.weight.grad is None
        for got, want in zip((x.grad, case.cell.w.bias.grad), (full[0], full[2]), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)

    def test_only_x_needs_a_gradient(self):
        case = make_case("tanh")
        case.cell.requires_grad_(False)
        x = case.x.clone().requires_grad_()
        (got,) = torch.autograd.grad(self.layer(case)(x).square().sum(), x)
        want = torch.autograd.grad(self.layer(case)(x).square().sum(), x)[0]
        assert torch.equal(got, want)
        assert got.abs().sum() > 0

    def test_inputs_outside_of_the_graph_are_none(self):
        case = make_case("tanh")
        other = torch.ones(2, dtype=DTYPE, requires_grad=True)
        z = self.layer(case)(case.x)
        got = torch.autograd.grad(z.sum(), [other, case.cell.w.bias], allow_unused=True)
        assert got[0] is None
        assert got[1] is not None

    def test_noncontiguous_input(self):
        case = make_case("wider state")
        x = case.x.T.contiguous().T.requires_grad_()
        assert not x.is_contiguous()
        got = torch.autograd.grad(self.layer(case)(x).square().sum(), x)[0]
        plain = case.x.clone().requires_grad_()
        want = torch.autograd.grad(self.layer(case)(plain).square().sum(), plain)[0]
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)

    def test_an_empty_batch_has_zero_gradients(self):
        case = make_case("tanh")
        z = self.layer(case)(case.x[:0])
        assert z.shape == (0, 3)
        z.sum().backward()
        assert all(bool((p.grad == 0).all()) for p in case.cell.parameters())

    def test_a_sample_alone_has_the_gradient_it_has_in_a_batch(self):
        case = make_case("wider state")
        x = case.x.clone().requires_grad_()
        together = torch.autograd.grad(self.layer(case)(x).square().sum(), x)[0]
        for row in range(len(x)):
            alone = torch.autograd.grad(self.layer(case)(x[row : row + 1]).square().sum(), x)[0]
            torch.testing.assert_close(alone[row], together[row], rtol=1e-10, atol=1e-12)

    def test_options_are_frozen_and_unknown_ones_refused(self):
        with pytest.raises(TypeError, match="tolerance"):
            type(self.gradient)(tolerance=1.0)
        with pytest.raises(AttributeError):
            self.gradient.steps = 3

    def need_exact(self) -> None:
        if not self.exact:
            pytest.skip("labelled inexact")


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).detach().norm() / want.detach().norm().clamp_min(1e-8))
