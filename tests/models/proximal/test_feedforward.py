from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import equipoise as eq
from equipoise.models.proximal import from_feedforward, unit_layers
from equipoise.models.zoo import ReLUNetwork


def mlp(sizes, seed=0, bias=True, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    modules = []
    for a, b in pairwise(sizes):
        linear = nn.Linear(a, b, bias=bias, dtype=torch.float64)
        with torch.no_grad():
            for p in linear.parameters():
                p.copy_(scale * torch.randn(p.shape, dtype=torch.float64, generator=generator) / a**0.5)
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def data(d, n=20, seed=5):
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def agree(found, want):
    want = want[:, 0] if found.ndim == 1 else want
    assert (found - want).abs().max() <= 1e-10 * (1 + want.abs().max())


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=3, max_size=7),
    seed=st.integers(0, 1000),
    bias=st.booleans(),
    scale=st.sampled_from([0.1, 1.0, 3.0]),
)
def test_random_networks_are_reproduced_by_both_lemmas(sizes, seed, bias, scale):
    network, X = mlp(sizes, seed, bias, scale), data(sizes[0])
    want = network(X).detach()
    model = from_feedforward(network)
    agree(model(X).detach(), want)
    agree(unit_layers(network, generator=torch.Generator().manual_seed(seed))(X).detach(), want)
    assert model.contraction() < 1
    assert max(eq.linalg.norm_upper(layer.W) for layer in model.layers) <= 0.99


def test_draws_that_fall_short_of_full_rank_are_drawn_again():
    network, X = mlp([8, 8, 5], 0, bias=False), data(8)  # of the same numbers as the first draw below
    found = unit_layers(network, generator=torch.Generator().manual_seed(0))
    assert [int(torch.linalg.matrix_rank(W)) for W in found.W] == [8]
    agree(found(X).detach(), network(X).detach())


def test_the_equilibrium_is_reached_in_two_iterations_from_anywhere_and_certified():
    network, X = mlp([4, 6, 5, 7, 3], scale=2.0), data(4)
    model = from_feedforward(network)
    injections, weights = model.injections(X), model.weights()
    z = 100 * data(model.state, seed=8)
    for _ in range(2):
        z = model.T(z, injections, weights)
    agree(model.readout(z), network(X))
    torch.testing.assert_close(model.T(z, injections, weights), z, rtol=0, atol=0)
    assert (weights[0] @ weights[-1].T).abs().max() == 0
    assert model.state == 5 + 5 + 3 + 1  # Σ min(n_l, n_{l+1}), and the output's bias
    assert eq.certify(model, X).proved
    tight = from_feedforward(network, bound=0.5)
    assert eq.certify(tight, X).constants["rate"] < 0.02
    agree(tight(X), network(X))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("depth", "scale"), [(3, 1.0), (8, 3.0), (20, 3.0)])
def test_a_warm_start_is_as_accurate_as_the_stop_says(depth, scale, dtype):
    """The scale of large weights is not in the state: old features are not taken for those of new inputs."""
    network, X = mlp([4, *[12] * depth, 2], scale=scale).to(dtype), data(4).to(dtype)
    model, stop = from_feedforward(network), eq.Stop().resolve(dtype)
    A, b = network[-1].weight.detach(), network[-1].bias.detach()
    for far in (1.0, 1e-2, 1e-4, 1e-6):
        near = X + far * data(4, seed=9).to(dtype)
        y = model(near, start=model.equilibrium(X).detach()).detach()
        h = network[:-1](near).detach()
        size = torch.linalg.matrix_norm(A, 2) * h.norm(dim=1) + b.norm()
        assert ((y - network(near)).norm(dim=1) <= 3 * stop.rtol * size + 1e-8).all()
    assert model.V.abs().max() <= A.norm() / 0.7  # the readout is that of the network


def test_the_bias_of_the_output_may_be_all_or_nothing():
    network, X = mlp([3, 4, 4, 2]), data(3)
    model = from_feedforward(mlp([3, 4, 4, 2], bias=False))
    assert (model.equilibrium(X)[:, -1] == 0).all()
    with torch.no_grad():
        network[-1].weight.zero_()
    agree(from_feedforward(network)(X), network[-1].bias.expand(20, 2))


def test_an_overflow_is_refused():
    deep = mlp([4, *[12] * 60, 2], scale=3.0)
    agree(from_feedforward(deep)(data(4)), deep(data(4)))
    with pytest.raises(ValueError, match=r"first layer times .*e\+\d\d, .* must be finite in torch\.float32"):
        from_feedforward(deep.float())


