"""How a hidden step moves the equilibria, by family: the constants of the two-timescale argument.

For a hidden gradient step of size η_h at residual r, with ‖a‖ ≤ ā and ‖Z‖ ≤ S̄ (operator norms, x = ‖X‖):

    ‖Z⁺ − Z‖_F ≤ η_h R² ā K ‖r‖          the equilibria move
    ‖c⁺ − c‖_F ≤ η_h R ā β ‖r‖          the ball's coordinate c moves, and must stay within δ of its start

| family | K | β | c | R in the ball |
| --- | --- | --- | --- | --- |
| ling2023 | S̄² + x² | S̄ | W | 1/(1/R(0) − δ) |
| gao2022 | γ²S̄² + x² | γ²S̄ | γA | 1/(1/R(0) − δ) |
| hieu2022 | 4 max(1, Ā²)S̄² + x², Ā = ‖A(0)‖ + δ | 2ĀS̄ | A | 1/μ |
| kawaguchi2021 | γ²S̄²/4 | γS̄/2 | A | 1/max(σ_min(I − γS(0)) − γδ/2, (1 − γ)/√m) |

With a trained bias of hieu2022, x is the norm of [X, 1]. The formulas take Intervals, in which they are
proved, and floats or arrays, in which constants are searched for. Derived in docs/theory.md.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from ..linalg import Interval, maximum, minimum, norm_upper
from .instance import Instance

Number = Any  # an Interval, a float or an array


class Ball(NamedTuple):
    """R, K and β wherever c is within δ of its start and ‖Z‖ ≤ S̄."""

    R: Number
    K: Number
    beta: Number


class Geometry(ABC):
    """The numbers of one instance from which R, K and β follow."""

    @property
    def room(self) -> float:
        """How large δ may be, exclusively."""
        return math.inf

    @property
    @abstractmethod
    def scale(self) -> float:
        """About the size of c: the scale on which δ is searched for."""

    @abstractmethod
    def ball(self, delta: Number, S: Number) -> Ball:
        """R, K and β wherever c is within δ of its start and ‖Z‖ ≤ S."""

    def moved(self, radius: float) -> Interval:
        """≥ how far c moves if no parameter moves by more than `radius`."""
        return Interval(radius)

    def as_floats(self) -> Self:
        """The same as floats, to search with: upper ends, but the lower end of σ, where less is worse."""
        ends = {
            f.name: value.lo if f.name == "sigma" else value.hi
            for f in dataclasses.fields(self)  # type: ignore[arg-type]
            if isinstance(value := getattr(self, f.name), Interval)
        }
        return dataclasses.replace(self, **ends)  # type: ignore[type-var]


@dataclass(frozen=True)
class Contracting(Geometry):
    """c = g times a parameter, W of ling2023 (g = 1) or A of gao2022 (g = γ).

    q = 1 − 1/R(0) is the lesser of ‖W(0)‖ and λ_max(sym W(0)).
    """

    q: Number
    g: Number
    x: Number

    @property
    def room(self) -> float:
        """≤ 1 − q."""
        return (1 - Interval(self.q)).lo

    @property
    def scale(self) -> float:
        """All the room there is."""
        return max(self.room, 0.0)

    def ball(self, delta: Number, S: Number) -> Ball:
        """1/R falls by at most δ."""
        g2 = self.g**2
        return Ball(R=1 / (1 - self.q - delta), K=g2 * S**2 + self.x**2, beta=g2 * S)

    def moved(self, radius: float) -> Interval:
        """g times as far as the parameter."""
        return self.g * Interval(radius)


def inverse_gap(instance: Instance) -> Interval:
    """≥ 1 − 1/R: both ‖W‖ and λ_max(sym W) move by at most ‖ΔW‖_F."""
    return Interval((1 - 1 / Interval(instance.enclosure.resolvent.hi)).hi)


def input_norm(instance: Instance, bias: bool = False) -> Interval:
    """≥ ‖X‖, or ‖[X, 1]‖, by a Cholesky witness: the lower end is of no use here."""

    def compute() -> Interval:
        X = instance.X
        return Interval(norm_upper(torch.cat([X, torch.ones_like(X[:, :1])], dim=1) if bias else X))

    return instance.keep("‖[X, 1]‖" if bias else "‖X‖", compute)


# -- formulas for Intervals and arrays alike ----------------------------------------------------------------


def larger(a: Number, b: Number) -> Number:
    """The larger of two, entry by entry."""
    return maximum(a, b) if isinstance(a, Interval) or isinstance(b, Interval) else np.maximum(a, b)


def smaller(a: Number, b: Number) -> Number:
    """The smaller of two, entry by entry."""
    return minimum(a, b) if isinstance(a, Interval) or isinstance(b, Interval) else np.minimum(a, b)
