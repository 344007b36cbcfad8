"""Bounds of singular and eigenvalues: known spectra, edges, and witnesses that lie."""

import math

import pytest
import torch

from equipoise import linalg
from exact_spectra import eigenvalues_above, singular_values_above


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_known_spectrum_is_enclosed_tightly():
    M = torch.diag(torch.tensor([4.0, 2.0, 0.5], dtype=torch.float64))
    for shape in ((3, 3), (5, 3), (3, 7)):
        padded = torch.zeros(*shape, dtype=torch.float64)
        padded[:3, :3] = M
        b = linalg.singular_bounds(padded)
        assert 4.0 in b.norm
        assert 0.5 in b.sigma_min
        assert b.norm_upper - b.norm_lower < 1e-13
        assert b.sigma_min_upper - b.sigma_min_lower < 1e-13
        assert 4.0 < linalg.norm_upper(padded) < 4.0 + 1e-13
        assert 4.0 - 1e-13 < linalg.norm_lower(padded) < 4.0
        assert 0.5 - 1e-13 < linalg.sigma_min_lower(padded) < 0.5
    assert 2.0 < linalg.inverse_norm_upper(M) < 2.0 + 1e-12
    assert -4.0 - 1e-13 < linalg.lambda_min_lower(-M) < -4.0
    assert 4.0 < linalg.lambda_max_upper(M) < 4.0 + 1e-13


def test_norm_one_is_not_proved_below_one():
    Q = torch.linalg.qr(draw(6, 6)).Q
    for M in (torch.eye(6).double(), Q, torch.ones(1, 1)):
        assert linalg.norm_upper(M) > 1
        assert linalg.singular_bounds(M).norm_upper > 1
        assert not linalg.proves_norm_below(M, 1.0)


def test_wide_matrices_of_realistic_size():
    M = draw(60, 200)
    s = torch.linalg.svdvals(M)
    b = linalg.singular_bounds(M)
    assert b.norm_upper < s[0].item() * (1 + 1e-10)
    assert b.sigma_min_lower > s[-1].item() * (1 - 1e-9)
    assert linalg.norm_upper(M.mT) < s[0].item() * (1 + 1e-10)


def test_lambda_of_the_symmetric_part_of_any_matrix():
    W = draw(5, 5)
    lowest = torch.linalg.eigvalsh((W + W.mT) / 2)[0].item()
    assert lowest - 1e-12 < linalg.lambda_min_lower(W) < lowest + 1e-15
    margin = 1 - torch.linalg.eigvalsh((W + W.mT) / 2)[-1].item()
    assert margin - 1e-12 < linalg.symmetric_part_margin_lower(W) < margin + 1e-15
    skew = W - W.mT
    assert 1 - 1e-12 < linalg.symmetric_part_margin_lower(100 * skew) <= 1


