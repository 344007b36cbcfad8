"""Masks at ties and near them: what decays to 0 is a tie from every start, what is merely small is none."""

import copy

import pytest
import torch

import equipoise as eq
from equipoise.train import train_many


def relu_model(W, U, a, dtype):
    """z = relu(W z + U x), ŷ = aᵀz."""
    model = eq.GaussianReLU(len(U[0]), len(W), dtype=dtype)
    with torch.no_grad():
        for parameter, value in ((model.W, W), (model.U, U), (model.a, a)):
            parameter.copy_(torch.tensor(value, dtype=dtype))
    return model


def small_beside_large(dtype):
    """z_1 = relu(x_1), z_2 = relu(z_1/2), z_3 = 10 relu(x_2): the error of z_3 is as large as z_1."""
    W = [[0.0, 0, 0], [0.5, 0, 0], [0, 0, 0.9]]
    model = relu_model(W, [[1.0, 0], [0, 0], [0, 1]], [0.0, 1, 0], dtype)
    return model, torch.tensor([[0.009, 1.0]], dtype=dtype)


@pytest.mark.parametrize("relu_at_zero", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_unit_that_is_small_beside_the_error_of_others_is_no_tie(dtype, relu_at_zero):
    model, x = small_beside_large(dtype)
    model.relu_at_zero = relu_at_zero
    x.requires_grad_()
    (found,) = torch.autograd.grad(model(x).sum(), x)
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.0]], dtype=dtype))


def test_many_runs_at_once_read_the_same():
    model, x = small_beside_large(torch.float32)
    y = torch.tensor([1.0])
    twin = copy.deepcopy(model)
    loss = (model(x) - y).square().sum() / 2
    loss.backward()
    train_many([twin], x, y, 1, 1.0)
    assert model.W.grad.any()
    torch.testing.assert_close(twin.W.detach(), (model.W - model.W.grad).detach())


@pytest.mark.parametrize("relu_at_zero", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_beside_units_that_are_not_zero_read_the_same_from_every_start(dtype, relu_at_zero):
    # Units 2 and 3 feed each other and nothing feeds them; unit 4 is fed by unit 1, which is not 0; unit 5 by
    # two that are equal and cancel; unit 6 by a tie and by unit 1, which inhibits it.
    W = torch.zeros(7, 7)
    W[1, 2], W[2, 1], W[3, 0], W[4, 0], W[4, 6], W[5, 1], W[5, 0] = 0.9, 0.8, 1e-4, 0.3, -0.3, 0.5, -0.1
    U = [[1.0], [0], [0], [0], [0], [0], [1.0]]
    model = relu_model(W.tolist(), U, [1.0] * 7, dtype)
    model.relu_at_zero = relu_at_zero
    x = torch.tensor([[2.0]], dtype=dtype)
    want = torch.tensor([[1, relu_at_zero, relu_at_zero, 1, relu_at_zero, 0, 1]], dtype=dtype)
    for start in (None, torch.zeros(1, 7), torch.ones(1, 7), 1e-4 * torch.ones(1, 7), 5 * torch.rand(1, 7)):
        Z = model.solve(x, start=None if start is None else start.to(dtype)).value
        torch.testing.assert_close(model.masks(Z, x), want)


# -- pruned networks -----------------------------------------------------------------------------------------

FAMILIES = {
    "gaussian": lambda g: eq.GaussianReLU(6, 40, sigma_w2=0.12, generator=g),
    "scaled": lambda g: eq.ScaledReLU(6, 40, gamma=0.5, generator=g),
    "monotone": lambda g: eq.Monotone(6, 20, margin=0.5, generator=g),
}


def true_gradients(model, X, c):
    """Of cᵀŷ in float64, at equilibria iterated from 0, where ties are exact; and whether float32 may err."""
    twin, X = copy.deepcopy(model).double(), X.detach().double().requires_grad_()
    W, u = twin.weight(), twin.injection(X)
    step = 1.0 if model.contraction() else 0.1
    with torch.no_grad():
        Z = torch.zeros(len(X), model.width, dtype=torch.float64)
        for _ in range(3000 if step == 1 else 5000):
            Z = torch.relu(Z + step * (Z @ W.T + u - Z))
        size = Z.norm(dim=1, keepdim=True)
        D = (Z > 1e-11 * size).double()
    eye = torch.eye(model.width, dtype=torch.float64)
    at = D * (Z @ W.T + u)
    at.register_hook(lambda g: torch.linalg.solve(eye - W.detach().T * D[:, None, :], g[:, :, None])[..., 0])
    wanted = torch.autograd.grad((c.double() * twin.readout(at)).sum(), [X, *twin.parameters()])
    P = (Z @ W.T + u).detach()
    # Splitting spreads the error over all units, and the sign of a smaller pre-activation is not to be told.
    least = 1e-4 if isinstance(model, eq.Monotone) else 0.0
    undecided = ((P.abs() < least * size) & (P.abs() > 1e-11 * size)).any()
    return wanted, bool(undecided)


def worst_error(family, seed):
    """Of the float32 gradients of a pruned network, of inputs of many sizes, from cold and warm starts."""
    generator = torch.Generator().manual_seed(seed)
    model = FAMILIES[family](generator)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(torch.rand(p.shape, generator=generator) > 0.9)
    X = torch.randn(2, 6, generator=generator) * 10.0 ** (3 * torch.rand(2, 6, generator=generator) - 3)
    start = 5 * torch.rand(2, model.width, generator=generator) if seed % 2 else None
    c = torch.randn(2, generator=generator)
    X.requires_grad_()
    found = torch.autograd.grad((c * model(X, start=start)).sum(), [X, *model.parameters()])
    wanted, undecided = true_gradients(model, X, c)
    if undecided:
        return 0.0, False
    pairs = [(g.double(), w) for g, w in zip(found, wanted, strict=True) if w.norm() > 1e-9]
    return max(float((g - w).norm() / w.norm()) for g, w in pairs), True


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_pruned_networks_are_those_of_float64(family):
    errors, decided = zip(*(worst_error(family, seed) for seed in range(8)), strict=True)
    assert any(decided)
    assert max(errors) < 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_many_pruned_networks_are_those_of_float64(family):
    errors, decided = zip(*(worst_error(family, seed) for seed in range(100, 200)), strict=True)
    assert sum(decided) >= 30
    assert max(errors) < 1e-2
