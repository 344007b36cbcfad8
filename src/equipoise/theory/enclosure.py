"""A family's numbers with their rounding: what floating point computed, and how far the truth can be from it.

Theorems speak of the real numbers that the stored weights and data are. The facts of a family (`families/`)
say how far its computed effective weight and injection can be from the exact ones, and why every input has
one equilibrium.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ..linalg import Interval, SingularBounds, frobenius, gamma, singular_bounds
from ..models.affine import AffineFamily
from .claim import Claim


@dataclass(frozen=True)
class Enclosure:
    """W and u as computed in float64, with bounds of their rounding error, and the reason for uniqueness."""

    weight: Tensor  # (m, m)
    weight_error: float  # ≥ ‖W − W exact‖_F
    weight_norm: Interval  # ‖W exact‖
    injection: Tensor  # (N, m)
    injection_error: float  # ≥ ‖u − u exact‖_F
    unique: tuple[Claim, ...]  # what makes the equilibrium one: all must hold
    resolvent: Interval  # R ≥ ‖(I − D W)⁻¹ D‖ for every mask D; its upper end is what counts
    reason: str  # the same, in words
    contraction: Claim | None = (
        None  # ‖W‖ < 1, of families for which that is a reason, whether it holds or not
    )
    norms: Mapping[str, Interval] = field(default_factory=dict)  # ‖θ‖ of parameters, where already known


class Equilibria:
    """Z* of an instance: the computed Z, and a sound bound of its distance to the true equilibria.

    ‖Z − Z*‖_F ≤ e(1 + ‖W‖R) with e ≥ ‖Z − f(Z)‖_F for the exact f, valid for contractions (where it equals
    e/(1 − q)) and for monotone maps with ‖W‖ > 1 alike.
    """

    def __init__(self, model: AffineFamily, enclosure: Enclosure, Z: Tensor) -> None:
        self.model, self.enclosure, self.Z = model, enclosure, Z

    @cached_property
    def error(self) -> float:
        """≥ ‖Z − Z*‖_F."""
        return (self.residual * (1 + self.enclosure.weight_norm * self.enclosure.resolvent)).hi

    @cached_property
    def residual(self) -> Interval:
        """e ≥ ‖Z − f(Z)‖_F for the exact f; its upper end is what counts."""
        at, Z = self.enclosure, self.Z
        W, u, size = at.weight, at.injection, frobenius(self.Z)
        computed = self.model.activation(torch.addmm(u, Z, W.T))
        e = frobenius(Z - computed) + size * at.weight_error + at.injection_error
        # u is one more term of each dot product; the difference from Z is one more rounding.
        rounding = product_rounding(Z, W.T) + gamma(len(W) + 4) * (frobenius(u) + frobenius(computed))
        return e + rounding + gamma(4) * (size + frobenius(computed))

    @cached_property
    def spectrum(self) -> SingularBounds:
        """‖Z*‖ and σ_min(Z*), its min(N, m)-th singular value, by one SVD and Weyl's inequality."""
        return widened(singular_bounds(self.Z), self.error)

    @cached_property
    def frobenius(self) -> Interval:
        """‖Z*‖_F."""
        return _nonnegative(frobenius(self.Z) + Interval.within(self.error))


def product_rounding(A: Tensor, B: Tensor) -> Interval:
    """≥ ‖fl(A B) − A B‖_F for the computed product of two matrices, underflow included."""
    n, k = A.shape
    entries = n * B.shape[-1] if B.ndim > 1 else n
    return gamma(k + 2) * frobenius(A) * frobenius(B) + Interval(0.0, entries * (k + 2) * 2.0**-1074)


def widened(bounds: SingularBounds, error: float) -> SingularBounds:
    """Of every matrix within `error` of the one whose bounds these are."""
    slack = Interval.within(error)
    return SingularBounds(
        norm=_nonnegative(bounds.norm + slack), sigma_min=_nonnegative(bounds.sigma_min + slack)
    )


def _nonnegative(x: Interval) -> Interval:
    return Interval(max(x.lo, 0.0), max(x.hi, 0.0))
