"""`s_i√((1−a)(1−b)) − ρ ≤ σ_i(W) ≤ s_i√((1+a)(1+b)) + ρ`: bounds of singular and eigenvalues that hold.

`W ≈ U diag(s) Vᵀ` with `a ≥ ‖I−UᵀU‖`, `b ≥ ‖I−VᵀV‖`, `ρ ≥ ‖W − U diag(s) Vᵀ‖`, and
`λ_min(G) ≥ τ − ‖G − τI − LLᵀ‖`. The factors U, s, V, L and the shift τ come from LAPACK and are not trusted:
whatever they are, the bound holds, because the residuals are bounded by `products.product_defect`.

Every function takes a real tensor of any float dtype on any device and returns Python floats (or Intervals).
NaN, Inf, overflow or a failed factorisation give a bound that proves nothing: ∞ above, 0 or −∞ below. An
empty matrix has norm 0 and no smallest singular value or eigenvalue, about which nothing is proved either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .products import (
    TINY,
    FactorisationError,
    as_float64,
    as_square,
    frobenius,
    gamma,
    inflation,
    near_one,
    product_defect,
)
from .rounding import UNIT, Interval, maximum

_UNKNOWN = Interval(0.0, math.inf)


@dataclass(frozen=True)
class SingularBounds:
    """σ_max and σ_min (the min(N, m)-th singular value) of one matrix, each enclosed in an Interval."""

    norm: Interval
    sigma_min: Interval

    @property
    def norm_upper(self) -> float:
        """A proved upper bound on the largest singular value."""
        return self.norm.hi

    @property
    def norm_lower(self) -> float:
        """A proved lower bound on the largest singular value."""
        return self.norm.lo

    @property
    def sigma_min_upper(self) -> float:
        """A proved upper bound on the smallest singular value."""
        return self.sigma_min.hi

    @property
    def sigma_min_lower(self) -> float:
        """A proved lower bound on the smallest singular value."""
        return self.sigma_min.lo


@torch.no_grad()
def singular_bounds(M: Tensor) -> SingularBounds:
    """Both extreme singular values of M (N, m) from one thin SVD and three products."""
    M = as_float64(M)
    near = near_one(M)
    if near is None:
        return SingularBounds(norm=_UNKNOWN, sigma_min=_UNKNOWN)
    M, e = near
    if M.numel() == 0:
        return SingularBounds(norm=Interval(0.0), sigma_min=_UNKNOWN)
    if not M.any():
        return SingularBounds(norm=Interval(0.0), sigma_min=Interval(0.0))
    try:
        U, s, Vt = torch.linalg.svd(M, full_matrices=False)  # (N, p), (p,), (p, m)
    except FactorisationError:
        return SingularBounds(norm=_UNKNOWN, sigma_min=_UNKNOWN)
    identity = torch.eye(len(s), dtype=M.dtype, device=M.device)
    a = product_defect(U.mT, U, identity).item()
    b = product_defect(Vt, Vt.mT, identity).item()
    rho = product_defect(U * s, Vt, M).item()
    if not (a < 1 and b < 1 and rho < math.inf):
        return SingularBounds(norm=_UNKNOWN, sigma_min=_UNKNOWN)

    def enclose(s_i: float) -> Interval:
        stretch = ((1 + Interval.within(a)) * (1 + Interval.within(b))).sqrt()
        return maximum(s_i * stretch + Interval.within(rho) + Interval.within(TINY), 0.0).ldexp(e)

    s = s.abs()
    return SingularBounds(norm=enclose(s.amax().item()), sigma_min=enclose(s.amin().item()))


def sigma_min_lower(M: Tensor) -> float:
    """≤ σ_min(M), the min(N, m)-th singular value."""
    return singular_bounds(M).sigma_min_lower


def inverse_norm_upper(M: Tensor) -> float:
    """≥ ‖M⁻¹‖₂ = 1/σ_min(M); inf unless M is proved to be regular."""
    lower = sigma_min_lower(as_square(M))
    return (1 / Interval(lower)).hi if lower > 0 else math.inf


@torch.no_grad()
def norm_upper(M: Tensor) -> float:
    """≥ ‖M‖₂ = √λ_max(MMᵀ), by a Cholesky factor of `τI − MMᵀ`: a third of the cost of an SVD."""
    gram = Gram.of(M)
    if gram is None:
        return 0.0 if M.numel() == 0 else math.inf
    if not gram.Z.any():
        return 0.0
    return gram.norm_upper(*extreme_eigenvalues(gram.G))


@torch.no_grad()
def norm_lower(M: Tensor) -> float:
    """≤ ‖M‖₂: `‖Mᵀx‖/‖x‖` for one vector x, the leading eigenvector of the Gram matrix."""
    gram = Gram.of(M)
    if gram is None:
        return 0.0
    try:
        x = torch.linalg.eigh(gram.G).eigenvectors[:, -1:]  # (p, 1)
    except FactorisationError:
        return 0.0
    Zt = gram.Z.mT
    error = gamma(len(x) + 2) * frobenius(Zt.abs() @ x.abs()) * inflation(len(x) + 2) + TINY
    return maximum((frobenius(Zt @ x) - error) / frobenius(x), 0.0).ldexp(gram.exponent).lo


@torch.no_grad()
def lambda_min_lower(G: Tensor) -> float:
    """≤ λ_min(G) of a symmetric G, and of the symmetric part of any square G: `xᵀGx ≥ λ‖x‖²` for every x."""
    near = near_one(as_square(G))
    if near is None or near[0].numel() == 0:
        return -math.inf
    G, e = near
    H = G + G.mT
    rounding = UNIT * Interval(H.abs().sum(-1).amax().item()) * inflation(len(H)) + TINY
    return (Interval(_lambda_min_lower(H, *extreme_eigenvalues(H))) - rounding).ldexp(e - 1).lo


def lambda_max_upper(G: Tensor) -> float:
    """≥ λ_max(G) of a symmetric G, and of the symmetric part of any square G."""
    return -lambda_min_lower(-G)


def symmetric_part_margin_lower(W: Tensor) -> float:
    """≤ λ_min(sym(I − W)) = 1 − λ_max(sym W), the monotonicity margin μ of `z = σ(Wz + u)`."""
    return (1 - Interval(lambda_max_upper(W))).lo


# ---- the Cholesky witness -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Gram:
    """`‖G − ZZᵀ‖₂ ≤ error`: the Gram matrix of the short side of M = 2^exponent·Z (or of its transpose).

    With a batch of matrices every bound below is the worst of them.
    """

    Z: Tensor  # (..., p, k), p ≤ k, entries near 1
    G: Tensor  # (..., p, p)
    error: float
    exponent: int

    @staticmethod
    def of(M: Tensor) -> Gram | None:
        """None if M is empty or not finite."""
        M = as_float64(M)
        near = near_one(M)
        return None if near is None or M.numel() == 0 else Gram.of_scaled(*near)

    @staticmethod
    def of_scaled(Z: Tensor, exponent: int) -> Gram:
        """The Gram matrix of the shorter side of M = Z·2^exponent, with the entries of Z near 1."""
        if Z.shape[-2] > Z.shape[-1]:
            Z = Z.mT
        p, k = Z.shape[-2:]
        size = Z.abs()
        largest = (size @ size.sum(-2).unsqueeze(-1)).amax().item()  # ‖|Z||Z|ᵀ‖_∞
        error = gamma(k + 2) * Interval(largest) * inflation(p + k + 4) + TINY
        return Gram(Z=Z, G=Z @ Z.mT, error=error.hi, exponent=exponent)

    def norm_upper(self, low: float, high: float) -> float:
        """≥ ‖M‖₂, searched from guesses of λ_min(G) and λ_max(G)."""
        return self.norm_from(-_lambda_min_lower(-self.G, -high, -low))

    def sigma_min_lower(self, low: float, high: float) -> float:
        """≤ σ_min(M), searched from guesses of λ_min(G) and λ_max(G)."""
        return self.sigma_min_from(_lambda_min_lower(self.G, low, high))

    def norm_from(self, top: float) -> float:
        """≥ ‖M‖₂, given top ≥ λ_max(G)."""
        return ((Interval(top) + self.error).sqrt() + TINY).ldexp(self.exponent).hi

    def sigma_min_from(self, bottom: float) -> float:
        """≤ σ_min(M), given bottom ≤ λ_min(G)."""
        return maximum(maximum(Interval(bottom) - self.error, 0.0).sqrt() - TINY, 0.0).ldexp(self.exponent).lo


def extreme_eigenvalues(G: Tensor) -> tuple[float, float]:
    """λ_min(G) and λ_max(G) as LAPACK computes them: good guesses, but no bounds."""
    try:
        values = torch.linalg.eigvalsh(G)  # (..., p)
    except FactorisationError:
        return math.nan, math.nan
    return values.amin().item(), values.amax().item()


def shifted_lower(G: Tensor, tau: float) -> float:
    """≤ λ_min(G) if `G − τI` has a Cholesky factor: `τ − ‖G − τI − LLᵀ‖`; else −inf. Entries near 1."""
    T = G.clone()
    diagonal = T.diagonal(dim1=-2, dim2=-1).sub_(tau)
    L, info = torch.linalg.cholesky_ex(T)
    if info.any():
        return -math.inf
    defect = product_defect(L, L.mT, T).amax().item()
    rounding = Interval(2 * UNIT) * diagonal.abs().amax().item()  # of the shifted diagonal
    return (tau - Interval(0.0, defect) - rounding).lo if defect < math.inf else -math.inf


def _lambda_min_lower(G: Tensor, guess: float, other: float) -> float:
    """≤ λ_min(G), by shifts just below a guess of it; `other` guesses λ_max, for the scale of rounding."""
    if not G.any():
        return 0.0
    step = 4 * G.shape[-1] * UNIT * max(abs(guess), abs(other))
    for _ in range(8):
        if (lower := shifted_lower(G, guess - step)) > -math.inf:
            return lower
        step *= 8
    return -math.inf
