"""`‖M‖ < t` and `σ_min(M) > t` by one Cholesky factor; `|σ_i(Z⁺) − σ_i(Z)| ≤ ‖Z⁺ − Z‖_F` by none.

They are as sound as those of `sound.py`, at a fraction of the cost of an SVD. The Gram matrix squares the
condition number: singular values below about 1e-7‖M‖ are out of reach, and the answer is then "not proved".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .products import as_float64, frobenius, gamma, inflation
from .rounding import UNIT, Interval, maximum
from .sound import Gram, SingularBounds, extreme_eigenvalues, shifted_lower, singular_bounds


@torch.no_grad()
def gram_bounds(M: Tensor) -> SingularBounds:
    """`singular_bounds` without the SVD: a sharp upper bound of ‖M‖ and lower bound of a σ_min not small.

    The lower bound of ‖M‖ and the upper bound of σ_min come from `σ_min ≤ ‖M‖_F/√p ≤ ‖M‖`.
    """
    gram = Gram.of(M)
    if gram is None:
        return singular_bounds(M)  # empty or not finite: it answers these without an SVD
    low, high = extreme_eigenvalues(gram.G)
    mean = frobenius(M) / Interval(len(gram.G)).sqrt()
    return SingularBounds(
        norm=Interval(max(mean.lo, 0.0), gram.norm_upper(low, high)),
        sigma_min=Interval(gram.sigma_min_lower(low, high), mean.hi),
    )


@torch.no_grad()
def proves_norm_below(M: Tensor, t: float) -> bool:
    """True only if ‖M‖₂ < t, strictly: a Gram product, a Cholesky factor of `τI − MMᵀ`, a product."""
    if not t > 0:
        return False
    if M.numel() == 0:
        return True
    gram = Gram.of(M)
    if gram is None:
        return False
    limit = (Interval(t).ldexp(-gram.exponent) ** 2).lo
    tau = limit - gram.error - _expected_loss(limit - gram.G.diagonal(), limit)
    return gram.norm_from(-shifted_lower(-gram.G, -tau)) < t


@torch.no_grad()
def proves_sigma_min_above(M: Tensor, t: float) -> bool:
    """True only if σ_min(M) > t, strictly: a Gram product, a Cholesky factor of `MMᵀ − τI`, a product."""
    gram = Gram.of(M)
    if gram is None or not 0 <= t < math.inf:
        return False
    limit = (Interval(t).ldexp(-gram.exponent) ** 2).hi
    tau = limit + gram.error + _expected_loss(gram.G.diagonal() - limit, limit)
    return gram.sigma_min_from(shifted_lower(gram.G, tau)) > t


def _expected_loss(diagonal: Tensor, limit: float) -> float:
    """Roughly what `shifted_lower` and the root lose, as `(|L||L|ᵀ)_ij ≤ √(T_ii T_jj)`; no proof uses it."""
    root = diagonal.clamp_min(0.0).sqrt()
    return 4 * gamma(len(root) + 4) * (root.amax() * root.sum()).item() + 16 * UNIT * limit


@dataclass(frozen=True, eq=False)
class SpectralWitness:
    """`|σ_i(Z) − σ_i(Z₀)| ≤ ‖Z − Z₀‖_F`: bounds at Z₀ that carry over to any Z near it, at O(size) cost."""

    matrix: Tensor
    at_matrix: SingularBounds

    def __post_init__(self) -> None:
        copy = as_float64(self.matrix).clone()  # a parameter changed in place must not change what was proved
        object.__setattr__(self, "matrix", copy)

    @staticmethod
    def of(Z: Tensor) -> SpectralWitness:
        """The witness of Z itself, by one SVD."""
        return SpectralWitness(Z, singular_bounds(Z))

    @torch.no_grad()
    def bounds(self, Z: Tensor) -> SingularBounds:
        """Proved bounds for a Z near the witness, which moved singular values by at most ‖Z − matrix‖_F."""
        Z = as_float64(Z)
        if Z.shape != self.matrix.shape:
            raise ValueError(f"this witness is of shape {tuple(self.matrix.shape)}. Got {tuple(Z.shape)}")
        drift = Interval.within(frobenius(Z - self.matrix) * inflation(2))
        return SingularBounds(
            norm=maximum(self.at_matrix.norm + drift, 0.0),
            sigma_min=maximum(self.at_matrix.sigma_min + drift, 0.0),
        )
