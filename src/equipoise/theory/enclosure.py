"""A family's numbers with their rounding: what floating point computed, and how far the truth can be from it.

Theorems speak of the real numbers that the stored weights and data are. The facts of a family (`families/`)
say how far its computed effective weight and injection can be from the exact ones, and why every input has
one equilibrium: a map that contracts has R = 1/(1 − ‖W‖), one with a positive symmetric part of I − W has
R = 1/(1 − λ_max(sym W)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..linalg import (
    Interval,
    SingularBounds,
    frobenius,
    gamma,
    norm_upper,
    singular_bounds,
    symmetric_part_margin_lower,
)
from ..models.affine import AffineFamily
from .claim import Claim

SVD = "a-posteriori bounds on an SVD, rounded outward"
EXACT = "exact, by the parameterisation"


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
    contraction: Claim | None = None  # ‖W‖ < 1, if that is a reason for this family, whether it holds or not
    norms: Mapping[str, Interval] = field(default_factory=dict)  # ‖θ‖ of parameters, where already known


@dataclass(frozen=True)
class Iteration:
    """z ← σ((1 − α) z + α (Ŵ z + u)) with a stored weight Ŵ, in a norm |·| with ‖z‖ ≤ |z| ≤ scale ‖z‖."""

    alpha: float
    factor: Interval  # ≥ the contraction factor in that norm, of Ŵ and of the exact W alike
    scale: float
    weight_error: Interval  # ≥ |Ŵ − W exact|


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


def stored_error(shift: Tensor) -> Interval:
    """≥ ‖Ŵ − W‖ of a stored Ŵ and a computed W whose difference, rounded, is `shift`."""
    return Interval(norm_upper(shift)) * (1 + 2.0**-50)


def widened(bounds: SingularBounds, error: float) -> SingularBounds:
    """Bounds that hold for every matrix within `error` of the one whose bounds are given."""
    slack = Interval.within(error)
    return SingularBounds(
        norm=_nonnegative(bounds.norm + slack), sigma_min=_nonnegative(bounds.sigma_min + slack)
    )


def _nonnegative(x: Interval) -> Interval:
    return Interval(max(x.lo, 0.0), max(x.hi, 0.0))


# -- why equilibria are unique, where more than one family has the reason ------------------------------------


def contracts(
    norm: Interval, method: str = SVD, name: str = "‖W‖ < 1", remedy: str = "a smaller W (sigma_w2)"
) -> Claim:
    """‖W‖ < 1, from the norm."""
    statement = "the map contracts: one equilibrium for every input"
    return Claim(name, statement, norm, "<", Interval(1.0), method, remedy=remedy)


def resolvent_of(reason: Claim) -> Interval:
    """R of a contraction: 1/(1 − q)."""
    return 1 / (1 - reason.left) if reason.holds else Interval(0.0, math.inf)


def is_positive(margin: float) -> Claim:
    """λ_max(sym W) < 1, from a margin ≤ λ_min(sym(I − W))."""
    return Claim(
        "λ_max(sym W) < 1",
        "sym(I − W) is positive, though W may not contract: one equilibrium for every input",
        Interval(-math.inf, (1 - Interval(margin)).hi),
        "<",
        Interval(1.0),
        "a Cholesky witness, rounded outward",
    )


def reasons(contraction: Claim, margin: float) -> dict[str, Any]:
    """Why a family that contracts or is monotone has one equilibrium, with the better R of both reasons."""
    reason, resolvent = contraction, resolvent_of(contraction)
    if margin > 0:
        reason = contraction if contraction.holds else is_positive(margin)
        resolvent = Interval(0.0, min(resolvent.hi, (1 / Interval(margin)).hi))
    return {
        "unique": (reason,),
        "resolvent": resolvent,
        "reason": reason.name,
        "contraction": contraction,
    }


def margin_of(W: Tensor, error: float) -> float:
    """≤ λ_min(sym(I − W exact)) for a W that is off by at most `error`."""
    return (Interval(symmetric_part_margin_lower(W)) - error).lo
