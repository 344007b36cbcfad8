"""What the infinite-width kernels cannot be of: refused in words, with the row."""

import math

import numpy as np
import pytest
import torch

from equipoise.kernels.population import population_gram, population_lambda_min, population_tangent_kernel


def rows(N, d):
    return torch.randn(N, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("function", [population_gram, population_lambda_min, population_tangent_kernel])
class TestRefusals:
    @pytest.mark.parametrize("sigma_w2", [0.0, 1.0, -0.1, 2.0, math.nan])
    def test_variance(self, function, sigma_w2):
        with pytest.raises(ValueError, match=r"sigma_w2 must be in \(0, 1\)"):
            function(rows(3, 2), sigma_w2)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_rows_that_are_not_finite_are_named(self, function, bad):
        X = rows(30, 2)
        X[17, 1] = bad
        with pytest.raises(ValueError, match=r"row 17 .*1 such"):
            function(X, 0.1)

    @pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (0, 3), (3, 0)])
    def test_shape(self, function, shape):
        with pytest.raises(ValueError, match=r"X must be \(N, d\)"):
            function(torch.zeros(shape), 0.1)

    @pytest.mark.parametrize(
        "X", [torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2, dtype=torch.float16)]
    )
    def test_dtype(self, function, X):
        with pytest.raises(TypeError, match="float32 or float64"):
            function(X, 0.1)

    def test_arrays(self, function):
        with pytest.raises(TypeError, match=r"torch\.Tensor"):
            function(np.ones((2, 2)), 0.1)

    @pytest.mark.parametrize("depth", [0, -1, 1.5, True])
    def test_depth(self, function, depth):
        with pytest.raises(ValueError, match="depth must be a positive"):
            function(rows(3, 2), 0.1, depth)


@pytest.mark.parametrize("function", [population_gram, population_tangent_kernel])
def test_refuses_second_rows_unlike_the_first(function):
    with pytest.raises(ValueError, match="X2 must have X's columns"):
        function(rows(3, 2), 0.1, X2=rows(3, 4))
    with pytest.raises(ValueError, match="X2 must have X's columns"):
        function(rows(3, 2), 0.1, X2=rows(3, 2).float())
    bad = rows(3, 2)
    bad[1] = math.nan
    with pytest.raises(ValueError, match="X2 must have rows of finite norm: row 1"):
        function(rows(3, 2), 0.1, X2=bad)
