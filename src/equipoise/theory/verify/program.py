"""The best multipliers of a part in which every unit is on or off, by a linear program: untrusted too."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from .bounds import Problem

_PENALTY = 1e3  # the price of violating the equation, relative to the multipliers that are known


def programmed(problem: Problem, sample: int, low: Tensor, high: Tensor, w: Tensor, nu: Tensor) -> Tensor:
    """ν (n,) of min w·D p over (I − W D) p = U x + u, low ≤ p ≤ high, x in its box; the given ν if it fails.

    Violations of the equation are allowed at a price, so that a part without inputs gets multipliers, and by
    them a bound, as large as the price allows.
    """
    net, n = problem.network, problem.network.width
    D = np.ones(n) if net.linear else (low >= 0).double().numpy()
    W, U, u, c = (t.numpy() for t in (net.weight, net.inputs, net.offset, w))
    price = _PENALTY * (1 + float(nu.abs().amax()))
    if not all(np.isfinite(a).all() for a in (W, U, u, c, price)) or low.isnan().any() or high.isnan().any():
        return nu
    eye = np.eye(n)
    found = linprog(
        np.concatenate([c * D, np.zeros(U.shape[1]), np.full(2 * n, price)]),
        A_eq=np.concatenate([eye - W * D, -U, eye, -eye], axis=1),
        b_eq=u,
        bounds=np.concatenate(
            [
                torch.stack([low, high], dim=1).numpy(),
                torch.stack([problem.sets.lower[sample], problem.sets.upper[sample]], dim=1).numpy(),
                np.tile([0.0, np.inf], (2 * n, 1)),
            ]
        ),
    )
    if found.status != 0:
        return nu
    return torch.from_numpy(found.eqlin.marginals)
