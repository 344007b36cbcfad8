"""Inputs that break what is wanted: found by descending the worst margin, believed only after a check."""

from __future__ import annotations

import torch
from torch import Tensor

from .bounds import Problem
from .outputs import Wanted


def broken(problem: Problem, wanted: Wanted, x: Tensor) -> Tensor:
    """(N,): whether x (N, d) lies in its sample's set, with a margin below 0 whatever was rounded."""
    net = problem.network
    b, b_error = net.injection(x)
    h = net.equilibria(b)
    scores, error = net.scores(h, net.equilibrium_error(h, b, b_error))
    margin, off = wanted.margins(scores, error)
    below = (margin + off * (1 + 2.0**-40) < 0).any(dim=1) & torch.isfinite(scores).all(dim=1)
    return below & problem.sets.contains(x)


def attacked(problem: Problem, wanted: Wanted, *, steps: int, restarts: int, seed: int = 0) -> Tensor:
    """(N, d): inputs with the least margins that were found; the first start is the centre itself.

    Steps follow the gradient through the equilibrium, ν U with ν = D∘(w + Wᵀν), D = σ'(p).
    """
    net, sets = problem.network, problem.sets
    N, generator = len(problem.injection), torch.Generator().manual_seed(seed)
    best, least = sets.projected(sets.centre), torch.full((N,), torch.inf, dtype=torch.float64)
    sample = torch.arange(N)
    for restart in range(restarts):
        x = sets.centre
        if restart:
            draw = torch.rand(x.shape, dtype=torch.float64, generator=generator)
            x = sets.lower + draw * (sets.upper - sets.lower)
        x, h = sets.projected(x), None
        for step in range(steps + 1):
            b, _ = net.injection(x)
            h = net.equilibria(b, h)
            p = b + net.forth(h)
            margin, _ = wanted.margins(*net.scores(h, torch.zeros(N, dtype=torch.float64)))
            value, target = margin.min(dim=1)
            better = value < least
            best[better], least[better] = x[better], value[better]
            if step == steps:
                break
            D = net.activation.slope(p)
            w = wanted.functionals(problem, sample, target).w
            nu = net.multipliers(D).of(sample, D * w)
            to = sets.step_to(net.onto(nu).nan_to_num(), sample)
            x = sets.projected(x + max(0.1, 1 - step / steps) * to)
    return best
