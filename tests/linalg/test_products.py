"""The trusted product: its error bound against exact rationals, and sums of non-negative numbers."""

import math
import subprocess
import sys
from fractions import Fraction

import pytest
import torch

from equipoise.linalg import (
    frobenius,
    frobenius_lower,
    frobenius_upper,
    gamma,
    inf_norm_upper,
    inflation,
    one_norm_upper,
    product_error,
    row_norms_upper,
    vector_norm_upper,
)
from exact_spectra import singular_values_above


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def exact(M):
    return [[Fraction(x) for x in row] for row in M.tolist()]


def exact_defect_squared(A, B, C):
    """‖C − AB‖_F² / p ≤ ‖C − AB‖₂², as a rational."""
    A, B, C = exact(A), exact(B), exact(C)
    total = Fraction(0)
    for i, row in enumerate(A):
        for j, column in enumerate(zip(*B, strict=True)):
            total += (C[i][j] - sum((a * b for a, b in zip(row, column, strict=True)), Fraction(0))) ** 2
    return total / min(len(C), len(C[0]))


@pytest.mark.parametrize("scale", [1.0, 1e150, 1e-150, 1e-160])
@pytest.mark.parametrize("seed", range(20))
def test_product_error_is_no_less_than_the_exact_defect(seed, scale):
    n, k, m = (1 + seed % 7, 1 + seed * 5 % 11, 1 + seed * 3 % 5)
    A, B = draw(n, k, seed=seed) * scale, draw(k, m, seed=seed + 100) * scale
    for C in (A @ B, A @ B + scale**2 * 1e-3 * draw(n, m, seed=seed + 200), torch.zeros(n, m).double()):
        bound = product_error(A, B, C)
        assert Fraction(bound) ** 2 >= exact_defect_squared(A, B, C)
    assert product_error(A, B, A @ B) < 1e-13 * scale**2 * n * m * k + 1e-322


def test_the_float_residual_alone_would_be_too_small():
    too_small = 0
    for seed in range(50):
        A, B = draw(4, 8, seed=seed), draw(8, 4, seed=seed + 100)
        C = A @ B  # fl(AB) itself: the computed residual is zero, the true one is not
        too_small += exact_defect_squared(A, B, C) > 0
        assert product_error(A, B, C) > 0
    assert too_small == 50


@pytest.mark.parametrize("shape", [(3, 40, 5), (40, 3, 2), (2, 5, 40)])
@pytest.mark.parametrize("sizes", [(100.0, 1.0), (1.0, 100.0), (1e-3, 1e-3)])
def test_product_error_is_its_printed_formula_in_rows_and_in_columns(shape, sizes):
    (n, k, m), (a, b) = shape, sizes
    A, B = a * draw(n, k), b * draw(k, m, seed=1)
    size = A.abs() @ B.abs()
    allowed = gamma(k + 4) * float(size.sum(1).amax() * size.sum(0).amax()) ** 0.5
    assert allowed * (1 - 1e-12) <= product_error(A, B, A @ B) <= allowed * (1 + 1e-10)
    C = A @ B + 1.0
    off = float(torch.full((n, m), 1.0).sum(1).amax() * n) ** 0.5
    assert product_error(A, B, C) >= off + 0.5 * allowed


def test_a_product_that_underflows_is_not_without_error():
    """t² is below every float, though neither factor is small: what is 1 in one meets a 0 of the other."""
    t = 2.0**-600
    A = torch.tensor([[1.0, t, 0.0]], dtype=torch.float64)
    B = torch.tensor([[0.0], [t], [1.0]], dtype=torch.float64)
    assert float(A @ B) == 0.0
    assert product_error(A, B, torch.zeros(1, 1).double()) > 0


def test_product_error_of_a_rank_one_defect_is_sharp():
    A, B = torch.eye(5).double(), draw(5, 5)
    C = B.clone()
    C[1, 2] += 0.5
    assert 0.5 < product_error(A, B, C) < 0.5 * (1 + 1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e300, 1e-300, 1e-320])
