"""z = γ S z + φ(x),  S = softmax of the columns of A,  ŷ = B z    [kawaguchi2021].

The equilibrium is unique for every A, since ‖γS‖₁ = γ < 1, and R = ‖(I − γS)⁻¹‖ ≤ √m/(1 − γ). Outputs are
linear in φ(x): ŷ = M φ(x) with M = B(I − γS)⁻¹; and col(Z) = col(Φ) for every A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...linalg import Interval, frobenius, gamma, minimum, sigma_min_lower
from ...linalg.ball import balls, python_flint
from ...models.affine import LinearEquilibrium
from ..claim import Claim
from ..enclosure import EXACT, Enclosure, Iteration, product_rounding
from ..facts import AffineFacts
from ..geometry import Ball, Geometry, Number, larger
from ..instance import Instance
from ..lipschitz import AffineBounds
from ..register import facts_of
from ..rigorous import BallEnclosure, ball_enclosure, precision
from ..rigorous import frobenius as frobenius_of_balls
from ..verify.network import UnitNetwork

_UNDERFLOW = 746  # beyond −746 exp is below every float


def is_stochastic(gamma: float) -> Claim:
    """‖γS‖₁ = γ < 1, which holds by the parameterisation."""
    return Claim(
        "‖γS‖₁ = γ < 1",
        "the columns of S sum to 1 whatever A is: one equilibrium for every input",
        abs(Interval(float(gamma))),
        "<",
        Interval(1.0),
        EXACT,
    )


def stochastic_bounds(gamma: float, width: int) -> tuple[Interval, Interval]:
    """‖γS‖ ≤ γ√m and ‖(I − γS)⁻¹‖ ≤ √m/(1 − γ), from the same bounds without √m in the 1-norm."""
    g, root = abs(Interval(float(gamma))), Interval(width).sqrt()
    return g * root, root / (1 - g)


def softmax_units(A: Tensor) -> int:
    """≥ the relative error of an entry of γS, in units of rounding, besides that of the sum of m terms.

    exp of a rounded difference a − max is off by as many units as the difference is large. exp itself, the
    sum of such terms, the quotient and the product with γ add a few more.
    """
    spread = float((A.amax(dim=0) - A.amin(dim=0)).amax())
    return 2 * math.ceil(min(spread, _UNDERFLOW)) + 24


@dataclass(frozen=True)
class Softmax(Geometry):
    """A in a ball of radius δ: R = 1/max(σ − γδ/2, worst), K = γ²S̄²/4, β = γS̄/2.

    sigma = σ_min(I − γS(0)), and worst = (1 − γ)/√m, which it never falls below.
    """

    g: Number
    sigma: Number
    worst: Number

    @property
    def scale(self) -> float:
        """1, since softmax responds to differences of about one."""
        return 1.0

    def ball(self, delta: Number, S: Number) -> Ball:
        """Softmax moves by at most half as far as A."""
        least = larger(self.sigma - self.g * delta / 2, self.worst)
        return Ball(R=1 / least, K=self.g**2 * S**2 / 4, beta=self.g * S / 2)


@facts_of(LinearEquilibrium)
class LinearFacts(AffineFacts):
    """What is known of LinearEquilibrium."""

    family, paper = "LinearEquilibrium", "kawaguchi2021"
    spans_injection = True

    def enclosure(self, X: Tensor) -> Enclosure:
        """The enclosure, with the features taken as they are computed."""
        return replace(self.enclosure_of_weights(), injection=self.model.injection(X))

    def injection_error(self, X: Tensor) -> float:
        """0, since the features are taken as they are computed."""
        return 0.0

    def enclosure_of_weights(self) -> Enclosure:
        """The enclosure of γS, with the rounding of the softmax."""
        model, m = self.model, self.model.width
        weight = model.weight()
        error = gamma(m + softmax_units(model.A)) * frobenius(weight) + Interval(0.0, m * m * 2.0**-1000)
        norm, _ = stochastic_bounds(model.gamma, m)
        return Enclosure(
            weight=weight,
            weight_error=error.hi,
            weight_norm=Interval(0.0, minimum(frobenius(weight) + error, norm).hi),
            injection=weight.new_zeros(1, m),
            injection_error=0.0,
            **self._reason(),
        )

    def enclosure_in_balls(self, X: Tensor) -> BallEnclosure:
        """The enclosure, with the softmax in balls."""
        model, flint = self.model, python_flint()
        with precision():
            columns = []
            for column in balls(model.A.T).tolist():
                powers = [(x - max(column, key=float)).exp() for x in column]
                total = sum(powers, flint.arb(0))
                columns.append([flint.arb(model.gamma) * p / total for p in powers])
            W, u = flint.arb_mat(columns).transpose(), balls(model.injection(X))
        norm, _ = stochastic_bounds(model.gamma, model.width)
        size = Interval(0.0, minimum(frobenius_of_balls(W.tolist()), norm).hi)
        return ball_enclosure(model, X, W, u, size, **self._reason())

    def _reason(self) -> dict[str, Any]:
        reason = is_stochastic(self.model.gamma)
        _, inverse = stochastic_bounds(self.model.gamma, self.model.width)
        resolvent = Interval(0.0, inverse.hi if reason.holds else math.inf)
        return {"unique": (reason,), "resolvent": resolvent, "reason": reason.name}

    def geometry(self, instance: Instance) -> Softmax:
        """The geometry with the coordinate c = A."""
        g = Interval(float(self.model.gamma))
        worst = (1 - g) / Interval(self.model.width).sqrt()
        return Softmax(g=g, sigma=instance.keep("σ_min(I − γS)", lambda: _sigma(instance)), worst=worst)

    def rate(self, instance: Instance) -> tuple[float, str]:
        """γ, in the 1-norm."""
        return instance.enclosure.unique[0].left.hi, "plain iteration"

    def injection_bound(self, radius: float) -> Interval:
        """u = x, unless there is a feature map."""
        if self.model.feature_map is not None:
            raise ValueError("a feature map has no bound that is known: unroll a model without one.")
        return Interval(radius)

    def iteration(self, weight: Tensor, shift: Tensor) -> Iteration:
        """The plain iteration, which contracts by γ in the 1-norm."""
        m, g = self.model.width, Interval(float(self.model.gamma))
        rounded = float(shift.abs().sum(dim=0).amax()) * (1 + 2.0**-40) + m * 2.0**-1000
        error = gamma(m + softmax_units(self.model.A) + 8) * g + rounded
        return Iteration(1.0, g + error, math.sqrt(m) * (1 + 1e-15), error)

    def units(self, known: AffineBounds) -> UnitNetwork:
        """φ(x) = x, and no unit is ever off."""
        return known.units(torch.eye(self.model.width, dtype=torch.float64))

    def predictor(self, at: Enclosure) -> tuple[Tensor, Interval]:
        """M ≈ B Umat⁻¹ (k, m), and a bound of the error: (M Umat − B) Umat⁻¹."""
        B, W = self.model.B, at.weight
        M = self.model.predictor()
        size = frobenius(M)
        rest = frobenius(M - M @ W - B) + size * at.weight_error + product_rounding(M, W)
        rest += gamma(4) * (size + frobenius(M @ W) + frobenius(B))
        return M, Interval(0.0, (rest * at.resolvent).hi)


def _sigma(instance: Instance) -> Interval:
    """≤ σ_min(I − γS(0)), the rounding of the computed matrix included."""
    W = instance.enclosure.weight
    eye = torch.eye(len(W), dtype=W.dtype, device=W.device)
    off = instance.enclosure.weight_error + 2.0**-52 * Interval(len(W)).sqrt()
    return Interval((sigma_min_lower(eye - W) - Interval(0.0, off.hi)).lo)
