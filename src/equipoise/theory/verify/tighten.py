"""l ≤ p ≤ h of every unit: from how far equilibria can move, then by (V1) with parallel slopes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...linalg import gamma, norm_upper, row_norms_upper
from .bounds import Functionals, Problem, both_bounds
from .network import UnitNetwork, one_norms, up

_ROWS = 4096  # functionals that are evaluated together


def first_bounds(problem: Problem) -> tuple[Tensor, Tensor]:
    """|p_i(x) − p_i(x_c)| ≤ ‖W_i‖(R sup‖U(x − x_c)‖ + δ) + sup|U_i(x − x_c)|, both (N, n).

    δ bounds the error of the computed equilibrium of the centre x_c.
    """
    net, b, b_error = problem.network, problem.injection, problem.injection_error
    h = net.equilibria(b)
    delta = net.equilibrium_error(h, b, b_error)
    p = torch.addmm(b, h, net.weight.T)
    total = one_norms(h)[:, None]
    rounded = up(gamma(net.width + 6) * up(total * net.weight.abs().amax(dim=1) + b.abs()))
    rounded = rounded + b_error + up(total * net.weight_error)
    reach = problem.sets.reach
    moved = up(reach @ net.inputs.abs().T * (1 + reach.shape[1] * 2.0**-52))  # (N, n) ≥ |U_i(x − x_c)|
    size, length = up(row_norms_upper(moved)), up(row_norms_upper(reach))
    if problem.sets.epsilon is not None:
        length = length.clamp_max(problem.sets.epsilon)
    size = torch.minimum(size, up(length * norm_upper(net.inputs)))
    far = (
        up(up(size * net.resolvent + delta)[:, None] * net.row_norms + moved + up(rounded))
        + p.abs() * 2.0**-50
    )
    known = torch.isfinite(far) & torch.isfinite(p)
    return torch.where(known, p - far, -math.inf), torch.where(known, p + far, math.inf)


def slopes(net: UnitNetwork, low: Tensor, high: Tensor) -> Tensor:
    """h/(h − l) of a unit that may be on or off, 1 of one that is on, 0 of one that is off."""
    if net.linear:
        return torch.ones_like(low)
    on = high.clamp_min(0.0)
    return torch.where(low >= 0, 1.0, torch.where(high <= 0, 0.0, on / (on - low.clamp_max(0.0))))


def unstable(net: UnitNetwork, low: Tensor, high: Tensor) -> Tensor:
    """Which units may be on or off."""
    return (low < 0) & (high > 0) & (not net.linear)


def solved(net: UnitNetwork, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """(I − S Wᵀ)⁻¹ (B, n, n) and s (B, n): ν = (I − S Wᵀ)⁻¹(κ + s∘w) makes λ = s∘g."""
    s = slopes(net, low, high)
    eye = torch.eye(net.width, dtype=s.dtype, device=s.device)
    inverse, _ = torch.linalg.inv_ex(eye - s[:, :, None] * net.weight.T)
    return inverse, s


def tightened(
    problem: Problem, sample: Tensor, low: Tensor, high: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """The bounds of the units that may be on or off, by (V1), where they are better: (B, n) each."""
    node, unit = torch.nonzero(unstable(problem.network, low, high), as_tuple=True)
    low, high = low.clone(), high.clone()
    for part in torch.split(torch.arange(len(node)), _ROWS):
        at, i = node[part], unit[part]
        what = Functionals.of_units(i, problem.network.width)
        nu = inverse[at, :, i]
        below, above = both_bounds(problem, sample[at], low[at], high[at], what, nu)
        low[at, i] = torch.maximum(low[at, i], below)
        high[at, i] = torch.minimum(high[at, i], above)
    return low, high