def test_frobenius_encloses_the_exact_norm(scale):
    for seed in range(20):
        M = draw(1 + seed % 5, 1 + seed % 7, seed=seed) * scale
        square = sum((x * x for row in exact(M) for x in row), Fraction(0))
        assert Fraction(frobenius_lower(M)) ** 2 <= square <= Fraction(frobenius_upper(M)) ** 2
        assert Fraction(vector_norm_upper(M.flatten())) ** 2 >= square
        if scale > 1e-310:
            assert frobenius(M).hi / frobenius(M).lo < 1 + 1e-13
            assert frobenius_lower(M) == frobenius(M).lo


@pytest.mark.parametrize("shape", [(1000, 1), (1, 1000), (300, 200)])
def test_frobenius_allows_for_a_rounding_of_every_term(shape):
    found = frobenius(draw(*shape))
    assert sum(shape) * 2.0**-53 <= found.hi / found.lo - 1 <= 8 * sum(shape) * 2.0**-53


@pytest.mark.parametrize("lanes", [1, 4, 8, 16, 32, 64])
def test_squares_that_vanish_in_long_sums_are_accounted_for(lanes):
    """Ones in every lane of a vectorised sum, then squares just below half an ulp: each is rounded away."""
    small = math.sqrt(0.9) * 2.0**-26.5
    v = torch.tensor(([1.0] * lanes + [small] * 15 * lanes) * 8, dtype=torch.float64)
    square = sum(Fraction(x) ** 2 for x in v.tolist())
    for M in (v, v[None], v[:, None], v.view(8, -1)):
        assert Fraction(frobenius_lower(M)) ** 2 <= square <= Fraction(frobenius_upper(M)) ** 2


def test_frobenius_of_any_shape():
    assert 3 in frobenius(torch.tensor(-3.0))
    assert 3 in frobenius(torch.ones(1, 3, 3))
    assert 3 in frobenius(torch.ones(9))


@pytest.mark.parametrize("scale", [1.0, 1e300, 1e-320])
def test_one_and_inf_norm_are_no_less_than_the_exact_sums(scale):
    for seed in range(20):
        M = draw(1 + seed % 5, 1 + seed % 7, seed=seed) * scale
        rows = [sum(map(abs, row)) for row in exact(M)]
        columns = [sum(map(abs, column)) for column in zip(*exact(M), strict=True)]
        assert (
            max(rows)
            <= Fraction(inf_norm_upper(M))
            <= max(rows) * (1 + Fraction(1, 10**13)) + Fraction(1e-323)
        )
        assert max(columns) <= Fraction(one_norm_upper(M))


