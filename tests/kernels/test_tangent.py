"""The tangent kernel equals the contraction of Jacobians, and predicts what training does."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.kernels import kernel_prediction, tangent_kernel
from equipoise.models.affine import GaussianReLU, LinearEquilibrium, Monotone, ScaledReLU

TIGHT = eq.Stop(rtol=1e-13, max_steps=5000)


def build(family, outputs=1, d=4, m=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    options = {"dtype": torch.float64, "generator": generator, "outputs": outputs}
    if family is LinearEquilibrium:
        return LinearEquilibrium(d, **options)
    if family is ScaledReLU:
        return ScaledReLU(d, m, init="section5.2", **options)
    return family(d, m, **options)


def data(n, d=4, seed=1):
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def jacobian(model, X, name):
    """∂ŷ/∂θ, (N·k, numel), one backward pass an output."""
    y = model(X, stop=TIGHT).flatten()
    parameter = model.get_parameter(name)
    rows = [torch.autograd.grad(v, parameter, retain_graph=True)[0].flatten() for v in y]
    return torch.stack(rows)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("family", [GaussianReLU, ScaledReLU, Monotone, LinearEquilibrium])
def test_every_block_is_the_contraction_of_jacobians(family, outputs):
    model, X, X2 = build(family, outputs), data(5), data(3, seed=2)
    kernel = tangent_kernel(model, X, X2, block=2)
    assert set(kernel.blocks) == {name for name, _ in model.named_parameters()}
    for name, block in kernel.blocks.items():
        expected = jacobian(model, X, name) @ jacobian(model, X2, name).T
        torch.testing.assert_close(block.reshape(expected.shape), expected, rtol=1e-10, atol=1e-10)
    total = sum(kernel.blocks.values())
    torch.testing.assert_close(kernel.total, total)
    assert tuple(kernel.total.shape) == ((5, 3) if outputs == 1 else (5, outputs, 3, outputs))


@pytest.mark.parametrize("family", [GaussianReLU, Monotone])
def test_blocks_of_rows_change_nothing_and_report_progress(family):
    model, X = build(family, outputs=2), data(7)
    seen = []
    whole = tangent_kernel(model, X)
    parts = tangent_kernel(model, X, block=3, progress=lambda done, of: seen.append((done, of)))
    torch.testing.assert_close(parts.total, whole.total, rtol=1e-13, atol=1e-13)
    assert seen == [(3, 7), (6, 7), (7, 7)]


def test_the_kernel_is_symmetric_and_its_eigenvalues_are_those_of_the_matrix():
    kernel = tangent_kernel(build(GaussianReLU), data(6))
    torch.testing.assert_close(kernel.total, kernel.total.T)
    values = torch.linalg.eigvalsh(kernel.total)
    assert kernel.lambda_min == pytest.approx(float(values[0]), rel=1e-9, abs=1e-12)
    assert kernel.lambda_max == pytest.approx(float(values[-1]), rel=1e-12)
    with pytest.raises(ValueError, match="square kernel"):
        tangent_kernel(build(GaussianReLU), data(6), data(4)).eigenvalues()


def test_any_module_has_a_kernel_by_jacobians():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    X, X2 = data(5), data(4, seed=3)
    kernel = tangent_kernel(net, X, X2, block=2)
    assert tuple(kernel.total.shape) == (5, 2, 4, 2)
    rows = []
    for x in (X, X2):
        y = net(x).flatten()
        rows.append(
            torch.stack(
                [
                    torch.cat(
                        [g.flatten() for g in torch.autograd.grad(v, net.parameters(), retain_graph=True)]
                    )
                    for v in y
                ]
            )
        )
    torch.testing.assert_close(kernel.matrix, rows[0] @ rows[1].T, rtol=1e-12, atol=1e-12)


def test_a_users_cell_inside_a_network_has_a_kernel():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Parameter(
                0.2 * torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
            )

        def forward(self, z, x):
            return torch.tanh(z @ self.W.T + x)

    net = nn.Sequential(
        nn.Linear(4, 5, dtype=torch.float64),
        eq.Equilibrium(Cell(), stop=eq.Stop(rtol=1e-12), gradient=eq.Implicit(stop=eq.Stop(rtol=1e-12))),
        nn.Linear(5, 1, dtype=torch.float64),
    )
    kernel = tangent_kernel(net, data(3))
    y = net(data(3)).flatten()
    rows = torch.stack(
        [
            torch.cat([g.flatten() for g in torch.autograd.grad(v, net.parameters(), retain_graph=True)])
            for v in y
        ]
    )
    torch.testing.assert_close(kernel.total, rows @ rows.T, rtol=1e-8, atol=1e-8)


def test_prediction_is_the_flow_of_the_linearised_network():
    model, X, X_test = build(GaussianReLU, m=20), data(5), data(3, seed=4)
    y = data(5, d=1, seed=5)[:, 0]
    H, cross = tangent_kernel(model, X).total, tangent_kernel(model, X_test, X).total
    r, f, steps, t = (model(X) - y).detach(), model(X_test).detach(), 40_000, 0.7
    for _ in range(steps):  # Euler on r' = −H r, f' = −H(x, X) r
        f = f - t / steps * (cross @ r)
        r = r - t / steps * (H @ r)
    torch.testing.assert_close(kernel_prediction(model, X, y, X_test, time=t), f, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        kernel_prediction(model, X, y, X_test, time=0.0), model(X_test).detach(), rtol=1e-8, atol=1e-8
    )
    end = kernel_prediction(model, X, y, X)
    torch.testing.assert_close(end, y, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="time must be"):
        kernel_prediction(model, X, y, X_test, time=-1.0)


def test_a_small_step_of_descent_moves_the_outputs_by_the_kernel():
    model, X = build(ScaledReLU, m=10), data(4)
    y = data(4, d=1, seed=6)[:, 0]
    H = tangent_kernel(model, X).total
    before = model(X, stop=TIGHT)
    loss = 0.5 * (before - y).square().sum()
    grads = torch.autograd.grad(loss, list(model.parameters()))
    eta = 1e-7 / float(torch.linalg.matrix_norm(H, ord=2))
    with torch.no_grad():
        for p, g in zip(model.parameters(), grads, strict=True):
            p -= eta * g
        moved = (model(X, stop=TIGHT) - before) / eta
    torch.testing.assert_close(moved, -H @ (before - y).detach(), rtol=1e-4, atol=1e-4 * float(H.norm()))


def test_empty_and_wrong_inputs():
    model = build(GaussianReLU)
    assert tangent_kernel(model, data(0)).total.shape == (0, 0)
    with pytest.raises(ValueError, match=r"\(N, 4\)"):
        tangent_kernel(model, data(3, d=5))
    with pytest.raises(ValueError, match="parameters that require"):
        tangent_kernel(nn.Linear(4, 1).double().requires_grad_(False), data(3))
    assert math.isfinite(tangent_kernel(build(GaussianReLU).float(), data(3).float()).lambda_max)
