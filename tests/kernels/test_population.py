"""The infinite-width kernels of ling2023 against their definition, exact arithmetic and drawn networks."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from equipoise.kernels import population
from equipoise.kernels.population import (
    dual_relu,
    dual_relu_derivative,
    population_gram,
    population_lambda_min,
    population_tangent_kernel,
)
from equipoise.kernels.width import width_convergence

DTYPES = [torch.float32, torch.float64]
VARIANCES = [
    1e-300,
    1e-9,
    1e-3,
    0.08,
    0.3,
    0.5,
    0.8,
    0.9,
    0.95,
    0.9501,
    0.99,
    0.999,
    1 - 1e-6,
    1 - 1e-9,
    1 - 2**-53,
]


def rows(N, d, seed=0, dtype=torch.float64, spread=0.0):
    """N random rows of norm √d times exp(spread · normal)."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(N, d, dtype=torch.float64, generator=generator)
    scale = torch.exp(spread * torch.randn(N, 1, dtype=torch.float64, generator=generator))
    return (X / X.norm(dim=1, keepdim=True) * math.sqrt(d) * scale).to(dtype)


def twice_expected_product(a, b, r):
    """2 E[relu(u) relu(v)], (u, v) ~ N(0, [[a, r], [r, b]]), by quadrature over u of E[relu(v) | u]."""
    spread = math.sqrt(max(b - r * r / a, 0))

    def integrand(u):
        mean = r * u / a
        inner = mean * norm.cdf(mean / spread) + spread * norm.pdf(mean / spread) if spread else max(mean, 0)
        return u * inner * math.exp(-u * u / (2 * a)) / math.sqrt(2 * math.pi * a)

    return 2 * quad(integrand, 0, 12 * math.sqrt(a), epsabs=1e-13, limit=200)[0]


def cosine_and_dual(theta, sigma_w2):
    """(c, Q(cosθ)) with cosθ = σ_w² Q + (1−σ_w²) c, in 50 digits: the inverse is explicit."""
    with mpmath.workdps(50):
        v, theta = mpmath.mpf(sigma_w2), mpmath.mpf(theta)
        Q = (mpmath.sin(theta) + (mpmath.pi - theta) * mpmath.cos(theta)) / mpmath.pi
        return (mpmath.cos(theta) - v * Q) / (1 - v), Q


def drawn_kernel_blocks(X, sigma_w2, depth, m, generator):
    """Tangent-kernel blocks, by autograd, of one network of `depth` tied layers, over their powers of m."""
    N, d = X.shape
    normal = lambda *shape: torch.randn(*shape, dtype=X.dtype, generator=generator)
    W = (normal(m, m) * math.sqrt(2 * sigma_w2 / m)).requires_grad_()
    U = (normal(m, d) * math.sqrt(2 / d)).requires_grad_()
    a = (normal(m) / math.sqrt(m)).requires_grad_()
    Z = torch.zeros(N, m, dtype=X.dtype)
    for _ in range(depth):
        Z = torch.relu(Z @ W.T + X @ U.T)
    grads = [torch.autograd.grad(y, (a, W, U), retain_graph=True) for y in Z @ a]
    blocks = [torch.stack([g.flatten() for g in of_block]) for of_block in zip(*grads, strict=True)]
    return torch.stack([J @ J.T / power for J, power in zip(blocks, (m, m, 1), strict=True)])  # (3, N, N)


