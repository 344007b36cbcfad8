"""v·z moves by at most ½(‖UᵀS⁻¹v‖ + ‖S^{−½}v‖‖S^{−½}U‖)‖x − x'‖ with S = sym(I − W): a Lipschitz constant.

Two equilibria of p = W z + U x + u, z = σ(p), σ non-decreasing with slopes up to 1, differ by a δ with
δ·Sδ ≤ δ·U(x − x'). That is an ellipsoid with its centre at ½S⁻¹U(x − x'), and v·δ is largest on its border.
Since S ⪰ μI it is never above ‖v‖‖U‖/μ, and far below where S is no multiple of I, as in trained networks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..linalg import Interval, frobenius, gamma, lambda_min_lower, norm_upper, row_norms_upper
from .enclosure import product_rounding
from .verify.network import up


@torch.no_grad()
def ellipsoid_bounds(W: Tensor, error: float, U: Tensor, rows: Tensor) -> Tensor:
    """(P,): ≥ the Lipschitz constants of v·z for rows v (P, n), each of whose entries was rounded once.

    W (n, n) is within `error` of the exact weight in the Frobenius norm, and U (n, d) is exact. Whatever y is
    taken for S⁻¹v, with r = v − Sy,

        v·S⁻¹v ≤ v·y + ‖y‖‖r‖ + ‖r‖²/μ,    ‖UᵀS⁻¹v‖ ≤ ‖Uᵀy‖ + ‖U‖‖r‖/μ,

    and ‖S^{−½}U‖² ≤ t + s/μ where tS − UUᵀ ⪰ −sI: no factorisation is trusted.
    """
    infinite = torch.full_like(rows[:, 0], math.inf)
    n, wide = len(W), Interval(norm_upper(U)) if U.numel() else Interval(0.0)
    S = torch.eye(n, dtype=W.dtype, device=W.device) - (W + W.T) / 2
    off = error + gamma(4) * (frobenius(W) + math.sqrt(n) * (1 + 2.0**-50))  # ≥ ‖S − S exact‖_F
    margin = (Interval(lambda_min_lower(S)) - off).lo
    L, info = torch.linalg.cholesky_ex(S)
    if not margin > 0 or int(info) or not math.isfinite(margin):
        return infinite
    steep = _squared_norm(S, off, U, L, margin)
    y = torch.cholesky_solve(rows.T, L).T
    long, size = up(row_norms_upper(y)), up(row_norms_upper(rows))
    rest = up(row_norms_upper(rows - y @ S))
    rest = up(rest + up(gamma(n + 6) * up(size + long * frobenius(S).hi)) + long * off.hi)
    square = up(((rows * y).sum(dim=1) + gamma(n + 4) * size * long).clamp_min(0.0))
    square = up(square + up(long * rest) + up(rest.square() / margin))
    straight = up(row_norms_upper(y @ U) + gamma(n + 4) * long * frobenius(U).hi)
    straight = up(straight + up(rest * (wide / margin).hi))
    bound = up((straight + up(square.sqrt() * Interval(steep).sqrt().hi)) / 2)
    bound = up(bound + 2.0**-52 * up(size * (wide / margin).hi))  # the entries of v were rounded
    return torch.where(torch.isfinite(bound), bound, infinite)


def _squared_norm(S: Tensor, off: Interval, U: Tensor, L: Tensor, margin: float) -> float:
    """≥ ‖S^{−½}U‖²."""
    G = U @ U.T
    inner = torch.linalg.solve_triangular(L, U, upper=False)
    if not bool(torch.isfinite(inner).all()):
        return math.inf
    size = float(torch.linalg.matrix_norm(inner, 2)) if U.numel() else 0.0
    t = size * size * (1 + 2.0**-40)
    if not math.isfinite(t):
        return math.inf
    rounded = product_rounding(U, U.T) + gamma(4) * (t * frobenius(S) + frobenius(G)) + t * off
    below = (Interval(lambda_min_lower(t * S - G)) - rounded - 2.0**-1000).lo
    return (Interval(t) + Interval(max(-below, 0.0)) / margin).hi
