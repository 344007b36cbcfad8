"""H v = J(Jᵀ v) is the product with the dense kernel, and products find what the matrix has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import nn

import equipoise as eq
from equipoise.kernels import NotConverged, operator, tangent_kernel, tangent_operator


def rows(N, d=3, seed=0):
    return torch.randn(N, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def network(kind, outputs=1):
    options = {"outputs": outputs, "dtype": torch.float64, "generator": torch.Generator().manual_seed(1)}
    torch.manual_seed(0)
    return {
        "gaussian": lambda: eq.GaussianReLU(3, 6, **options),
        "monotone": lambda: eq.Monotone(3, 6, **options),
        "scaled": lambda: eq.ScaledReLU(3, 6, **options),
        "linear": lambda: eq.LinearEquilibrium(3, **options),
        "opteq": lambda: eq.OptEq(3, 5, 6, **options),
        "module": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double(),
    }[kind]()


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", ["gaussian", "monotone", "scaled", "linear", "opteq", "module"])
def test_a_product_is_that_of_the_matrix(kind, outputs, monkeypatch):
    monkeypatch.setattr(operator, "ROWS", 4)
    net, X, X2 = network(kind, outputs), rows(9), rows(5, seed=2)
    for other in (None, X2):
        dense, H = tangent_kernel(net, X, other).matrix.numpy(), tangent_operator(net, X, other)
        assert isinstance(H, LinearOperator)
        assert H.shape == dense.shape
        v = np.random.default_rng(0).normal(size=(H.shape[1], 2))
        np.testing.assert_allclose(H @ v, dense @ v, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(H.T @ (dense @ v), dense.T @ (dense @ v), rtol=1e-10, atol=1e-9)
    H = tangent_operator(net, X)
    np.testing.assert_allclose(H.diagonal, tangent_kernel(net, X).matrix.diagonal(), rtol=1e-12)


def test_ends_of_the_spectrum_are_found_by_products():
    net, X = network("gaussian"), rows(30)
    H, values = tangent_operator(net, X), tangent_kernel(net, X).eigenvalues()
    chance = torch.Generator().manual_seed(0)
    top, least = H.lambda_max(30, chance), H.lambda_min(30, chance)  # as many as the dimension: exact
    assert top.value == pytest.approx(float(values[-1]), rel=1e-9)
    assert least.value == pytest.approx(float(values[0]), rel=1e-6)
    few = H.lambda_min(8, chance)
    assert few.value >= float(values[0])  # an estimate, on the flattering side
    assert few.products == 8
    assert eigsh(H, 1, which="LA", return_eigenvectors=False)[0] == pytest.approx(float(values[-1]))


@pytest.mark.parametrize("landmarks", [0, 12])
def test_kernel_regression_by_products_is_that_of_the_matrix(landmarks):
    net, X, y = network("opteq", 2), rows(25), rows(25, 2, seed=3)
    H, K = tangent_operator(net, X), tangent_kernel(net, X).matrix
    found = H.regression(y, ridge=0.1, landmarks=landmarks, generator=torch.Generator().manual_seed(0))
    exact = torch.linalg.solve(K + 0.1 * torch.eye(50, dtype=torch.float64), y.reshape(-1))
    torch.testing.assert_close(found.alpha, exact, rtol=1e-6, atol=1e-6)
    assert found.residual <= 1e-7
    new = rows(6, seed=4)
    predicted = tangent_operator(net, new, X) @ found.alpha.numpy()
    np.testing.assert_allclose(predicted, tangent_kernel(net, new, X).matrix @ exact, rtol=1e-5, atol=1e-6)


def test_landmarks_save_products():
    X = rows(80) * torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    H, y = tangent_operator(network("gaussian"), X), rows(80, 1, seed=3)
    plain = H.regression(y, ridge=1e-2)
    helped = H.regression(y, ridge=1e-2, landmarks=40, generator=torch.Generator().manual_seed(0))
    assert helped.products < plain.products / 2


@pytest.mark.parametrize("landmarks", [3, 10, 25])
def test_the_error_of_nystrom_is_the_trace_that_is_left_and_bounds_the_norm(landmarks):
    net, X = network("monotone", 2), rows(25)
    K = tangent_kernel(net, X).matrix
    found = tangent_operator(net, X).nystrom(landmarks, torch.Generator().manual_seed(0))
    left = K - found.factor @ found.factor.T
    assert found.error == pytest.approx(float(left.trace()), abs=1e-9 * found.trace)
    assert float(torch.linalg.matrix_norm(left, 2)) <= found.error + 1e-12 * found.trace
    assert found.trace == pytest.approx(float(K.trace()))
    assert (found.error < 1e-9 * found.trace) == (landmarks == 25)


def test_what_cannot_be_is_said():
    H = tangent_operator(network("gaussian"), rows(30))
    with pytest.raises(NotConverged, match=r"relative residual of 1e-08\. It is at .* products: allow more"):
        H.regression(rows(30, 1), ridge=1e-6, steps=2)
    with pytest.raises(ValueError, match=r"y must have 30 numbers\. Got shape \(29,\)"):
        H.regression(torch.zeros(29), ridge=1.0)
    with pytest.raises(ValueError, match="ridge must be a finite number > 0"):
        H.regression(torch.zeros(30), ridge=0.0)
    with pytest.raises(ValueError, match=r"a square kernel is needed .*\(30, 4\)"):
        tangent_operator(network("gaussian"), rows(30), rows(4)).lambda_min()
