"""Bounds without an SVD: thresholds, the Gram matrix, and a witness that outlives its matrix."""

import math

import pytest
import torch

from equipoise import linalg
from exact_spectra import singular_values_above


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(40, 40), (20, 90), (90, 20)])
def test_thresholds_are_decided_within_1e_8(shape):
    M = draw(*shape)
    s = torch.linalg.svdvals(M)
    top, bottom = s[0].item(), s[-1].item()
    assert linalg.proves_norm_below(M, top * (1 + 1e-8))
    assert not linalg.proves_norm_below(M, top * (1 - 1e-8))
    assert linalg.proves_sigma_min_above(M, bottom - 1e-8 * top)
    assert not linalg.proves_sigma_min_above(M, bottom + 1e-8 * top)
    assert linalg.proves_sigma_min_above(M, 0.0)
    for scale in (2.0**-600, 2.0**600):
        assert linalg.proves_norm_below(M * scale, top * (1 + 1e-8) * scale)
        assert linalg.proves_sigma_min_above(M * scale, (bottom - 1e-8 * top) * scale)


def test_thresholds_that_make_no_sense_are_not_proved():
    M = draw(3, 3)
    for t in (0.0, -1.0, math.nan):
        assert not linalg.proves_norm_below(M, t)
    for t in (-1.0, math.nan, math.inf):
        assert not linalg.proves_sigma_min_above(M, t)
    bad = M.clone()
    bad[0, 0] = math.nan
    assert not linalg.proves_norm_below(bad, 1e300)
    assert not linalg.proves_sigma_min_above(bad, 0.0)
    assert linalg.proves_norm_below(torch.empty(0, 3), 0.1)
    assert not linalg.proves_sigma_min_above(torch.empty(0, 3), 0.0)
    assert not linalg.proves_sigma_min_above(torch.ones(3, 3), 0.0)


def test_gram_bounds_are_as_sharp_as_an_svd_where_they_can_be():
    M = draw(30, 80)
    sharp, cheap = linalg.singular_bounds(M), linalg.gram_bounds(M)
    assert cheap.norm_upper < sharp.norm_lower * (1 + 1e-10)
    assert cheap.sigma_min_lower > sharp.sigma_min_upper * (1 - 1e-9)
    assert cheap.norm_lower <= sharp.norm_upper
    assert cheap.sigma_min_upper >= sharp.sigma_min_lower
    small = M.clone()
    small[0] = small[1] + 1e-12 * small[0]
    assert linalg.gram_bounds(small).sigma_min_lower == 0.0  # out of reach, and so it says
    assert linalg.singular_bounds(small).sigma_min_lower > 0.0


def test_a_witness_carries_over_to_matrices_near_it():
    Z = draw(6, 9)
    witness = linalg.SpectralWitness.of(Z)
    for size in (0.0, 1e-12, 1e-3, 0.3, 10.0):
        moved = Z + size * draw(6, 9, seed=1)
        b = witness.bounds(moved)
        assert singular_values_above(moved, [b.norm_upper, b.sigma_min_lower])[0] == 0
        assert b.sigma_min_lower == 0 or singular_values_above(moved, [b.sigma_min_lower]) == [6]
        if size <= 1e-3:
            drift = torch.linalg.matrix_norm(moved - Z).item()
            lost = witness.at_matrix.sigma_min_lower - b.sigma_min_lower
            assert drift * (1 - 1e-9) <= lost <= drift * (1 + 1e-9) + 1e-14
    assert witness.bounds(Z * math.nan).norm_upper == math.inf
    assert witness.bounds(Z * math.nan).sigma_min_lower == 0.0
    with pytest.raises(ValueError, match="shape"):
        witness.bounds(Z[:5])


def test_a_witness_of_small_numbers_holds_on_both_sides():
    small = 0.1 * torch.eye(3, dtype=torch.float64)
    b = linalg.SpectralWitness.of(small).bounds(1.5 * small)
    assert b.norm_lower <= 0.15 <= b.norm_upper
    assert b.sigma_min_lower <= 0.15 <= b.sigma_min_upper
    assert 0.099 < linalg.gram_bounds(small).norm_lower <= 0.1


def test_the_drift_of_a_witness_counts_the_rounding_of_a_difference():
    Z, moved, zero = draw(3, 3), draw(3, 3, seed=1), linalg.Interval(0.0)
    drift = linalg.SpectralWitness(Z, linalg.SingularBounds(zero, zero)).bounds(moved).norm_upper
    assert drift >= linalg.frobenius(moved - Z).hi * (1 + 2.0**-52)


def test_a_witness_is_not_changed_by_its_matrix():
    Z = draw(4, 4)
    witness, before = linalg.SpectralWitness.of(Z), linalg.singular_bounds(Z)
    Z *= 100  # as an optimiser does, in place
    b = witness.bounds(Z)
    assert b.norm_upper > 99 * before.norm_lower
    assert singular_values_above(Z, [b.norm_upper]) == [0]
