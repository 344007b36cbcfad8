"""Why each family has one equilibrium for every input, and how far its computed weights are from the exact.

| family | effective weight | unique because | R ≥ ‖(I − D W)⁻¹ D‖ |
| --- | --- | --- | --- |
| gao2022 | γ Aᵀ | γ‖A‖ < 1, or λ_max(sym W) < 1 | 1/(1 − γ‖A‖), or 1/(1 − λ_max(sym W)) |
| ling2023 | W | ‖W‖ < 1, or λ_max(sym W) < 1 | 1/(1 − ‖W‖), or 1/(1 − λ_max(sym W)) |
| hieu2022 | (1−μ)I − AᵀA + B − Bᵀ | sym(I − W) = μI + AᵀA, for every A, B | 1/μ |
| kawaguchi2021 | γ softmax_columns(A) | ‖W‖₁ = γ < 1, for every A | ‖(I − W)⁻¹‖ ≤ √m/(1 − γ) |
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..linalg import Interval, frobenius, gamma, minimum, singular_bounds, symmetric_part_margin_lower
from ..models.conv import ConvMonotone
from ..models.gaussian_relu import GaussianReLU
from ..models.linear import LinearEquilibrium
from ..models.monotone import Monotone
from ..models.scaled_relu import ScaledReLU
from .claim import Claim
from .enclosure import Enclosure, enclose, product_rounding

SVD = "a-posteriori bounds on an SVD, rounded outward"
_EXACT = "exact, by the parameterisation"
_UNDERFLOW = 746  # beyond −746 exp is below every float


# -- the reasons ---------------------------------------------------------------------------------------------


def contracts(model: GaussianReLU | ScaledReLU, norm: Interval, method: str = SVD) -> Claim:
    """‖W‖ < 1, or γ‖A‖ < 1."""
    scaled = isinstance(model, ScaledReLU)
    return Claim(
        "γ‖A‖ < 1" if scaled else "‖W‖ < 1",
        "the map contracts: one equilibrium for every input",
        norm,
        "<",
        Interval(1.0),
        method,
        remedy="a smaller γ or A" if scaled else "a smaller W (sigma_w2)",
    )


def is_monotone(model: Monotone | ConvMonotone) -> Claim:
    return Claim(
        "sym(I−W) ⪰ μI",
        "sym(I − W) = μI + AᵀA whatever A and B are: one equilibrium for every input",
        Interval(float(model.margin)),
        ">",
        Interval(0.0),
        _EXACT,
    )


def is_stochastic(model: LinearEquilibrium) -> Claim:
    return Claim(
        "‖γS‖₁ = γ < 1",
        "the columns of S sum to 1 whatever A is: one equilibrium for every input",
        abs(Interval(float(model.gamma))),
        "<",
        Interval(1.0),
        _EXACT,
    )


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
    """Of a family that contracts or is monotone: the better of both, and ‖W‖ < 1 where neither is proved."""
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


def stochastic_bounds(model: LinearEquilibrium) -> tuple[Interval, Interval]:
    """‖γS‖ ≤ γ√m and ‖(I − γS)⁻¹‖ ≤ √m/(1 − γ), from the same bounds without √m in the 1-norm."""
    g, root = abs(Interval(float(model.gamma))), Interval(model.width).sqrt()
    return g * root, root / (1 - g)


# -- in float64 ----------------------------------------------------------------------------------------------


@enclose.register
def _(model: GaussianReLU, X: Tensor) -> Enclosure:
    norm = singular_bounds(model.W).norm
    return Enclosure(
        weight=model.weight(),
        weight_error=0.0,
        weight_norm=norm,
        injection=model.injection(X),
        injection_error=product_rounding(X, model.U.T).hi,
        norms={"W": norm},
        **reasons(contracts(model, norm), margin_of(model.W, 0.0)),
    )


@enclose.register
def _(model: ScaledReLU, X: Tensor) -> Enclosure:
    size = singular_bounds(model.A).norm
    norm = abs(Interval(float(model.gamma))) * size
    weight = model.weight()
    error = (gamma(2) * frobenius(weight) + Interval(0.0, weight.numel() * 2.0**-1074)).hi
    return Enclosure(
        weight=weight,
        weight_error=error,
        weight_norm=norm,
        injection=model.injection(X),
        injection_error=product_rounding(X, model.W).hi,
        norms={"A": size},
        **reasons(contracts(model, norm), margin_of(weight, error)),
    )


@enclose.register
def _(model: Monotone, X: Tensor) -> Enclosure:
    margin, reason = Interval(float(model.margin)), is_monotone(model)
    weight, injection = model.weight(), model.injection(X)
    # 1 − μ and three sums of what is at most |1 − μ|I + |A|ᵀ|A| + |B| + |B|ᵀ, entry by entry.
    parts = (
        frobenius(model.A) ** 2 + 2 * frobenius(model.B) + Interval(len(weight)).sqrt() * (1 + abs(margin))
    )
    error = product_rounding(model.A.T, model.A) + gamma(8) * parts
    shift = Interval(0.0) if model.bias is None else gamma(2) * frobenius(injection)
    return Enclosure(
        weight=weight,
        weight_error=error.hi,
        weight_norm=Interval(0.0, (frobenius(weight) + error).hi),
        injection=injection,
        injection_error=(product_rounding(X, model.U.T) + shift).hi,
        unique=(reason,),
        resolvent=1 / margin if reason.holds else Interval(0.0, math.inf),
        reason="the monotone margin μ",
    )


@enclose.register
def _(model: LinearEquilibrium, X: Tensor) -> Enclosure:
    m, reason = model.width, is_stochastic(model)
    weight, injection = model.weight(), model.injection(X)
    error = gamma(m + _softmax_units(model)) * frobenius(weight) + Interval(0.0, m * m * 2.0**-1000)
    norm, inverse = stochastic_bounds(model)
    return Enclosure(
        weight=weight,
        weight_error=error.hi,
        weight_norm=Interval(0.0, minimum(frobenius(weight) + error, norm).hi),
        injection=injection,
        injection_error=0.0,
        unique=(reason,),
        resolvent=Interval(0.0, inverse.hi if reason.holds else math.inf),
        reason="‖γS‖₁ = γ < 1",
    )


def _softmax_units(model: LinearEquilibrium) -> int:
    """Roundings in an entry of γS besides those of the sum of m, each at most a unit relative to the entry.

    exp of a rounded difference a − max is off by as many as the difference is large; exp itself, its sum of
    terms that are off likewise, the quotient and the product with γ by a few more.
    """
    spread = float((model.A.amax(dim=0) - model.A.amin(dim=0)).amax())
    return 2 * math.ceil(min(spread, _UNDERFLOW)) + 24
