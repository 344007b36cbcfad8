"""min of w·h + κ·p over a set of inputs ≥ Σ τ_i + min (ν·(U x + u)), whatever the multiplier ν is.      (V1)

With p = W h + U x + u, h = σ(p) and low ≤ p ≤ high known, for every ν,

    w·h + κ·p ≥ Σ_i τ_i + min_x ν·(U x + u),   τ_i = min over p in [low_i, high_i] of g_i σ(p) − λ_i p,

with g = w + Wᵀν and λ = ν − κ, since κ·p = ν·(W h + U x + u) − λ·p. Whatever found ν is not trusted: one
evaluation here, with every rounding subtracted, is what a bound rests on. NaN and infinity bound nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...linalg import gamma
from .network import LEAST, UnitNetwork, up
from .sets import InputSets


@dataclass(frozen=True)
class Functionals:
    """w·h + κ·p + t, one in each row, with bounds of how far w and t are from the exact ones."""

    w: Tensor  # (P, n)
    t: Tensor  # (P,)
    w_error: Tensor  # (P, n)
    t_error: Tensor  # (P,)
    unit: Tensor | None = None  # (P,): κ is the unit vector of this index, and w and t are 0

    @staticmethod
    def of_units(unit: Tensor, width: int) -> Functionals:
        """p_i itself, with one unit in each row."""
        zero = torch.zeros(len(unit), width, dtype=torch.float64, device=unit.device)
        return Functionals(zero, zero[:, 0], zero, zero[:, 0], unit)

    def kappa(self) -> Tensor | float:
        """κ, (P, n)."""
        if self.unit is None:
            return 0.0
        return torch.nn.functional.one_hot(self.unit, self.w.shape[1]).double()

    def take(self, rows: Tensor) -> Functionals:
        """Some of them."""
        parts = (self.w[rows], self.t[rows], self.w_error[rows], self.t_error[rows])
        return Functionals(*parts, None if self.unit is None else self.unit[rows])


@dataclass(frozen=True)
class Problem:
    """A network and the sets of inputs, with what every evaluation of (V1) needs of them."""

    network: UnitNetwork
    sets: InputSets
    injection: Tensor  # (N, n): U x + u at the centres
    injection_error: Tensor  # (N, n)
    spread: Tensor  # (N, n): what is lost of ν·U(x − centre), as |ν| times this
    scale: Tensor  # (N, 2): bounds of what outputs are divided by, if a head normalises

    @staticmethod
    def of(network: UnitNetwork, sets: InputSets) -> Problem:
        """The problem, with the injections of the centres."""
        b, error = network.injection(sets.centre)
        scale = torch.ones(len(b), 2, dtype=torch.float64)
        return Problem(network, sets, b, error, network.onto_error(sets.reach), scale)

    def take(self, rows: Tensor) -> Problem:
        """The problem of some samples."""
        tensors: dict[str, Any] = {name: t[rows] for name, t in vars(self).items() if isinstance(t, Tensor)}
        return replace(self, sets=self.sets.take(rows), **tensors)


def lower_bounds(
    problem: Problem, sample: Tensor, low: Tensor, high: Tensor, what: Functionals, nu: Tensor
) -> Tensor:
    """(P,): ≤ the least value of each functional, over the inputs of its sample with low ≤ p ≤ high."""
    return _evaluated(problem, sample, low, high, what, nu, both=False)[0]


def both_bounds(
    problem: Problem, sample: Tensor, low: Tensor, high: Tensor, what: Functionals, nu: Tensor
) -> tuple[Tensor, Tensor]:
    """Bounds of the least value, by ν, and of the largest, by −ν, from the same products."""
    below, above = _evaluated(problem, sample, low, high, what, nu, both=True)
    return below, -above


def _evaluated(
    problem: Problem, sample: Tensor, low: Tensor, high: Tensor, what: Functionals, nu: Tensor, both: bool
) -> tuple[Tensor, Tensor]:
    net, n = problem.network, problem.network.width
    size = nu.abs()
    g = what.w + net.back(nu)
    lam = nu - what.kappa()
    peak = torch.maximum(low.abs(), high.abs())
    most = peak if net.linear else high.clamp_min(0.0)  # ≥ |σ(p)|
    b, b_error = problem.injection[sample], problem.injection_error[sample]
    # How far the computed g may be from the exact one, and what that may take from each τ.
    g_error = net.back_error(nu) + gamma(6) * (what.w.abs() + g.abs()) + what.w_error
    error = (up(up(g_error) * most) + up(gamma(12) * up((g.abs() + lam.abs()) * peak))).sum(dim=1)
    error = error + (up(size * up(b_error + gamma(n + 8) * b.abs()))).sum(dim=1)
    error = error + up(size * problem.spread[sample]).sum(dim=1)
    at_centre = (nu * b).sum(dim=1)
    fall = problem.sets.fall(net.onto(nu), sample, both)
    ends = (g * net.activation(low) - lam * low, g * net.activation(high) - lam * high)
    kink = (low < 0) & (high > 0) if not net.linear else None
    found = []
    for sign, drop in zip((1.0, -1.0), fall, strict=True) if both else ((1.0, fall[0]),):
        tau = torch.minimum(sign * ends[0], sign * ends[1])
        tau = tau if kink is None else torch.where(kink, torch.minimum(tau, torch.zeros_like(tau)), tau)
        value = tau.sum(dim=1) + sign * (at_centre + what.t) - drop
        rest = tau.abs().sum(dim=1) + at_centre.abs() + what.t.abs() + drop
        value = value - up(error + what.t_error + gamma(n + 10) * up(rest) + n * LEAST) * (1 + n * 2.0**-50)
        value = torch.nextafter(value, torch.full_like(value, -math.inf))
        bad = ~torch.isfinite(value) | torch.isnan(error)
        found.append(torch.where(bad, -math.inf, value))
    return found[0], found[-1]
