"""A family's numbers with their rounding: what floating point computed, and how far the truth can be from it.

Theorems speak of the real numbers that the stored weights and data are. `families.py` says, for each family,
how far the computed effective weight and injection can be from the exact ones, and why every input has one
equilibrium.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, singledispatch
from typing import Any

import torch
from torch import Tensor

from ..linalg import Interval, SingularBounds, frobenius, gamma, gram_bounds, singular_bounds
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
    norms: Mapping[str, Interval] = field(default_factory=dict)  # ‖θ‖ of parameters, where already known


@singledispatch
def enclose(model: Any, X: Tensor) -> Enclosure:
    """The enclosure of a family on data X, all in float64."""
    raise TypeError(
        f"certificates know the affine families (LinearEquilibrium, ScaledReLU, GaussianReLU, Monotone). "
        f"Got {type(model).__name__} instead."
    )


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
        at, Z = self.enclosure, self.Z
        W, u, size = at.weight, at.injection, frobenius(self.Z)
        computed = self.model.activation(torch.addmm(u, Z, W.T))
        e = frobenius(Z - computed) + size * at.weight_error + at.injection_error
        e += product_rounding(Z, W.T) + gamma(4) * (size + frobenius(u) + frobenius(computed))
        return (e * (1 + at.weight_norm * at.resolvent)).hi

    @cached_property
    def spectrum(self) -> SingularBounds:
        """‖Z*‖ and σ_min(Z*) = σ_min(N, m)(Z*), by one SVD and Weyl's inequality."""
        return _widened(singular_bounds(self.Z), self.error)

    @cached_property
    def quick_spectrum(self) -> SingularBounds:
        """The same from one Gram matrix and its Cholesky factors: cheaper, and blind below √u·‖Z‖."""
        return _widened(gram_bounds(self.Z), self.error)

    @cached_property
    def frobenius(self) -> Interval:
        return _nonnegative(frobenius(self.Z) + Interval.within(self.error))


def product_rounding(A: Tensor, B: Tensor) -> Interval:
    """≥ ‖fl(A B) − A B‖_F for the computed product of two matrices, underflow included."""
    n, k = A.shape
    entries = n * B.shape[-1] if B.ndim > 1 else n
    return gamma(k + 2) * frobenius(A) * frobenius(B) + Interval(0.0, entries * (k + 2) * 2.0**-1074)


def _widened(bounds: SingularBounds, error: float) -> SingularBounds:
    slack = Interval.within(error)
    return SingularBounds(
        norm=_nonnegative(bounds.norm + slack), sigma_min=_nonnegative(bounds.sigma_min + slack)
    )


def _nonnegative(x: Interval) -> Interval:
    return Interval(max(x.lo, 0.0), max(x.hi, 0.0))
