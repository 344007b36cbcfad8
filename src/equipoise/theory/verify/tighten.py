"""low ≤ p ≤ high for every unit, by (V1) with parallel slopes."""

from __future__ import annotations

import torch
from torch import Tensor

from .bounds import Functionals, Problem, both_bounds
from .network import Multipliers, UnitNetwork


def slopes(net: UnitNetwork, low: Tensor, high: Tensor) -> Tensor:
    """high/(high − low) for a unit that may be on or off, 1 for one that is on, 0 for one that is off."""
    if net.linear:
        return torch.ones_like(low)
    on = high.clamp_min(0.0)
    return torch.where(low >= 0, 1.0, torch.where(high <= 0, 0.0, on / (on - low.clamp_max(0.0))))


def unstable(net: UnitNetwork, low: Tensor, high: Tensor) -> Tensor:
    """Which units may be on or off."""
    return (low < 0) & (high > 0) & (not net.linear)


def tightened(
    problem: Problem, sample: Tensor, low: Tensor, high: Tensor, solved: Multipliers
) -> tuple[Tensor, Tensor]:
    """The bounds of the units that may be on or off, by (V1), where they are better: (B, n) each."""
    net = problem.network
    node, unit = net.worth_tightening(unstable(net, low, high), low, high)
    low, high = low.clone(), high.clone()
    for part in torch.split(torch.arange(len(node)), net.rows):
        at, i = node[part], unit[part]
        what = Functionals.of_units(i, net.width)
        nu = solved.of_units(at, i)
        below, above = both_bounds(problem, sample[at], low[at], high[at], what, nu)
        low[at, i] = torch.maximum(low[at, i], below)
        high[at, i] = torch.minimum(high[at, i], above)
    return low, high
