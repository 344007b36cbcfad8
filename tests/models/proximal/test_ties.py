"""relu'(0) = 0: the gradient at a tie is the same from every start."""

import copy

import pytest
import torch

import equipoise as eq
from equipoise.models.proximal import DeepOptEq, OptEq
from equipoise.models.proximal.properties import L1, Box


def build(kind, dtype, **options):
    hidden = 12 if kind is OptEq else [12, 7]
    generator = torch.Generator().manual_seed(0)
    return kind(4, 8, hidden, dtype=dtype, generator=generator, **options)


def gradients(model, X, start):
    Z = model.equilibrium(X, start=start)
    return Z.detach(), torch.autograd.grad(Z.sum(), [p for n, p in model.named_parameters() if n != "V"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("kind", [OptEq, DeepOptEq])
@pytest.mark.parametrize("regulariser", [None, L1(0.01)])
def test_gradients_at_a_tie_do_not_depend_on_the_start(kind, alpha, dtype, regulariser):
    model = build(kind, dtype, alpha=alpha, regulariser=regulariser)  # b = 0, so that x = 0 is a tie
    X = torch.zeros(3, 4, dtype=dtype)
    X[1] = 1.0
    warm = model.solve(torch.ones(3, 4, dtype=dtype)).value
    Z, cold = gradients(model, X, None)
    Z_warm, found = gradients(model, X, warm)
    assert not Z_warm[[0, 2]].any()
    tolerance = 1e-3 if dtype == torch.float32 else 1e-7
    torch.testing.assert_close(Z_warm, Z, rtol=tolerance, atol=tolerance)
    for a, b in zip(found, cold, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert not model.solve(X, start=warm).value[0].any()


def test_blocks_too():
    deep = build(DeepOptEq, torch.float64)
    model = deep.multi_block()
    X = torch.zeros(1, 4, dtype=torch.float64)
    warm = model.solve(torch.ones(1, 4, dtype=torch.float64)).value
    assert all(not g.any() for g in gradients(model, X, warm)[1])


def test_only_ties_are_moved():
    ones = torch.ones(1, 4, dtype=torch.float64)
    model = build(OptEq, torch.float64)
    start = torch.ones(1, 8, dtype=torch.float64)
    recorded = model.posed((0 * ones,), start, {"gradient": eq.Unrolled(3)}, differentiated=True)
    assert recorded.start.all()  # steps of an iteration start where they are told to
    for change in (lambda: model.b.fill_(-1.0), lambda: model.b.fill_(1.0)):
        with torch.no_grad():
            change()
        assert torch.equal(model.posed((0 * ones,), start, {}).start, start)
    with torch.no_grad():
        model.b.zero_()
        model.W.mul_(1.2 / 0.9)  # 0 is an equilibrium, and may not be the only one
    assert torch.equal(model.posed((0 * ones,), start, {}).start, start)
    boxed = build(OptEq, torch.float64, regulariser=Box(0.1, 1.0))
    Z = boxed.equilibrium(0 * ones, start=start, stop=eq.Stop(rtol=1e-12))
    torch.testing.assert_close(Z, boxed.equilibrium(0 * ones, stop=eq.Stop(rtol=1e-12)))
    assert torch.equal(boxed.posed((0 * ones,), start, {}).start, start)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("kind", [OptEq, DeepOptEq])
def test_ties_beside_a_state_that_is_not_zero_read_the_same_from_a_warm_start(kind, alpha, dtype):
    model = build(kind, dtype, alpha=alpha)
    with torch.no_grad():
        for layer in model.blocks:  # two halves that do not meet, and nothing comes into the second
            half = len(layer.b) // 2
            layer.W[:half, 4:], layer.W[half:, :4] = 0.0, 0.0
            layer.U[half:] = 0.0
    generator = torch.Generator().manual_seed(1)
    X, warm = (torch.rand(3, n, dtype=dtype, generator=generator) for n in (4, 8))
    Z, cold = gradients(model, X, None)
    Z_warm, found = gradients(model, X, warm)
    assert Z[:, :4].all()
    assert not Z_warm[:, 4:].any()
    tolerance = 1e-3 if dtype == torch.float32 else 1e-7
    for a, b in zip(found, cold, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_chain_of_small_units_is_followed_to_its_end(dtype):
    # Unit i hears of entry i − 1 of the state: a solve ends before the last of them has heard of x at all.
    links, share = 6, 0.03
    model = OptEq(2, links + 1, links, dtype=dtype)
    with torch.no_grad():
        for parameter in (model.W, model.U):
            parameter.zero_()
        model.U[0, 0] = 1.0
        for i in range(links):
            model.W[i, i] = 0.5
            model.W[i, max(i - 1, 0)] += share
    X = torch.tensor([[1e-3, 1.0]], dtype=dtype)
    twin = copy.deepcopy(model).double()
    Z = torch.zeros(1, links + 1, dtype=torch.float64)
    for _ in range(300):
        Z = twin.T(Z, twin.injections(X.double()), twin.weights())
    (wanted,) = torch.autograd.grad(Z.sum(), twin.U)
    (found,) = torch.autograd.grad(model.equilibrium(X, stop=eq.Stop(rtol=1e-4)).sum(), model.U)
    assert wanted.all()
    torch.testing.assert_close(found.double(), wanted, rtol=1e-2, atol=0)