def test_gradients_of_the_network_and_of_its_opteq_agree():
    network, X = mlp([4, 6, 5, 2]), data(4).requires_grad_()
    (want,) = torch.autograd.grad(network(X).square().sum(), X)
    y = from_feedforward(network)(X, stop=eq.Stop(rtol=1e-13))
    (found,) = torch.autograd.grad(y.square().sum(), X)
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-10)


def test_linear_and_relu_layers_may_come_in_any_order():
    X = data(4)
    plain = mlp([4, 5, 5, 3], scale=2.0)
    first, relu, second, _, last = plain
    for network in (
        nn.Sequential(first, relu, second, last),  # two linear layers in a row
        nn.Sequential(first, relu, second, relu),  # ends with a relu
        nn.Sequential(relu, first, relu, last),  # begins with one
        nn.Sequential(first, relu, relu, last),
        ReLUNetwork(4, 6, 3, depth=3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
    ):
        agree(from_feedforward(network)(X), network(X))
        agree(unit_layers(network)(X), network(X))
    single = mlp([4, 5, 3]).float()
    found = from_feedforward(single)(data(4).float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, single(data(4).float()), rtol=1e-4, atol=1e-4)
    agree(from_feedforward(mlp([4, 5, 1]))(X), mlp([4, 5, 1])(X))


# -- the printed constructions, where they fail --------------------------------------------------------------


def test_the_printed_lemma_2_loses_the_input():
    """W_1 = 0, as the proof of the paper takes: the output no longer depends on x."""
    network, X = mlp([4, 6, 5, 7, 3]), data(4)
    model = from_feedforward(network)
    with torch.no_grad():
        model.layers[0].W.zero_()
    y = model(X)
    assert (y - y[0]).abs().max() < 1e-12
    assert (y - network(X)).abs().max() > 0.1


def test_a_loop_back_to_the_first_layer_spoils_the_output():
    network, X = mlp([4, 6, 5, 7, 3]), data(4)
    model = from_feedforward(network)
    with torch.no_grad():  # W_1W_Lᵀ ≠ 0
        model.layers[0].W[:, -4:-1] += 0.1
    assert (model(X) - network(X)).abs().max() > 1e-3


def test_the_printed_lemma_1_asks_for_too_small_a_state():
    """m ≥ max n is not enough: A = 0 of 1 × 1, between layers of full rank, needs m = 2."""
    network = mlp([3, 1, 1])
    with torch.no_grad():
        network[2].weight.zero_()
    X = data(3)
    layers = unit_layers(network)
    assert layers.V.shape == (1, 2)
    agree(layers(X), network(X))
    with pytest.raises(ValueError, match=r"state must be ≥ .*, 2 for layer 2 \(of shape \(1, 1\)\)\. Got 1"):
        unit_layers(network, state=1)
    deep = mlp([3, 4, 6, 2])
    with torch.no_grad():  # rank 2 between 6 and 4
        A = deep[2].weight
        A.copy_(A[:, :2] @ A[:2, :])
    assert torch.linalg.matrix_rank(deep[2].weight) == 2
    with pytest.raises(ValueError, match="8 for layer 2"):
        unit_layers(deep, state=7)
    layers = unit_layers(deep, state=11)
    agree(layers(X), deep(X))
    for W in (*layers.W, layers.V):
        assert torch.linalg.matrix_rank(W) == len(W)
    for k, A in enumerate([deep[2].weight, deep[4].weight]):
        upper = layers.V if k == 1 else layers.W[1]
        torch.testing.assert_close(upper @ layers.W[k].T, A, rtol=0, atol=1e-12)


def test_other_networks_are_refused_in_words():
    for convert in (from_feedforward, unit_layers):
        with pytest.raises(TypeError, match=r"an nn\.Sequential or a ReLUNetwork\. Got Linear"):
            convert(nn.Linear(2, 3))
        with pytest.raises(ValueError, match=r"made of nn\.Linear and nn\.ReLU\. Got Tanh"):
            convert(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))
        with pytest.raises(ValueError, match="at least one hidden layer"):
            convert(nn.Sequential(nn.Linear(2, 3)))
        with pytest.raises(ValueError, match=r"Got no nn\.Linear"):
            convert(nn.Sequential(nn.ReLU()))
        with pytest.raises(ValueError, match="3 outputs meet 4 inputs"):
            convert(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(4, 1)))
    with pytest.raises(ValueError, match=r"bound must lie in \(0, 1\)"):
        from_feedforward(mlp([2, 3, 1]), bound=1.0)
