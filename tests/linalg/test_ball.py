"""The rigorous tier: the same witnesses, residuals in balls; and the exact counts that judge everything."""

import builtins
import math
from itertools import pairwise

import pytest
import torch

from equipoise import linalg
from equipoise.linalg.ball import (
    lambda_min_lower_ball,
    norm_upper_ball,
    sigma_min_lower_ball,
)
from exact_spectra import eigenvalues_above, singular_values_above

flint = pytest.importorskip("flint")


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_counts_are_exact():
    M = torch.diag(torch.tensor([3.0, 2.0, 2.0, 0.0], dtype=torch.float64))
    below = lambda t: math.nextafter(t, 0.0)
    assert singular_values_above(M, [3.0, below(3.0), 2.0, below(2.0), 5e-324, 0.0]) == [0, 1, 1, 3, 3, 3]
    assert singular_values_above(M[:2], [1.0]) == singular_values_above(M[:2].mT, [1.0]) == [2]
    S = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert eigenvalues_above(S, [-1.5, -1.0, 0.0, 1.0]) == [2, 1, 1, 0]
    wide = torch.tensor([[1e300, 0.0], [0.0, 5e-324]], dtype=torch.float64)
    assert singular_values_above(wide, [1e300, 1e299, 5e-324, 0.0]) == [0, 1, 1, 2]
    with pytest.raises(ValueError, match="symmetric"):
        eigenvalues_above(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), [0.0])


def test_counts_agree_with_lapack_away_from_ties():
    for seed in range(20):
        M = draw(1 + seed % 6, 1 + seed % 4, seed=seed)
        s = torch.linalg.svdvals(M).tolist()
        between = [(a + b) / 2 for a, b in pairwise(s)]
        assert singular_values_above(M, between) == list(range(1, len(s)))


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e300, 1e-318])
def test_ball_bounds_hold_and_are_sharper_than_the_float_ones(scale):
    for seed in range(25):
        M = draw(1 + seed % 6, 1 + seed % 9, seed=seed) * scale
        p = min(M.shape)
        upper, lower = norm_upper_ball(M), sigma_min_lower_ball(M)
        assert singular_values_above(M, [upper, lower]) == [0, p] or (lower == 0 and scale < 1e-310)
        if scale > 1e-310:
            assert upper <= linalg.singular_bounds(M).norm_upper
            assert lower >= linalg.singular_bounds(M).sigma_min_lower
        if 1e-100 < scale < 1e100:
            S = torch.tril(M @ M.mT) + torch.tril(M @ M.mT, -1).mT
            assert eigenvalues_above(S, [lambda_min_lower_ball(S)]) == [len(S)]
            assert lambda_min_lower_ball(S) > linalg.lambda_min_lower(S) - 1e-12


def test_a_lying_witness_cannot_make_a_bound_false():
    M = draw(4, 6)
    U, s, Vt = torch.linalg.svd(M, full_matrices=False)
    for witness in (
        (U * 1.01, s, Vt), (U, s * 0.5, Vt), (U, -s, Vt), (U, s * 0, Vt), (U * 0, s, Vt),
        (U, s, draw(4, 6, seed=9)), (1.2 * U, s / 1.2, Vt), (0.8 * U, s / 0.8, Vt), (U, s / 1.2, 1.2 * Vt),
        (U, s / 0.8, 0.8 * Vt),
        (U * 1e200, s * 1e-250, Vt), (U.float(), s.float(), Vt.float()), (U * math.nan, s, Vt),
    ):  # fmt: skip
        upper, lower = norm_upper_ball(M, witness), sigma_min_lower_ball(M, witness)
        assert upper == math.inf or singular_values_above(M, [upper]) == [0]
        assert lower == 0 or singular_values_above(M, [lower]) == [4]
    S = M[:, :4] + M[:, :4].mT
    low, L = torch.linalg.eigvalsh(S)[0].item(), torch.eye(4).double()
    for tau in (low, low + 1.0, low - 1.0, -1e300, math.nan):
        bound = lambda_min_lower_ball(S, (tau, L))
        assert bound == -math.inf or eigenvalues_above(S, [bound]) == [4]


def test_a_truncated_witness_is_refused():
    M = draw(4, 1) @ draw(1, 6) + 1e-9 * draw(4, 6, seed=1)  # near rank one: the truncated residual is tiny
    U, s, Vt = torch.linalg.svd(M, full_matrices=False)
    with pytest.raises(ValueError, match="all 4 singular values"):
        sigma_min_lower_ball(M, (U[:, :1], s[:1], Vt[:1]))


def test_nothing_is_proved_of_what_is_not_finite_or_empty():
    M = draw(3, 3)
    M[0, 0] = math.inf
    assert (norm_upper_ball(M), sigma_min_lower_ball(M), lambda_min_lower_ball(M)) == (
        math.inf,
        0.0,
        -math.inf,
    )
    empty = torch.empty(0, 0)
    assert (norm_upper_ball(empty), sigma_min_lower_ball(empty)) == (0.0, 0.0)
    assert lambda_min_lower_ball(empty) == -math.inf


def test_the_precision_of_the_user_is_left_alone():
    before = flint.ctx.prec
    norm_upper_ball(draw(3, 3))
    assert flint.ctx.prec == before


def test_without_flint_the_error_names_the_remedy(monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name == "flint":
            raise ImportError("no flint")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r'pip install "equipoise\[rigorous\]"'):
        norm_upper_ball(torch.ones(2, 2))


def test_witnesses_and_matrices_that_are_no_numbers_prove_nothing():
    eye, bad = torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    one, bad[0, 1] = torch.ones(2, dtype=torch.float64), math.nan
    for symmetric, tau, L in (
        (bad, 0.5, eye),
        (eye, 0.5, bad),
        (eye, math.nan, eye),
        (bad + bad.mT, 0.5, eye),
    ):
        assert lambda_min_lower_ball(symmetric, (tau, L)) == -math.inf
    for M, witness in ((bad, (eye, one, eye)), (eye, (bad, one, eye)), (eye, (eye, one * bad[0], eye))):
        assert norm_upper_ball(M, witness) == math.inf
        assert sigma_min_lower_ball(M, witness) == 0.0


def test_the_signs_of_a_witness_do_not_matter():
    M = torch.diag(torch.tensor([-3.0, 2.0], dtype=torch.float64))
    eye = torch.eye(2, dtype=torch.float64)
    witness = (eye, M.diagonal(), eye)
    assert 3.0 <= norm_upper_ball(M, witness) <= 3.0 * (1 + 1e-15)
    assert 2.0 * (1 - 1e-15) <= sigma_min_lower_ball(M, witness) <= 2.0