def test_scales_carry_over():
    M = draw(4, 6)
    reference = linalg.norm_upper(M)
    for e in (-1000, -300, 40, 300, 1000):
        assert linalg.norm_upper(M * 2.0**e) == pytest.approx(reference * 2.0**e, rel=1e-12)
        b = linalg.singular_bounds(M * 2.0**e)
        assert b.norm_upper == pytest.approx(reference * 2.0**e, rel=1e-12)
        G = M @ M.mT
        assert linalg.lambda_max_upper((G + G.mT) * 2.0 ** (e // 2)) > 0


def test_nothing_is_proved_of_what_is_not_finite():
    for bad in (math.nan, math.inf, -math.inf):
        M = draw(4, 4)
        M[2, 1] = bad
        b = linalg.singular_bounds(M)
        assert (
            b.norm_upper
            == b.sigma_min_upper
            == linalg.norm_upper(M)
            == linalg.inverse_norm_upper(M)
            == math.inf
        )
        assert b.norm_lower == b.sigma_min_lower == linalg.norm_lower(M) == linalg.sigma_min_lower(M) == 0.0
        assert linalg.lambda_min_lower(M) == linalg.symmetric_part_margin_lower(M) == -math.inf
        assert linalg.lambda_max_upper(M) == math.inf


def test_empty_and_zero_matrices():
    for empty in (torch.empty(0, 4), torch.empty(4, 0), torch.empty(0, 0)):
        assert linalg.norm_upper(empty) == linalg.singular_bounds(empty).norm_upper == 0.0
        assert linalg.norm_lower(empty) == linalg.sigma_min_lower(empty) == 0.0
        assert linalg.singular_bounds(empty).sigma_min_upper == math.inf
    assert linalg.lambda_min_lower(torch.empty(0, 0)) == -math.inf
    assert linalg.lambda_max_upper(torch.empty(0, 0)) == math.inf
    assert linalg.inverse_norm_upper(torch.empty(0, 0)) == math.inf
    zero = torch.zeros(3, 2)
    b = linalg.singular_bounds(zero)
    assert b.norm == b.sigma_min == linalg.Interval(0)
    assert linalg.norm_upper(zero) == linalg.norm_lower(zero) == 0.0
    assert 1 - 1e-15 < linalg.symmetric_part_margin_lower(torch.zeros(3, 3)) <= 1


def test_a_singular_matrix_is_never_proved_regular():
    M = torch.ones(5, 5, dtype=torch.float64)
    assert linalg.sigma_min_lower(M) == 0.0
    assert linalg.inverse_norm_upper(M) == math.inf
    assert linalg.lambda_min_lower(M) <= 0


def test_shapes_are_checked():
    for square in (
        linalg.lambda_min_lower,
        linalg.lambda_max_upper,
        linalg.inverse_norm_upper,
        linalg.symmetric_part_margin_lower,
    ):
        with pytest.raises(ValueError, match="square"):
            square(torch.ones(2, 3))
    for function in (linalg.norm_upper, linalg.norm_lower, linalg.singular_bounds):
        with pytest.raises(ValueError, match="2-dimensional"):
            function(torch.ones(3))


def test_a_failed_factorisation_proves_nothing(monkeypatch):
    def fails(*args, **kwargs):
        raise torch.linalg.LinAlgError("did not converge")

    for name in ("svd", "eigvalsh", "eigh"):
        monkeypatch.setattr(torch.linalg, name, fails)
    M = draw(3, 3)
    b = linalg.singular_bounds(M)
    assert (b.norm_upper, b.norm_lower, b.sigma_min_lower) == (math.inf, 0.0, 0.0)
    assert linalg.norm_upper(M) == math.inf
    assert linalg.norm_lower(M) == 0.0
    assert linalg.lambda_min_lower(M) == -math.inf


# ---- witnesses are not trusted: whatever a factorisation returns, no bound becomes false -----------------


def check_singular(M):
    b = linalg.singular_bounds(M)
    p = min(M.shape)
    for t, true in (
        (b.norm_upper, lambda c: c == 0),
        (linalg.norm_upper(M), lambda c: c == 0),
        (b.norm_lower, lambda c: c >= 1),
        (linalg.norm_lower(M), lambda c: c >= 1),
        (b.sigma_min_lower, lambda c: c == p),
        (linalg.gram_bounds(M).sigma_min_lower, lambda c: c == p),
        (b.sigma_min_upper, lambda c: c < p),
    ):
        if 0 < t < math.inf:
            assert true(singular_values_above(M, [t])[0])


LIES = {
    "noise": lambda x, g: x + 1e-6 * torch.randn(x.shape, generator=g, dtype=x.dtype),
    "relative noise": lambda x, g: x * (1 + 1e-3 * torch.randn(x.shape, generator=g, dtype=x.dtype)),
    "another matrix": lambda x, g: torch.randn(x.shape, generator=g, dtype=x.dtype),
    "zeros": lambda x, g: torch.zeros_like(x),
    "flipped": lambda x, g: x.flip(-1),
    "scaled": lambda x, g: 3 * x,
    "tiny": lambda x, g: 1e-200 * x,
    "huge": lambda x, g: 1e200 * x,
    "nan": lambda x, g: x * math.nan,
    "negative": lambda x, g: -x,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_factorisation_cannot_make_a_bound_false(lie, monkeypatch):
    g = torch.Generator().manual_seed(0)
    honest = {name: getattr(torch.linalg, name) for name in ("svd", "eigvalsh", "eigh", "cholesky_ex")}
    spoil = LIES[lie]

    def lies(name, part):
        def factorise(*args, **kwargs):
            result = honest[name](*args, **kwargs)
            if name == "eigvalsh":
                return spoil(result, g)
            fields = list(result)
            fields[part] = spoil(fields[part], g)
            return type(result)(fields)

        return factorise

    matrices = [draw(n, m, seed=n) for n, m in ((1, 1), (3, 3), (5, 2), (4, 7))]
    for name, part in (("svd", 0), ("svd", 1), ("svd", 2), ("eigvalsh", 0), ("eigh", 1), ("cholesky_ex", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(torch.linalg, name, lies(name, part))
            for M in matrices:
                check_singular(M)
                S = M @ M.mT
                S = torch.tril(S) + torch.tril(S, -1).mT
                low, high = linalg.lambda_min_lower(S), linalg.lambda_max_upper(S)
                if low > -math.inf:
                    assert eigenvalues_above(S, [low]) == [len(S)]
                if high < math.inf:
                    assert eigenvalues_above(S, [high]) == [0]


@pytest.mark.parametrize("side", [0, 2])
@pytest.mark.parametrize("c", [1.2, 0.8])
def test_factors_whose_errors_cancel_in_the_product_do_not_deceive(c, side, monkeypatch):
    honest = torch.linalg.svd

    def compensated(*args, **kwargs):  # (cU) diag(s/c) Vᵀ is M again, but s/c are not its singular values
        factors = list(honest(*args, **kwargs))
        factors[side], factors[1] = factors[side] * c, factors[1] / c
        return tuple(factors)

    monkeypatch.setattr(torch.linalg, "svd", compensated)
    for n, m in ((1, 1), (3, 3), (5, 2), (4, 7)):
        M = draw(n, m, seed=n)
        check_singular(M)
        assert linalg.singular_bounds(M).sigma_min_lower > 0


@pytest.mark.parametrize("lanes", [1, 4, 8, 16, 32, 64])
def test_products_that_vanish_in_the_gram_matrix_are_accounted_for(lanes):
    small = math.sqrt(0.9) * 2.0**-26.5  # its square is rounded away next to a one
    row = torch.tensor([[1.0] * lanes + [small] * 40 * lanes], dtype=torch.float64)
    assert singular_values_above(row, [linalg.norm_upper(row), linalg.sigma_min_lower(row)]) == [0, 1]
    assert singular_values_above(row, [linalg.gram_bounds(row).sigma_min_lower]) == [1]


def test_autocast_and_default_dtype_change_nothing():
    M = draw(6, 6)
    expected = linalg.singular_bounds(M), linalg.norm_upper(M)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (linalg.singular_bounds(M), linalg.norm_upper(M)) == expected
