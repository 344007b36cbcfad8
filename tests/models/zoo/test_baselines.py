"""Baselines are what their equations say, and the conversions reproduce their originals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.models.affine import LinearEquilibrium
from equipoise.models.repeated import Repeat, repeat
from equipoise.models.zoo import LinearModel, LinearResNet, ReLUNetwork, weight_tied


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def inputs(n=6, d=5, seed=1):
    return torch.randn(n, d, dtype=torch.float64, generator=rng(seed))


def test_the_linear_model_starts_where_the_equilibrium_model_does():
    model = LinearEquilibrium(5, outputs=2, dtype=torch.float64, generator=rng())
    twin = LinearModel.like(model)
    torch.testing.assert_close(twin(inputs()), model(inputs()), rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="feature map"):
        LinearModel.like(LinearEquilibrium(5, feature_map=torch.tanh))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_relu_network_is_its_equation(depth, bias):
    net = ReLUNetwork(5, 7, 3, depth=depth, bias=bias, dtype=torch.float64, generator=rng())
    assert len(net.layers) == depth
    h = inputs()
    for i, layer in enumerate(net.layers):
        h = h @ layer.weight.T + (layer.bias if bias else 0)
        h = h.clamp_min(0) if i < depth - 1 else h
    torch.testing.assert_close(net(inputs()), h)
    assert any("bias" in name for name, _ in net.named_parameters()) == bias


def test_he_start_keeps_the_scale_through_depth():
    net = ReLUNetwork(200, 200, 200, depth=10, dtype=torch.float64, generator=rng())
    x = torch.randn(50, 200, dtype=torch.float64, generator=rng(2))
    ratio = float(net(x).detach().norm() / x.norm())
    assert 0.7 < ratio / 2**0.5 < 1.4  # √2 in the mean: the last layer has no relu to halve its variance


def test_linear_resnet_is_the_identity_at_zero_and_a_product_elsewhere():
    net = LinearResNet(5, depth=3, dtype=torch.float64)
    assert torch.equal(net(inputs()), inputs())
    net = LinearResNet(5, depth=3, scale=0.5, dtype=torch.float64, generator=rng())
    product = torch.eye(5, dtype=torch.float64)
    for W in net.W:
        product = (torch.eye(5, dtype=torch.float64) + W) @ product
    torch.testing.assert_close(net(inputs()), inputs() @ product.T)


def test_repeat_tends_to_the_equilibrium():
    W = 0.4 * torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64, generator=rng()))[0]
    cell = lambda z, x: torch.tanh(z @ W.T + x)
    z = eq.Equilibrium(cell, stop=eq.Stop(rtol=1e-13))(inputs())
    gaps = [float((repeat(cell, k)(inputs()) - z).norm().detach()) for k in (1, 6, 11, 18)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.4**17 * gaps[0] * 5
    assert Repeat(cell, 2, state=lambda x: x)(inputs()).shape == (6, 5)


@pytest.mark.parametrize("times", [1, 2, 6, 11, 18])
def test_repeat_applies_its_cell_as_often_as_it_says(times):
    W = torch.randn(3, 3, dtype=torch.float64, generator=rng())
    U = torch.randn(3, 5, dtype=torch.float64, generator=rng(1))
    seen, x = [], inputs()

    def cell(z, x, shift):
        seen.append(z)
        return torch.sin(3 * z @ W.T + x @ U.T + shift)  # far from a contraction: no two iterates are alike

    z, shift = torch.zeros(6, 3, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    for _ in range(times):
        z = torch.sin(3 * z @ W.T + x @ U.T + shift)
    assert torch.equal(repeat(cell, times, (3,))(x, shift), z)
    assert len(seen) == times
    assert not seen[0].any()
    started = Repeat(lambda z, x: z + x, times, state=lambda x: 10 * x)(x)
    torch.testing.assert_close(started, (10 + times) * x)


def test_repeat_takes_states_as_an_equilibrium_does():
    W = 0.3 * torch.randn(5, 5, dtype=torch.float64, generator=rng())

    def cell(z, x):
        u, v = z
        return torch.tanh(torch.cat([v, u], dim=1) @ W.T + x).split([3, 2], dim=1)

    x = inputs()
    u, v = repeat(cell, 40, ((3,), (2,)))(x)
    for found, known in zip((u, v), eq.Equilibrium(cell, state=((3,), (2,)))(x), strict=True):
        torch.testing.assert_close(found, known, rtol=0, atol=1e-7)
    again = repeat(cell, 40, lambda x: (x[:, :3], x[:, 3:]))(x)
    torch.testing.assert_close(torch.cat(again, dim=1), torch.cat([u, v], dim=1), rtol=0, atol=1e-8)


def test_sizes_may_be_those_of_numpy():
    x, four = inputs(), np.int64(4)
    assert repeat(lambda z, x: z + 1, np.int64(3), [four])(x).tolist() == [[3.0] * 4] * len(x)
    u, v = repeat(lambda z, x: z, 3, [(four,), (2, four)])(x)
    assert (u.shape, v.shape) == ((len(x), 4), (len(x), 2, 4))
    assert ReLUNetwork(four, four, depth=np.int64(3)).layers[0].in_features == 4
    with pytest.raises(ValueError, match="state must be the shape of one sample's state"):
        repeat(torch.add, 3, [np.int64(0)])
    for times in (np.int64(0), np.float64(3), True):
        with pytest.raises(ValueError, match="times must be an integer ≥ 1"):
            repeat(torch.add, times)


def test_repeat_says_what_is_no_cell_and_no_state():
    x = inputs()
    with pytest.raises(TypeError, match=r"cell must be callable, cell\(z, x\)\. Got 'x' instead"):
        repeat("x", 3)
    for cell in (lambda z, x: z[:, 1:], lambda z, x: (z, z), lambda z, x: None):
        with pytest.raises(ValueError, match=r"a state like the one it is given: .* That was z_1"):
            repeat(cell, 3)(x)
    with pytest.raises(ValueError, match=r"for part 1 of the state\. Got \(6, 1\) instead"):
        repeat(lambda z, x: (z[0], z[1][:, 1:]), 3, ((3,), (2,)))(x)
    for state in ((0,), "x", ((3,), 2), 3):
        with pytest.raises(ValueError, match="state must be the shape of one sample's state"):
            repeat(torch.add, 3, state)


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_any_feedforward_network_is_weight_tied(depth):
    net = ReLUNetwork(5, 7, 3, depth=depth, dtype=torch.float64, generator=rng(depth))
    with torch.no_grad():
        for layer in net.layers:
            layer.bias.normal_(generator=rng(9))
    tied = weight_tied(net)
    torch.testing.assert_close(tied(inputs()), net(inputs()), rtol=1e-12, atol=1e-12)
    # More repeats change nothing: the stacked state is an equilibrium of the cell, and its only one.
    layer = eq.Equilibrium(
        tied.cell, state=(tied.width,), solver=eq.Picard(), stop=eq.Stop(rtol=1e-14, atol=1e-14)
    )
    torch.testing.assert_close(layer(inputs()), tied.state(inputs()), rtol=1e-12, atol=1e-12)
    power = torch.linalg.matrix_power(tied.cell.W, depth - 1)
    assert not power.any()


def test_conversion_of_a_sequential_and_refusals():
    net = nn.Sequential(
        nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 1)
    ).double()
    torch.testing.assert_close(weight_tied(net)(inputs()), net(inputs()))
    with pytest.raises(ValueError, match="alternate"):
        weight_tied(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)))
    with pytest.raises(ValueError, match="hidden layer"):
        weight_tied(nn.Sequential(nn.Linear(5, 4)))
    with pytest.raises(TypeError, match="Linear"):
        weight_tied(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="times must be"):
        repeat(torch.tanh, 0)
