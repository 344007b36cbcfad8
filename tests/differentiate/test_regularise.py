"""The penalties against the exact Jacobian, and what they do to training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrizations import spectral_norm

from equipoise import Equilibrium, EquilibriumError, OnFailure
from equipoise.differentiate.regularise import jacobian_penalty, spectral_radius_penalty


class Cell(nn.Module):
    """tanh(W z + x)."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.W = nn.Parameter(weight.double())

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(z @ self.W.T + x)


def weight(m: int = 5, q: float = 0.8, seed: int = 0) -> Tensor:
    w = torch.randn(m, m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return q * w / torch.linalg.matrix_norm(w, ord=2)


def inputs(n: int = 3, m: int = 5, seed: int = 1) -> Tensor:
    return torch.randn(n, m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def jacobians(cell: nn.Module, z: Tensor, x: Tensor) -> Tensor:
    return torch.stack(
        [torch.func.jacrev(lambda z, x=x[i]: cell(z[None], x[None])[0])(z[i]) for i in range(len(z))]
    )


def test_jacobian_penalty_is_unbiased():
    layer, x = Equilibrium(Cell(weight())), inputs()
    z = layer(x).detach()
    exact = jacobians(layer.cell, z, x).square().sum() / z.numel()
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([jacobian_penalty(layer, x, z=z, generator=generator) for _ in range(400)]).detach()
    spread = draws.std() / 20
    assert abs(draws.mean() - exact) < 4 * spread
    assert spread < 0.02 * exact
    many = jacobian_penalty(layer, x, samples=400, generator=generator)
    assert abs(many.detach() - exact) < 4 * spread


def test_its_gradient_is_that_of_the_exact_penalty():
    """At the fixed z, the mean gradient over draws is the gradient of ‖J‖_F² / D; each draw's is its own."""
    layer, x = Equilibrium(Cell(weight())), inputs()
    z = layer(x).detach()

    def exact(w: Tensor) -> Tensor:
        slope = 1 - torch.tanh(z @ w.T + x).square()
        return (slope[:, :, None] * w).square().sum() / z.numel()

    wanted = torch.func.grad(exact)(layer.cell.W.detach())
    got = torch.autograd.grad(
        jacobian_penalty(layer, x, z=z, samples=3000, generator=torch.Generator().manual_seed(0)),
        layer.cell.W,
    )[0]
    assert (got - wanted).norm() < 0.03 * wanted.norm()


@pytest.mark.parametrize("penalty", [jacobian_penalty, spectral_radius_penalty])
def test_gradcheck_with_the_draw_held(penalty):
    cell, x = Cell(weight(3)), inputs(2, 3)
    layer = Equilibrium(cell)
    z = layer(x).detach()

    def value(w: Tensor, x: Tensor) -> Tensor:
        other = Equilibrium(lambda z, x: torch.tanh(z @ w.T + x))
        options = (
            {"steps": 1} if penalty is spectral_radius_penalty else {"samples": 2}
        )  # u is held otherwise
        return penalty(other, x, z=z, generator=torch.Generator().manual_seed(3), **options)

    assert torch.autograd.gradcheck(value, (cell.W.detach().requires_grad_(), x.requires_grad_()))


def test_spectral_radius_penalty_finds_a_leading_real_eigenvalue():
    q = torch.linalg.qr(weight(6))[0]
    similar = torch.eye(6, dtype=torch.float64) + 0.5 * weight(6, seed=3)  # a basis that is not orthogonal
    values = torch.tensor([0.8, -0.4, 0.3, 0.2, 0.1, 0.0], dtype=torch.float64)
    for w in (q @ torch.diag(values) @ q.T, similar @ torch.diag(values) @ torch.linalg.inv(similar)):
        layer = Equilibrium(Cell(w))
        x = torch.zeros(2, 6, dtype=torch.float64)  # z = 0, J = W
        found = spectral_radius_penalty(layer, x, steps=60, generator=torch.Generator().manual_seed(0))
        assert found.item() == pytest.approx(0.8, rel=1e-6)
    rough = spectral_radius_penalty(layer, x, steps=1, generator=torch.Generator().manual_seed(0))
    assert abs(rough.item() - 0.8) > 0.05


def test_many_steps_do_not_underflow():
    layer = Equilibrium(Cell(1e-3 * torch.eye(3)))
    found = spectral_radius_penalty(layer, torch.zeros(2, 3, dtype=torch.float64), steps=200)
    assert found.item() == pytest.approx(1e-3)


@pytest.mark.parametrize("penalty", [jacobian_penalty, spectral_radius_penalty])
def test_training_with_it_lowers_the_spectral_radius(penalty):
    x, target = inputs(16), inputs(16, seed=2).tanh()

    def radius_after(strength: float) -> float:
        layer = Equilibrium(Cell(weight(q=0.9)))
        optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(0)
        for _ in range(30):
            z = layer(x)
            loss = (z - target).square().mean() + strength * penalty(layer, x, z=z, generator=generator)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        J = jacobians(layer.cell, layer(x).detach(), x)
        return torch.linalg.eigvals(J).abs().amax(dim=1).mean().item()

    assert radius_after(1.0) < 0.9 * radius_after(0.0)


def test_tuple_states_and_further_inputs():
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.tensor(0.5))

        def forward(self, z, x, keep, scale):
            p, q = z
            return self.a * p * keep[:, None] + x, scale * q + 0.1 * p

    torch.manual_seed(0)
    layer = Equilibrium(Pair(), state=[(4,), (4,)])
    x, keep, shared = torch.randn(6, 4), torch.tensor([1.0, 1, 0, 1, 1, 0]), (torch.tensor(0.3),)
    found = jacobian_penalty(
        layer, x, keep, shared=shared, samples=200, generator=torch.Generator().manual_seed(0)
    )
    exact = ((0.5 * keep[:, None]).square() + 0.3**2 + 0.1**2).mean() / 2
    assert found.item() == pytest.approx(exact.item(), rel=0.05)
    spectral_radius_penalty(layer, x, keep, shared=shared).backward()
    assert float(layer.cell.a.grad) > 0


@pytest.mark.parametrize("penalty", [jacobian_penalty, spectral_radius_penalty])
def test_parametrised_weights_in_training_are_held(penalty):
    """A penalty beside the layer's own graph must not let the power iteration of spectral_norm go on."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.inner = spectral_norm(nn.Linear(5, 5)).double()

        def forward(self, z, x):
            return torch.tanh(self.inner(z)) / 2 + x

    layer, x = Equilibrium(Half()).train(), inputs()
    z = layer(x)
    before = [b.clone() for b in layer.buffers()]
    (z.square().mean() + penalty(layer, x, z=z)).backward()
    assert all(torch.equal(a, b) for a, b in zip(before, layer.buffers(), strict=True))
    assert all(m.training for m in layer.modules())


def test_it_works_under_no_grad_and_on_a_map_that_ignores_z():
    x = inputs()
    with torch.no_grad():
        found = jacobian_penalty(Equilibrium(Cell(weight())), x)
    assert not found.requires_grad
    assert found.item() > 0
    assert jacobian_penalty(Equilibrium(lambda z, x: x), x).item() == 0
    assert spectral_radius_penalty(Equilibrium(lambda z, x: 0 * z + x), x).item() == 0


def test_samples_without_an_equilibrium_are_treated_by_the_layers_policy():
    growing = lambda z, x: x * z + 1  # z = 1 / (1 − x): none that Picard or Anderson may call finite at x = 1
    x = torch.tensor([[0.5], [1.0], [0.2]], dtype=torch.float64)
    with pytest.raises(EquilibriumError, match="row 1"):
        jacobian_penalty(Equilibrium(growing), x)
    masked = Equilibrium(growing, on_failure=OnFailure("mask", share=0.5))
    assert jacobian_penalty(masked, x).item() == pytest.approx((0.25 + 0.04) / 2)


def test_bad_use_is_refused_in_words():
    layer, x = Equilibrium(Cell(weight())), inputs()
    with pytest.raises(ValueError, match="samples must be ≥ 1"):
        jacobian_penalty(layer, x, samples=0)
    with pytest.raises(ValueError, match="steps must be ≥ 1"):
        spectral_radius_penalty(layer, x, steps=0)
    with pytest.raises(TypeError, match="must be an Equilibrium"):
        jacobian_penalty(nn.Linear(5, 5), x)


class Attention(nn.Module):
    """x + attention of z to itself, by torch's fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12, dtype=torch.float64)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        q, k, v = (part[:, None] for part in self.qkv(z).chunk(3, dim=-1))
        return x + 0.2 * nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]


def test_attention_is_penalised_by_a_kernel_that_can_be_differentiated_twice():
    torch.manual_seed(0)
    layer, x = Equilibrium(Attention()), torch.randn(2, 3, 4, dtype=torch.float64)
    z = layer(x).detach()
    penalty = jacobian_penalty(layer, x, z=z, samples=400, generator=torch.Generator().manual_seed(0))
    penalty.backward()
    exact = torch.autograd.functional.jacobian(lambda z: layer.cell(z, x), z).reshape(2, 12, 2, 12)
    want = sum(exact[n, :, n].square().sum() for n in range(2)) / 24
    assert float(penalty.detach()) == pytest.approx(float(want), rel=0.05)
    assert layer.cell.qkv.weight.grad.abs().max() > 0


def test_what_cannot_be_differentiated_twice_is_named():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            return z.tanh()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return 0.5 * g

    w = torch.full((5,), 0.5, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        jacobian_penalty(Equilibrium(lambda z, x: w * Once.apply(z) + x), inputs(), z=inputs())

    class Fused(Attention):
        def forward(self, z: Tensor, x: Tensor) -> Tensor:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return super().forward(z, x)

    x = torch.randn(2, 3, 4, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        jacobian_penalty(Equilibrium(Fused()), x, z=x)
