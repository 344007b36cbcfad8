"""‖W_l‖ ≤ bound·√(μ/L_σ), whatever the dtype and however it is computed; and what follows from it."""

import pytest
import torch

import equipoise as eq
from equipoise.linalg import singular_bounds
from equipoise.models.proximal import OptEq
from equipoise.theory.xie2021 import selection

PRECISIONS = (torch.float32, torch.float64)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def wide(bound, dtype, seed, shape=(11, 7), **options):
    n, m = shape
    model = OptEq(4, m, n, bound=bound, dtype=dtype, generator=seeded(seed), **options)
    with torch.no_grad():
        model.W.mul_(10.0)
    return model


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("bound", [1.0, 1 - 1e-8, 0.3])
@pytest.mark.parametrize("shape", [(1, 1), (11, 7), (40, 60)])
def test_scaled_weights_never_exceed_their_bound(bound, dtype, shape):
    for seed in range(8):
        model = wide(bound, dtype, seed, shape, mu=2.0, activation="tanh")
        limit = bound * 2.0**0.5
        W = model.weight()
        assert float(torch.linalg.matrix_norm(W.detach().double(), 2)) <= limit
        assert singular_bounds(W.detach()).norm.lo <= limit
        assert model.layer_sizes()[0][0] <= limit
        assert model.layer_sizes()[0][0] >= limit * (1 - 8 * max(shape) * torch.finfo(dtype).eps)
        with torch.no_grad():
            assert torch.equal(model.weight(), W)  # the same numbers as those that are trained
        small = wide(bound, dtype, seed, shape)
        with torch.no_grad():
            small.W.mul_(0.5 * bound / torch.linalg.matrix_norm(small.W, 2))
        assert torch.equal(small.weight(), small.W)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("shape", [(9, 6), (80, 100)])
def test_weights_at_the_limit_itself_have_their_convex_problem(dtype, shape):
    model = wide(1.0, dtype, 0, shape)
    X = torch.randn(3, 4, dtype=dtype, generator=seeded(1))
    assert torch.isfinite(model.objective(torch.zeros(3, shape[1], dtype=dtype), X)).all()
    assert selection(model, eq.SAM()).promised