class TestDualActivation:
    @pytest.mark.parametrize("x", [-1.0, -0.999, -0.6, 0.0, 0.3, 0.95, 1.0])
    def test_is_the_expected_product(self, x):
        assert dual_relu(torch.tensor(x, dtype=torch.float64)).item() == pytest.approx(
            twice_expected_product(1, 1, x), abs=1e-9
        )

    def test_has_relative_accuracy_up_to_both_ends(self):
        t = np.concatenate([10.0 ** -np.arange(1, 16), np.linspace(0.01, 1, 60)])
        x = np.concatenate([-1 + t, 1 - t])
        with mpmath.workdps(60):
            exact = []
            for value in x:
                theta = mpmath.acos(mpmath.mpf(float(value)))
                exact.append(float((mpmath.sin(theta) + (mpmath.pi - theta) * mpmath.cos(theta)) / mpmath.pi))
        torch.testing.assert_close(
            dual_relu(torch.from_numpy(x)), torch.tensor(exact, dtype=torch.float64), rtol=2e-14, atol=0
        )

    def test_values_and_slopes_at_the_ends_and_at_zero(self):
        x = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
        torch.testing.assert_close(dual_relu(x), torch.tensor([0, 1 / math.pi, 1], dtype=torch.float64))
        torch.testing.assert_close(dual_relu_derivative(x), torch.tensor([0, 0.5, 1], dtype=torch.float64))

    def test_derivative_is_the_slope(self):
        x, h = torch.linspace(-0.98, 0.98, 50, dtype=torch.float64), 1e-5
        slope = (dual_relu(x + h) - dual_relu(x - h)) / (2 * h)
        torch.testing.assert_close(dual_relu_derivative(x), slope, rtol=0, atol=1e-8)

    @pytest.mark.parametrize("x", [1.0000001, -2.0, math.nan])
    @pytest.mark.parametrize("function", [dual_relu, dual_relu_derivative])
    def test_refuses_what_is_no_correlation(self, function, x):
        with pytest.raises(ValueError, match=r"in \[-1, 1\]"):
            function(torch.tensor([0.0, x], dtype=torch.float64))


