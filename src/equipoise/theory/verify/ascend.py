"""Better multipliers: (V1) is concave in ν, and climbed by Adam in coordinates in which it is well scaled."""

from __future__ import annotations

import torch
from torch import Tensor

from ...solve import Activation
from .bounds import Functionals, Problem
from .network import Multipliers

_BETAS = 0.8, 0.95


@torch.no_grad()
def ascended(
    problem: Problem,
    sample: Tensor,
    low: Tensor,
    high: Tensor,
    what: Functionals,
    nu: Tensor,
    solved: tuple[Multipliers, Tensor],
    *,
    steps: int,
    rate: float = 0.3,
) -> Tensor:
    """ν (P, n) with the largest value that the steps came upon; a row ends as soon as it is positive.

    ν = ν₀ + (I − S Wᵀ)⁻¹ (|g₀| ∘ θ), so that θ_i is about a change of the slope of unit i. `solved` holds
    the Multipliers that invert, and the part (P,) of each row. Values are not rounded outward here: they
    guide the choice, and prove nothing.
    """
    net, (solver, part) = problem.network, solved
    best, best_value = nu.clone(), torch.full_like(nu[:, 0], -torch.inf)
    rows = torch.arange(len(nu))
    g0 = (what.w + net.back(nu)).abs()
    scale = g0 + 1e-3 * g0.amax(dim=1, keepdim=True)
    mean, square = torch.zeros_like(nu), torch.zeros_like(nu)
    b = problem.injection[sample]
    kappa = what.kappa()
    for step in range(steps):
        g, lam, a = what.w + net.back(nu), nu - kappa, net.onto(nu)
        p = _least(net.linear, low, high, g, lam, net.activation)
        dx = problem.sets.step_to(a, sample)
        on = net.activation(p)
        value = (g * on - lam * p).sum(dim=1) + (nu * b).sum(dim=1) + (a * dx).sum(dim=1) + what.t
        better = value > best_value[rows]
        best[rows[better]], best_value[rows[better]] = nu[better], value[better]
        if step == steps - 1:
            break
        slope = net.forth(on) - p + b + net.into(dx)  # ∂/∂ν
        slope = scale * solver.gathered(part, slope)  # ∂/∂θ
        mean = _BETAS[0] * mean + (1 - _BETAS[0]) * slope
        square = _BETAS[1] * square + (1 - _BETAS[1]) * slope.square()
        unbiased = mean / (1 - _BETAS[0] ** (step + 1))
        move = unbiased / ((square / (1 - _BETAS[1] ** (step + 1))).sqrt() + 1e-30)
        move = rate * (1 - step / steps) * scale * move
        nu = nu + solver.spread(part, move)
        open_ = ~(value > 0)
        if not bool(open_.all()):
            keep = torch.nonzero(open_).flatten()
            rows, sample, low, high, nu = rows[keep], sample[keep], low[keep], high[keep], nu[keep]
            what, part, scale, b = what.take(keep), part[keep], scale[keep], b[keep]
            mean, square, kappa = mean[keep], square[keep], kappa if isinstance(kappa, float) else kappa[keep]
        if len(rows) == 0:
            break
    return best


def _least(linear: bool, low: Tensor, high: Tensor, g: Tensor, lam: Tensor, sigma: Activation) -> Tensor:
    """Where g σ(p) − λ p is least over [low, high]."""
    at_low, at_high = g * sigma(low) - lam * low, g * sigma(high) - lam * high
    p = torch.where(at_low <= at_high, low, high)
    if linear:
        return p
    kink = (low < 0) & (high > 0) & (torch.minimum(at_low, at_high) > 0)
    return torch.where(kink, 0.0, p)