@pytest.mark.parametrize("scale", [1e-320, 1e-308, 1e-170, 1.0, 1e170, 1e307])
def test_row_norms_are_no_less_than_the_exact_ones_whatever_their_size(scale):
    M = torch.randn(6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * scale
    M[1] *= 1e-150
    M[2, 1:] = 0
    M[3] = 0
    bounds = row_norms_upper(M)
    for row, bound in zip(M.tolist(), bounds.tolist(), strict=True):
        square = sum(Fraction(x) ** 2 for x in row)
        assert Fraction(bound) ** 2 >= square
        if square > Fraction(2.0**-1000) ** 2:
            assert Fraction(bound) ** 2 <= square * (1 + Fraction(1, 10**13))
    assert bounds[3] == 0


def test_row_norms_of_what_is_not_finite_are_infinite():
    M = torch.ones(4, 3, dtype=torch.float64)
    M[0, 0], M[1, 1], M[2] = math.nan, -math.inf, 1.7e308
    assert row_norms_upper(M).tolist()[:3] == [math.inf] * 3
    assert row_norms_upper(M[:, :0]).tolist() == [0.0] * 4


def test_nothing_is_proved_of_what_is_not_finite():
    for bad in (math.nan, math.inf, -math.inf):
        M = draw(3, 3)
        M[1, 1] = bad
        assert frobenius_upper(M) == inf_norm_upper(M) == one_norm_upper(M) == math.inf
        assert vector_norm_upper(M[1]) == math.inf
        assert frobenius_lower(M) == 0.0
        good = draw(3, 3)
        assert product_error(M, good, good) == product_error(good, M, good) == math.inf
        assert product_error(good, good, M) == math.inf
    huge = torch.full((2, 2), 1.7e308, dtype=torch.float64)
    assert frobenius_upper(huge) == inf_norm_upper(huge) == math.inf
    assert product_error(huge, huge, huge) == math.inf


def test_empty_and_zero():
    empty, zero = torch.empty(0, 3), torch.zeros(2, 3)
    assert frobenius_upper(empty) == inf_norm_upper(empty) == one_norm_upper(empty) == 0.0
    assert frobenius_upper(zero) == inf_norm_upper(zero) == frobenius_lower(zero) == 0.0
    assert product_error(torch.empty(2, 0), torch.empty(0, 3), torch.ones(2, 3)) >= math.sqrt(6)
    assert product_error(empty, torch.empty(3, 2), torch.empty(0, 2)) == 0.0


def test_shapes_and_dtypes_are_checked():
    with pytest.raises(TypeError, match="floating-point"):
        frobenius_upper(torch.ones(2, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match="floating-point"):
        frobenius_upper(torch.ones(2, 2, dtype=torch.complex128))
    with pytest.raises(TypeError, match="list"):
        frobenius_upper([[1.0]])
    with pytest.raises(ValueError, match="2-dimensional"):
        one_norm_upper(torch.ones(2))
    with pytest.raises(ValueError, match="product_error needs"):
        product_error(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 3))


def test_a_thread_that_flushes_subnormal_numbers_is_refused():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        for dtype in (torch.float16, torch.float32, torch.float64):
            with pytest.raises(RuntimeError, match="set_flush_denormal"):
                frobenius_upper(torch.ones(2, 2, dtype=dtype))
    finally:
        torch.set_flush_denormal(False)
    assert frobenius_upper(torch.ones(2, 2)) >= 2


def test_threads_of_the_pool_that_flush_subnormal_numbers_are_refused_where_it_matters():
    """They keep what was set when they began. In a process of its own, whose pool begins with flushing."""
    program = """
import torch
from equipoise.linalg import conv_norm_upper, frobenius, inf_norm_upper, norm_upper, row_norms_upper
from equipoise.linalg import singular_bounds
torch.set_num_threads(3)
torch.set_flush_denormal(True)
torch.ones(10**6, dtype=torch.float64).mul(2)
torch.set_flush_denormal(False)
small = torch.full((60_000, 4), 2.0**-1030, dtype=torch.float64)
narrow = torch.full((60_000, 4), 2.0**-140, dtype=torch.float32)
kernel = small[:9].reshape(2, 2, 3, 3)
flushed = bool((small * 2 == 0).any())
refused = 0
for bound, M in [(f, M) for f in (frobenius, inf_norm_upper, norm_upper, row_norms_upper, singular_bounds)
                 for M in (small, narrow)] + [(lambda K: conv_norm_upper(K, 8), kernel)]:
    try:
        bound(M)
    except RuntimeError as error:
        refused += "flushes" in str(error)
full = torch.full
for ndim in (1, 2):  # each of the two probes, the sum and the product, finds them without the other
    torch.full = lambda shape, x, **kwargs: full(shape, 1.0 if len(shape) == ndim else x, **kwargs)
    try:
        frobenius(small)
    except RuntimeError as error:
        refused += "flushes" in str(error)
print(flushed, refused, frobenius(torch.ones(60_000, 4)).hi >= 60_000**0.5 * 2)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    flushed, *found = ran.stdout.split()
    if flushed != "True":
        pytest.skip("threads of the pool do not keep the mode they began with")
    assert found == ["13", "True"]


def test_gamma_and_inflation_bound_what_they_say():
    u = Fraction(1, 2**53)
    for k in (1, 2, 3, 7, 100, 12345, 10**7):
        assert Fraction(gamma(k)) >= k * u / (1 - k * u)
        assert gamma(k) < 1.001 * k * 2.0**-53
        if k <= 12345:
            assert Fraction(inflation(k)) * (1 - u) ** k >= 1


def test_single_precision_is_read_exactly():
    M = draw(4, 4).float()
    assert frobenius_upper(M) == frobenius_upper(M.double())
    assert frobenius_upper(M.requires_grad_()) == frobenius_upper(M.double())
    assert singular_values_above(M, [frobenius_upper(M)]) == [0]