class TestGram:
    def test_recursion_is_definition_1_for_rows_of_any_norm(self):
        X, v = rows(3, 4, spread=0.7), 0.3
        C = (X @ X.T / 4).tolist()
        K = np.zeros((3, 3))
        for depth in range(1, 4):
            L = v * K + np.array(C)
            K = np.array(
                [[twice_expected_product(L[i, i], L[j, j], L[i, j]) for j in range(3)] for i in range(3)]
            )
            torch.testing.assert_close(
                population_gram(X, v, depth), torch.from_numpy(K), rtol=1e-8, atol=1e-8
            )

    def test_recursion_of_lemma_3(self):
        X, v, depth = rows(6, 5), 0.08, 4
        C = (X @ X.T / 5).clamp(-1, 1)
        x = C
        for l in range(2, depth + 1):
            rho = (1 - v**l) / (1 - v)
            x = (1 - 1 / rho) * dual_relu(x) + C / rho
        expected = (1 - v**depth) / (1 - v) * dual_relu(x)
        torch.testing.assert_close(population_gram(X, v, depth), expected, rtol=0, atol=1e-14)

    @given(st.floats(1e-6, 0.9), st.integers(0, 10**6))
    @settings(max_examples=25)
    def test_limit_is_that_of_the_recursion(self, sigma_w2, seed):
        X = rows(5, 3, seed, spread=0.3)
        depth = 2 + math.ceil(-38 / math.log(sigma_w2))
        limit, deep = population_gram(X, sigma_w2), population_gram(X, sigma_w2, depth)
        torch.testing.assert_close(limit, deep, rtol=0, atol=2e-14 * limit.max().item())

    def test_layers_approach_the_limit_at_the_rate_of_theorem_3(self):
        X, v = rows(8, 8), 0.08
        K = population_gram(X, v)
        gaps = [(K - population_gram(X, v, l)).norm().item() for l in range(1, 8)]
        assert all(gap <= 2 * 8 * l * v**l / (1 - v) for l, gap in enumerate(gaps, start=1))
        assert gaps[6] < 1e-6 * gaps[0]

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("sigma_w2", VARIANCES)
    def test_limit_is_exact_for_every_variance_and_angle(self, sigma_w2, dtype):
        small = [10.0 ** (-k / 4) for k in range(-1, 60)]
        pairs = [cosine_and_dual(theta, sigma_w2) for theta in small + [math.pi - theta for theta in small]]
        pairs = [(c, Q) for c, Q in pairs if -1 <= c <= 1]
        assert len(pairs) > 30
        c = torch.tensor([float(c) for c, _ in pairs], dtype=torch.float64)
        sine = torch.tensor([float(mpmath.sqrt((1 - c) * (1 + c))) for c, _ in pairs], dtype=torch.float64)
        X = math.sqrt(2) * torch.tensor([[1.0, 0.0]], dtype=dtype)
        X2 = math.sqrt(2) * torch.stack([c, sine], 1).to(dtype)
        Q = population_gram(X, sigma_w2, X2=X2)[0].double() * (1 - sigma_w2)
        exact = torch.tensor([float(Q) for _, Q in pairs], dtype=torch.float64)
        assert (Q - exact).abs().max() <= 12 * torch.finfo(dtype).eps

    @given(st.floats(1e-6, 1 - 1e-6), st.integers(0, 10**6), st.integers(1, 6), st.sampled_from(DTYPES))
    @settings(max_examples=40)
    def test_solves_its_equation_and_is_a_gram_matrix(self, sigma_w2, seed, d, dtype):
        X = rows(7, d, seed, dtype, spread=0.5)
        X[5], X[6] = -2 * X[0], 3 * X[0]  # antipodal and parallel
        eps = torch.finfo(dtype).eps
        K = population_gram(X, sigma_w2)
        s = X.double().norm(dim=1) / math.sqrt(d)
        unit = X.double() / X.double().norm(dim=1, keepdim=True)
        c = (unit @ unit.T).clamp(-1, 1)
        Q = K.double() * (1 - sigma_w2) / (s[:, None] * s)
        torch.testing.assert_close(Q.diagonal(), torch.ones(7, dtype=torch.float64), rtol=8 * eps, atol=0)
        x = (sigma_w2 * Q + (1 - sigma_w2) * c).clamp(-1, 1)
        torch.testing.assert_close(dual_relu(x), Q, rtol=0, atol=20 * eps)
        assert torch.equal(K, K.T)
        assert torch.linalg.eigvalsh(Q)[0] >= -50 * eps
        assert (Q >= -4 * eps).all()

    def test_rows_scale_the_matrix(self):
        X, s = rows(6, 4), torch.tensor([0.0, 1e-150, 0.5, 1.0, 3.0, 1e100], dtype=torch.float64)
        K = population_gram(X, 0.2)
        torch.testing.assert_close(
            population_gram(s[:, None] * X, 0.2), s[:, None] * s * K, rtol=1e-14, atol=0
        )
        torch.testing.assert_close(
            population_gram(s[2:, None] * X[2:], 0.2, 3),
            s[2:, None] * s[2:] * population_gram(X, 0.2, 3)[2:, 2:],
        )

    @pytest.mark.parametrize("depth", [2, 30])
    def test_is_the_mean_of_drawn_networks_with_rows_of_any_norm(self, depth):
        X, v, m, draws = rows(3, 4, seed=3, spread=0.6), 0.3, 400, 40
        generator = torch.Generator().manual_seed(0)
        G = torch.stack([drawn_kernel_blocks(X, v, depth, m, generator)[0] for _ in range(draws)])
        error, spread = G.mean(0) - population_gram(X, v, depth), G.std(0) / math.sqrt(draws)
        scale = population_gram(X, v, depth).diagonal().sqrt()
        assert (spread / (scale[:, None] * scale)).max() < 0.03
        assert (error.abs() <= 4 * spread + 5 / m * scale[:, None] * scale).all()

    @pytest.mark.parametrize("depth", [None, 1, 3])
    @pytest.mark.parametrize("sigma_w2", [0.08, 0.97])
    def test_cross_gram_agrees_over_many_blocks(self, sigma_w2, depth):
        X = rows(700, 5, spread=0.2)
        K = population_gram(X, sigma_w2, depth)
        assert torch.equal(K, K.T)
        torch.testing.assert_close(population_gram(X, sigma_w2, depth, X2=X), K, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(
            population_gram(X[:9], sigma_w2, depth, X2=X[5:405]), K[:9, 5:405], rtol=1e-13, atol=1e-13
        )

    @pytest.mark.parametrize("depth", [None, 4])
    def test_float32_follows_float64(self, depth):
        X = rows(50, 6, dtype=torch.float32)
        K = population_gram(X, 0.08, depth)
        assert K.dtype == torch.float32
        torch.testing.assert_close(K.double(), population_gram(X.double(), 0.08, depth), rtol=0, atol=1e-6)


class TestLambdaMin:
    def test_orthogonal_rows(self):
        X = 7**0.5 * torch.eye(7, dtype=torch.float64)
        assert population_lambda_min(X, 0.08) == pytest.approx(0.726424415621, abs=1e-12)
        assert population_lambda_min(X.float(), 0.08) == pytest.approx(0.726424415621, abs=1e-6)

    def test_first_layer_of_orthogonal_rows(self):
        assert population_lambda_min(2 * torch.eye(4), 0.08, depth=1) == pytest.approx(
            1 - 1 / math.pi, abs=1e-6
        )

    def test_equal_rows_give_zero_and_others_do_not(self):
        X = rows(6, 4)
        assert population_lambda_min(X, 0.08) > 1e-3
        X[4] = X[1]
        assert abs(population_lambda_min(X, 0.08)) < 1e-14
        X[4] = -X[1]
        assert population_lambda_min(X, 0.08) > 1e-3


class TestTangentKernel:
    @pytest.mark.parametrize("depth", [3, None])
    def test_blocks_are_the_means_of_drawn_networks(self, depth):
        X, v, m, draws = rows(3, 4, seed=1, spread=0.4), 0.3, 500, 40
        generator = torch.Generator().manual_seed(1)
        blocks = torch.stack([drawn_kernel_blocks(X, v, depth or 24, m, generator) for _ in range(draws)])
        limits = torch.stack([*population_tangent_kernel(X, v, depth).blocks.values()])
        spread = blocks.std(0) / math.sqrt(draws)
        scale = limits.diagonal(dim1=1, dim2=2).sqrt()
        scale = scale[:, :, None] * scale[:, None]
        assert (spread / scale).max() < 0.05
        assert ((blocks.mean(0) - limits).abs() <= 4 * spread + 5 / m * scale).all()

    def test_equilibrium_blocks_in_closed_form(self):
        X, v = rows(5, 3, spread=0.3), 0.2
        K = population_gram(X, v)
        s = K.diagonal().sqrt()
        x = v * K / (s[:, None] * s) + (1 - v) * (X @ X.T) / (X.norm(dim=1)[:, None] * X.norm(dim=1))
        x.fill_diagonal_(1)
        B = torch.zeros_like(K)
        for _ in range(60):  # V = D ∘ (1aᵀ + V W) in the mean
            B = dual_relu_derivative(x) / 2 * (1 + 2 * v * B)
        kernel = population_tangent_kernel(X, v)
        torch.testing.assert_close(kernel.blocks["a"], K, rtol=0, atol=1e-14)
        torch.testing.assert_close(kernel.blocks["W"], K * B)
        torch.testing.assert_close(kernel.blocks["U"], X @ X.T * B)
        torch.testing.assert_close(kernel.at_width(50), 50 * (K + K * B) + X @ X.T * B)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_diagonal_is_exact(self, dtype):
        kernel = population_tangent_kernel(rows(200, 7, dtype=dtype, spread=0.3), 0.2)
        ratio = kernel.blocks["W"].diagonal() / kernel.blocks["a"].diagonal()  # B_ii = (1/2)/(1−σ_w²)
        torch.testing.assert_close(
            ratio, torch.full_like(ratio, 0.625), rtol=4 * torch.finfo(dtype).eps, atol=0
        )

    def test_one_layer(self):
        X = rows(5, 3, spread=0.3)
        kernel = population_tangent_kernel(X, 0.2, depth=1)
        cosine = (X @ X.T / (X.norm(dim=1)[:, None] * X.norm(dim=1))).clamp(-1, 1).fill_diagonal_(1)
        assert (kernel.blocks["W"] == 0).all()
        torch.testing.assert_close(kernel.blocks["U"], X @ X.T * dual_relu_derivative(cosine) / 2)

    @given(st.floats(0.01, 0.9), st.integers(0, 10**6))
    @settings(max_examples=15)
    def test_deep_networks_reach_the_equilibrium(self, sigma_w2, seed):
        X = rows(4, 3, seed)
        depth = 10 + math.ceil(-45 / math.log(sigma_w2))
        limit, deep = population_tangent_kernel(X, sigma_w2), population_tangent_kernel(X, sigma_w2, depth)
        for name, block in limit.blocks.items():
            torch.testing.assert_close(deep.blocks[name], block, rtol=1e-7, atol=1e-7)
            assert torch.linalg.eigvalsh(block)[0] >= -1e-12 * block.max()

    def test_cross_blocks_and_float32(self):
        X = rows(30, 4, spread=0.2)
        total = population_tangent_kernel(X, 0.1)
        cross = population_tangent_kernel(X[:7], 0.1, X2=X[7:])
        single = population_tangent_kernel(X.float(), 0.1)
        for name, block in total.blocks.items():
            torch.testing.assert_close(cross.blocks[name], block[:7, 7:], rtol=1e-12, atol=1e-12)
            assert single.blocks[name].dtype == torch.float32
            torch.testing.assert_close(single.blocks[name].double(), block, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def study():
    X = 5**0.5 * torch.eye(5, dtype=torch.float64)
    return width_convergence(X, 0.08, [100, 200, 400, 800], 12, torch.Generator().manual_seed(0))


class TestWidths:
    def test_error_falls_like_one_over_the_root_of_the_width(self, study):
        assert study.slope == pytest.approx(-0.5, abs=0.2)
        by_layer = np.mean(study.layer_errors, axis=1)  # (widths, layers)
        assert (by_layer[-1] < by_layer[0] / 2).all()

    def test_error_at_a_width_does_not_fall_with_depth(self, study):
        by_layer = np.mean(study.layer_errors, axis=1)
        assert (by_layer[:, -1] > 0.5 * by_layer[:, 0]).all()

    def test_theorem_4(self, study):
        assert study.decay == pytest.approx(0.29, abs=0.05)
        assert study.decay < 2 * math.sqrt(2 * 0.08)

    def test_theorem_2(self, study):
        assert study.lambda_star == pytest.approx(0.726424415621, abs=1e-11)
        assert study.theorem_2[-1] >= 0.9
        ratios = np.array(study.lambda_0)[-1] / 800
        assert (np.abs(ratios - study.lambda_star) < 0.25).all()

    def test_is_plain_numbers_and_repeats_from_its_generator(self, study):
        X = 5**0.5 * torch.eye(5)
        again = width_convergence(X, 0.08, [20], 3, torch.Generator().manual_seed(4), layers=2)
        assert again == width_convergence(X, 0.08, [20], 3, torch.Generator().manual_seed(4), layers=2)
        assert np.shape(again.gram_errors) == np.shape(again.lambda_0) == (1, 3)
        assert np.shape(again.layer_errors) == np.shape(again.layer_gaps) == (1, 3, 2)
        assert isinstance(study.gram_errors[0][0], float)
        with pytest.raises(ValueError, match="two widths"):
            _ = again.slope

    def test_a_network_without_equilibrium_is_named(self):
        with pytest.raises(ArithmeticError, match=r"width 2 has no equilibrium.*smaller sigma_w2"):
            width_convergence(rows(3, 3), 0.99, [2], 60, torch.Generator().manual_seed(0))

    @pytest.mark.parametrize(
        ("widths", "draws", "layers"), [([], 1, 2), ([0], 1, 2), ([5], 0, 2), ([5], 1, 1)]
    )
    def test_refuses_empty_studies(self, widths, draws, layers):
        with pytest.raises(ValueError, match="widths must be"):
            width_convergence(rows(3, 3), 0.1, widths, draws, torch.Generator(), layers)


@pytest.mark.parametrize("size", [1e-170, 1e-300, 1e170])
def test_directions_of_rows_of_every_size(size):
    X = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    directions, sizes = population._directions(X, "X")
    scaled, found = population._directions(size * X, "X")
    torch.testing.assert_close(scaled, directions, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found / size, sizes, rtol=1e-12, atol=0)
