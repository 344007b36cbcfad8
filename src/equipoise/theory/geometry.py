"""How a hidden step moves the equilibria, by family: the constants of the two-timescale argument.

For a hidden gradient step of size η_h at residual r, with ‖a‖ ≤ ā and ‖Z‖ ≤ S̄ (operator norms, x = ‖X‖):

    ‖Z⁺ − Z‖_F ≤ η_h R² ā K ‖r‖          the equilibria move
    the ball's coordinate moves by at most η_h R ā β ‖r‖          and must stay within δ of its start

| family | K | β | δ is on | R in the ball |
| --- | --- | --- | --- | --- |
| ling2023 | S̄² + x² | S̄ | ‖W‖ | 1/(1 − ‖W(0)‖ − δ) |
| gao2022 | γ²S̄² + x² | γ²S̄ | γ‖A‖ | 1/(1 − γ‖A(0)‖ − δ) |
| hieu2022 | 4(1 + Ā²)S̄² + x², Ā = ‖A(0)‖ + δ | 2ĀS̄ | ‖A‖ | 1/μ |
| kawaguchi2021 | γ²S̄²/4 | γS̄/2 | ‖A‖_F | min{R₀/(1 − R₀γδ/2), √m/(1 − γ)}, R₀ = ‖(I − γS(0))⁻¹‖ |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch

from ..linalg import Interval, inverse_norm_upper, minimum
from ..models.affine import AffineFamily
from ..models.gaussian_relu import GaussianReLU
from ..models.linear import LinearEquilibrium
from ..models.monotone import Monotone
from ..models.scaled_relu import ScaledReLU
from .instance import Instance


@dataclass(frozen=True)
class Geometry:
    """R, K and β on the ball of radius δ."""

    R: Interval
    K: Interval
    beta: Interval


@singledispatch
def room(model: AffineFamily, instance: Instance) -> float:
    """How large δ may be, exclusively."""
    return math.inf


@room.register(GaussianReLU)
@room.register(ScaledReLU)
def _(model: AffineFamily, instance: Instance) -> float:
    return (1 - instance.enclosure.weight_norm).lo


@singledispatch
def geometry(model: Any, instance: Instance, delta: Interval, S: Interval) -> Geometry:
    """The constants of a family on the ball of radius δ, with S ≥ ‖Z‖ in it."""
    raise TypeError(f"no two-timescale constants are known for {type(model).__name__}.")


@geometry.register
def _(model: GaussianReLU, instance: Instance, delta: Interval, S: Interval) -> Geometry:
    x = instance.X_norm
    return Geometry(R=1 / (1 - instance.enclosure.weight_norm - delta), K=S**2 + x**2, beta=S)


@geometry.register
def _(model: ScaledReLU, instance: Instance, delta: Interval, S: Interval) -> Geometry:
    x, g2 = instance.X_norm, Interval(model.gamma) ** 2
    return Geometry(R=1 / (1 - instance.enclosure.weight_norm - delta), K=g2 * S**2 + x**2, beta=g2 * S)


@geometry.register
def _(model: Monotone, instance: Instance, delta: Interval, S: Interval) -> Geometry:
    A, x = instance.norm("A") + delta, instance.X_norm
    return Geometry(R=1 / Interval(float(model.margin)), K=4 * (1 + A**2) * S**2 + x**2, beta=2 * A * S)


@geometry.register
def _(model: LinearEquilibrium, instance: Instance, delta: Interval, S: Interval) -> Geometry:
    g = Interval(float(model.gamma))
    worst = instance.enclosure.resolvent  # √m/(1 − γ), whatever A is
    R0 = Interval(instance.keep("start resolvent", lambda: _start_resolvent(instance)))
    shrink = 1 - R0 * g * delta / 2
    R = minimum(R0 / shrink, worst) if shrink.lo > 0 and math.isfinite(R0.hi) else worst
    return Geometry(R=R, K=g**2 * S**2 / 4, beta=g * S / 2)


def _start_resolvent(instance: Instance) -> float:
    """≥ ‖(I − γS(0))⁻¹‖, the rounding of the computed matrix included."""
    W = instance.enclosure.weight
    eye = torch.eye(len(W), dtype=W.dtype)
    computed = inverse_norm_upper(eye - W)
    off = instance.enclosure.weight_error + 2.0**-52 * math.sqrt(len(W))
    gap = 1 - Interval(computed) * off
    return (Interval(computed) / gap).hi if gap.lo > 0 else math.inf
