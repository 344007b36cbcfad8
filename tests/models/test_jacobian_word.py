"""jacobian=γ of a layer: the gradient of the loss plus that of γ · penalty, in training and nowhere else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from equipoise import Equilibrium, OnFailure, jacobian_penalty


class Cell(nn.Module):
    """tanh(W z + x)."""

    def __init__(self, size: float = 0.8) -> None:
        super().__init__()
        w = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        self.W = nn.Parameter(size * w / torch.linalg.matrix_norm(w, ord=2))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(z @ self.W.T + x)


X = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def gradient(layer: Equilibrium, scale: float = 1.0) -> Tensor:
    torch.manual_seed(3)
    return torch.autograd.grad(scale * layer(X).square().sum(), layer.cell.W)[0]


def test_the_gradient_is_that_of_the_loss_and_of_the_penalty() -> None:
    cell = Cell()
    plain = Equilibrium(cell)
    z = plain(X).detach()
    torch.manual_seed(3)
    (extra,) = torch.autograd.grad(2.5 * jacobian_penalty(plain, X, z=z), cell.W)
    assert extra.norm() > 1e-3
    for scale in (1.0, 1e-3):  # the penalty does not follow the scale of the loss
        found = gradient(Equilibrium(cell, jacobian=2.5), scale) - gradient(plain, scale)
        assert torch.allclose(found, extra, rtol=1e-9, atol=1e-12)


def test_evaluation_and_values_are_untouched() -> None:
    cell = Cell()
    layer, plain = Equilibrium(cell, jacobian=2.5), Equilibrium(cell)
    assert torch.equal(layer(X), plain(X))
    assert torch.equal(gradient(layer.eval()), gradient(plain.eval()))


def test_every_part_of_a_tuple_state_carries_the_penalty() -> None:
    cell = Cell()

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = cell

        def forward(self, z: tuple[Tensor, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
            return self.inner(z[0], x), 0.5 * self.inner(z[1], z[0])

    for part in (0, 1):
        grads = []
        for weight in (0.0, 1.0):
            torch.manual_seed(3)
            layer = Equilibrium(Pair(), state=[(5,), (5,)], jacobian=weight)
            grads.append(torch.autograd.grad(layer(X)[part].sum(), cell.W)[0])
        assert (grads[1] - grads[0]).norm() > 1e-3


def test_rows_without_an_equilibrium_have_no_part_in_it() -> None:
    class Half(Cell):
        def forward(self, z: Tensor, x: Tensor) -> Tensor:
            lost = x[:, :1] > 1e3
            return torch.where(lost, z + 1, super().forward(z, torch.where(lost, 0.0, x)))

    cell = Half()
    bad = torch.cat([X, torch.full((1, 5), 1e4, dtype=torch.float64)])
    layer = Equilibrium(cell, jacobian=1.0, on_failure=OnFailure("mask", share=0.5))
    found = []
    for inputs in (X, bad):
        torch.manual_seed(3)
        found.append(torch.autograd.grad(layer(inputs)[:4].sum(), cell.W)[0])
    assert layer.last.forward is not None
    assert layer.last.forward.failed_rows == [4]
    assert torch.allclose(found[0], found[1], rtol=1e-7, atol=1e-10)


def test_training_with_the_word_keeps_the_map_smaller() -> None:
    norms = []
    for weight in (0.0, 1.0):
        torch.manual_seed(0)
        layer = Equilibrium(Cell(0.7), jacobian=weight)
        optimiser = torch.optim.SGD(layer.parameters(), 0.05)
        for _ in range(20):
            optimiser.zero_grad()
            (-layer(X).square().mean()).backward()
            optimiser.step()
        norms.append(float(torch.linalg.matrix_norm(layer.cell.W.detach())))
    assert norms[1] < norms[0]


@pytest.mark.parametrize("weight", [-1.0, float("inf"), "a"])
def test_a_weight_that_is_none_is_refused(weight: object) -> None:
    with pytest.raises(ValueError, match="jacobian must be a finite number"):
        Equilibrium(Cell(), jacobian=weight)  # type: ignore[arg-type]


def test_a_transform_is_refused_in_words() -> None:
    layer = Equilibrium(Cell(), jacobian=1.0)
    with pytest.raises(RuntimeError, match="jacobian_penalty"):
        torch.func.grad(lambda x: layer(x).sum())(X)
