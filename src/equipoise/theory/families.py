"""Why each family has one equilibrium for every input, and how far its computed weights are from the exact.

| family | effective weight | unique because | R ≥ ‖(I − D W)⁻¹ D‖ |
| --- | --- | --- | --- |
| gao2022 | γ Aᵀ | γ‖A‖ < 1 | 1/(1 − γ‖A‖) |
| ling2023 | W | ‖W‖ < 1 | 1/(1 − ‖W‖) |
| hieu2022 | (1−μ)I − AᵀA + B − Bᵀ | sym(I − W) = μI + AᵀA, for every A, B | 1/μ |
| kawaguchi2021 | γ softmax_columns(A) | ‖W‖₁ = γ < 1, for every A | ‖(I − W)⁻¹‖ ≤ √m/(1 − γ) |
"""

from __future__ import annotations

import math

from torch import Tensor

from ..linalg import Interval, frobenius, gamma, minimum, singular_bounds
from ..models.gaussian_relu import GaussianReLU
from ..models.linear import LinearEquilibrium
from ..models.monotone import Monotone
from ..models.scaled_relu import ScaledReLU
from .claim import Claim
from .enclosure import Enclosure, enclose, product_rounding

_SVD = "a-posteriori bounds on an SVD, rounded outward"


def _contraction(name: str, q: Interval, what: str, remedy: str) -> tuple[tuple[Claim, ...], Interval]:
    claim = Claim(
        name, f"{what}: one equilibrium for every input", q, "<", Interval(1.0), _SVD, remedy=remedy
    )
    gap = 1 - q
    return (claim,), (1 / gap if claim.holds else Interval(0.0, math.inf))


@enclose.register
def _(model: GaussianReLU, X: Tensor) -> Enclosure:
    norm = singular_bounds(model.W).norm
    unique, resolvent = _contraction("‖W‖ < 1", norm, "the map contracts", "a smaller W (sigma_w2)")
    return Enclosure(
        weight=model.weight(),
        weight_error=0.0,
        weight_norm=norm,
        injection=model.injection(X),
        injection_error=product_rounding(X, model.U.T).hi,
        unique=unique,
        resolvent=resolvent,
        reason="‖W‖ < 1",
        norms={"W": norm},
    )


@enclose.register
def _(model: ScaledReLU, X: Tensor) -> Enclosure:
    size = singular_bounds(model.A).norm
    norm = model.gamma * size
    unique, resolvent = _contraction("γ‖A‖ < 1", norm, "the map contracts", "a smaller γ or A")
    weight = model.weight()
    return Enclosure(
        weight=weight,
        weight_error=(gamma(2) * frobenius(weight) + Interval(0.0, weight.numel() * 2.0**-1074)).hi,
        weight_norm=norm,
        injection=model.injection(X),
        injection_error=product_rounding(X, model.W).hi,
        unique=unique,
        resolvent=resolvent,
        reason="γ‖A‖ < 1",
        norms={"A": size},
    )


@enclose.register
def _(model: Monotone, X: Tensor) -> Enclosure:
    margin = Interval(float(model.margin))
    claim = Claim(
        "sym(I−W) ⪰ μI",
        "sym(I − W) = μI + AᵀA whatever A and B are: one equilibrium for every input",
        margin,
        ">",
        Interval(0.0),
        "exact, by the parameterisation",
    )
    weight = model.weight()
    parts = frobenius(model.A) ** 2 + 2 * frobenius(model.B) + math.sqrt(len(weight)) * (1 + margin)
    error = product_rounding(model.A.T, model.A) + gamma(6) * parts
    injection = model.injection(X)
    bias = getattr(model, "bias", None)
    extra = gamma(4) * (
        frobenius(injection) + (frobenius(bias) * math.sqrt(len(X)) if bias is not None else 0.0)
    )
    return Enclosure(
        weight=weight,
        weight_error=error.hi,
        weight_norm=Interval(0.0, (frobenius(weight) + error).hi),
        injection=injection,
        injection_error=(product_rounding(X, model.U.T) + extra).hi,
        unique=(claim,),
        resolvent=1 / margin,
        reason="the monotone margin μ",
    )


@enclose.register
def _(model: LinearEquilibrium, X: Tensor) -> Enclosure:
    m, g = model.width, Interval(float(model.gamma))
    claim = Claim(
        "‖γS‖₁ = γ < 1",
        "the columns of S sum to 1 whatever A is: one equilibrium for every input",
        g,
        "<",
        Interval(1.0),
        "exact, by the parameterisation",
    )
    weight, injection = model.weight(), model.injection(X)
    # exp within 4 ulp of argument-shifted entries, a sum of m terms, a division, and the product with γ:
    # relative to the entries of S, plus what a rounded shift a − max does to exp.
    shift = gamma(2) * 2 * float(model.A.abs().amax()) if model.A.numel() else 0.0
    error = (gamma(m + 20) + 2 * Interval(shift)) * 2 * frobenius(weight) + m * m * 2.0**-1000
    norm = frobenius(weight) + error  # ‖γS‖ ≤ ‖γS‖_F
    return Enclosure(
        weight=weight,
        weight_error=error.hi,
        weight_norm=Interval(0.0, minimum(norm, g * math.sqrt(m) * (1 + gamma(4))).hi),
        injection=injection,
        injection_error=0.0,
        unique=(claim,),
        resolvent=Interval(0.0, (Interval(math.sqrt(m)) * (1 + gamma(4)) / (1 - g)).hi),
        reason="‖γS‖₁ = γ < 1",
    )
