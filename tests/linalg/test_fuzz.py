"""No bound may ever be false: random and adversarial matrices against exact integer arithmetic.

`singular_values_above(M, t)` counts the singular values above t from the characteristic polynomial of the
exact integer Gram matrix, so a violation by a hundredth of an ulp would be seen.
"""

import math

import pytest
import torch

from equipoise import linalg
from exact_spectra import eigenvalues_above, singular_values_above

pytest.importorskip("flint")
N = 12


def gaussian(n, m, g):
    return torch.randn(n, m, generator=g, dtype=torch.float64)


def rank_deficient(n, m, g):
    r = max(1, min(n, m) // 2)
    return gaussian(n, r, g) @ gaussian(r, m, g)


def integers_of_low_rank(n, m, g):  # exactly singular
    r = max(1, min(n, m) - 1)
    A, B = (torch.randint(-3, 4, s, generator=g).double() for s in ((n, r), (r, m)))
    return A @ B


def orthogonal(n, m, g):
    Q = torch.linalg.qr(gaussian(max(n, m), min(n, m), g)).Q
    return Q if n >= m else Q.mT.contiguous()


def permutation(n, m, g):  # all singular values tie exactly
    M = torch.zeros(n, m, dtype=torch.float64)
    p = min(n, m)
    M[torch.randperm(n, generator=g)[:p], torch.arange(p)] = 1.0
    return M


def duplicate_rows(n, m, g):
    return gaussian(n, m, g)[torch.randint(0, n, (n,), generator=g)]


def near_duplicate_rows(n, m, g):
    M = duplicate_rows(n, m, g)
    return M + 1e-9 * gaussian(n, m, g)


def hilbert(n, m, g):
    shift = torch.rand(1, generator=g).double()
    return 1 / (torch.arange(n)[:, None] + torch.arange(m) + 1 + shift)


def graded(n, m, g):
    return gaussian(n, m, g) * 10.0 ** (-3.0 * torch.arange(m))


def near_tie(n, m, g):
    p = min(n, m)
    s = 1 + 1e-12 * torch.randn(p, generator=g, dtype=torch.float64)
    U, V = orthogonal(n, p, g), orthogonal(m, p, g)
    return (U * s) @ V.mT


def norm_near_one(n, m, g):
    M = gaussian(n, m, g)
    M /= torch.linalg.matrix_norm(M, 2)
    return M * (1 + 1e-9 * (2 * torch.randint(0, 2, (1,), generator=g).double() - 1))


def single_precision(n, m, g):
    return gaussian(n, m, g).float()


def single_precision_tiny(n, m, g):
    return (gaussian(n, m, g) * 1e-42).float()  # subnormal in float32


def sparse(n, m, g):
    return gaussian(n, m, g) * (torch.rand(n, m, generator=g) < 0.3)


def huge(n, m, g):
    return gaussian(n, m, g) * 1e300


def tiny(n, m, g):
    return gaussian(n, m, g) * 1e-300


def subnormal(n, m, g):
    return gaussian(n, m, g) * 1e-319


def all_scales(n, m, g):
    return gaussian(n, m, g) * 2.0 ** torch.randint(-1060, 1000, (n, m), generator=g).double()


FAMILIES = [
    gaussian, rank_deficient, integers_of_low_rank, orthogonal, permutation, duplicate_rows,
    near_duplicate_rows, hilbert, graded, near_tie, norm_near_one, single_precision, single_precision_tiny,
    sparse, huge, tiny, subnormal, all_scales,
]  # fmt: skip


def cases(count, seed):
    g = torch.Generator().manual_seed(seed)
    for i in range(count):
        n, m = torch.randint(1, N + 1, (2,), generator=g).tolist()
        family = FAMILIES[i % len(FAMILIES)]
        yield family.__name__, family(n, m, g)


def violations(M):
    """The names of the bounds of M that are false."""
    p = min(M.shape)
    sharp, gram = linalg.singular_bounds(M), linalg.gram_bounds(M)
    moved = linalg.SpectralWitness(M * 1.0009765625, linalg.gram_bounds(M * 1.0009765625)).bounds(M)
    uppers = {
        "singular_bounds.norm": sharp.norm_upper,
        "gram_bounds.norm": gram.norm_upper,
        "witness.norm": moved.norm_upper,
        "norm_upper": linalg.norm_upper(M),
        "frobenius_upper": linalg.frobenius_upper(M),
    }
    norm_lowers = {
        "singular_bounds.norm_lower": sharp.norm_lower,
        "gram_bounds.norm_lower": gram.norm_lower,
        "norm_lower": linalg.norm_lower(M),
    }
    sigma_lowers = {
        "singular_bounds.sigma_min": sharp.sigma_min_lower,
        "gram_bounds.sigma_min": gram.sigma_min_lower,
        "witness.sigma_min": moved.sigma_min_lower,
    }
    sigma_uppers = {
        "singular_bounds.sigma_min_upper": sharp.sigma_min_upper,
        "gram.upper": gram.sigma_min_upper,
    }
    named = [
        *[(k, t, lambda above: above == 0) for k, t in uppers.items()],
        *[(k, t, lambda above: above >= 1) for k, t in norm_lowers.items() if t > 0],
        *[(k, t, lambda above: above == p) for k, t in sigma_lowers.items() if t > 0],
        *[(k, t, lambda above: above < p) for k, t in sigma_uppers.items()],
    ]
    named = [(k, t, true) for k, t, true in named if t < math.inf]
    counts = singular_values_above(M, [t for _, t, _ in named])
    zero = not M.any()  # the one matrix whose bounds are attained
    return [k for (k, t, true), c in zip(named, counts, strict=True) if not true(c) and not (zero and t == 0)]


def symmetric_violations(M):
    n = min(M.shape)
    S = M[:n, :n].double()
    S = torch.tril(S) + torch.tril(S, -1).mT
    low, high = linalg.lambda_min_lower(S), linalg.lambda_max_upper(S)
    if not (math.isfinite(low) and math.isfinite(high)):
        return []
    above_low, above_high = eigenvalues_above(S, [low, high])
    return [] if (above_low == n and above_high == 0) or not S.any() else ["lambda"]


def threshold_violations(M):
    """Claims at thresholds a few ulps from the truth, on both sides of it."""
    found = []
    s = torch.linalg.svdvals(M.double()).tolist()
    for ulps in (-64, -2, 0, 2, 64):
        for value in (s[0], s[-1]):
            t = value * (1 + ulps * 2.0**-52)
            if not 0 < t < math.inf:
                continue
            below, over = linalg.proves_norm_below(M, t), linalg.proves_sigma_min_above(M, t)
            above = singular_values_above(M, [t])[0] if below or over else None
            found += ["proves_norm_below"] if below and above > 0 else []
            found += ["proves_sigma_min_above"] if over and above < len(s) else []
    return found


def provable(M):
    """(proved, possible): claims that are true by a margin of 1e-8·‖M‖, and how many were proved."""
    s = torch.linalg.svdvals(M.double()).tolist()
    claims = []
    if 1e-303 < s[0] < 1e306:
        above, below = s[0] * (1 + 1e-8), s[-1] - 1e-8 * s[0]
        claims += [linalg.norm_upper(M) < above, linalg.singular_bounds(M).norm_upper < above]
        claims += [linalg.proves_norm_below(M, above), linalg.norm_lower(M) > s[0] * (1 - 1e-8)]
        if below > 0:
            claims.append(linalg.sigma_min_lower(M) > below)
        if s[-1] > 1e-3 * s[0]:
            claims.append(linalg.gram_bounds(M).sigma_min_lower > below)
            claims.append(linalg.proves_sigma_min_above(M, below))
    return sum(claims), len(claims)


def fuzz(count, seed, claims_every):
    """Every bound of every case; claims at thresholds for every few of them."""
    lapack_too_small = proved = possible = 0
    for i, (name, M) in enumerate(cases(count, seed)):
        wrong = violations(M) + symmetric_violations(M)
        if i % claims_every == 0:
            wrong += threshold_violations(M)
            done, total = provable(M)
            proved, possible = proved + done, possible + total
        assert not wrong, f"case {i} of seed {seed} ({name}, {tuple(M.shape)}): {wrong}"
        lapack_too_small += singular_values_above(M, [torch.linalg.svdvals(M.double())[0].item()])[0] > 0
    assert proved >= 0.99 * possible > 0
    return lapack_too_small


def test_hundreds_of_cases_hold_and_lapack_alone_would_not():
    assert fuzz(300, seed=0, claims_every=7) > 90


@pytest.mark.slow
def test_a_hundred_thousand_cases_hold():
    assert fuzz(100_000, seed=1, claims_every=19) > 30_000


def test_margin_of_a_monotone_weight_holds_exactly():
    g = torch.Generator().manual_seed(5)
    for _ in range(200):
        n = int(torch.randint(1, N + 1, (1,), generator=g))
        W = (gaussian(n, n, g) * 2.0**20).round() * 2.0**-20  # W + Wᵀ is exact
        margin = linalg.symmetric_part_margin_lower(W)
        (below,) = eigenvalues_above(-(W + W.mT), [-2.0])  # of 2·sym(I − W) above 0
        assert (margin > 0) <= (below == n)
        H = (2 * torch.eye(n, dtype=torch.float64) - W - W.mT) / 2  # exact: 45 bits suffice
        assert eigenvalues_above(H, [margin]) == [n]
        assert margin > torch.linalg.eigvalsh(H)[0].item() - 1e-12
