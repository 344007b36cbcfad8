"""‖z − z*‖ ≤ ‖z − f(z)‖·min{1/(1 − ‖W‖), 1 + ‖W‖/μ, √m/(1 − ‖W‖₁), √m/(1 − ‖W‖_∞)}: how near z is.

With x = z − z* and r = z − f(z), f(z) = σ(W z + b), there is a diagonal 0 ≤ D ≤ I with x = r + D W x, since σ
is non-decreasing and 1-Lipschitz. Each factor bounds the x of every such D: the first, third and fourth
because D W contracts in a norm, the second because (I − D W)⁻¹D is at most 1/μ for μ = λ_min(sym(I − W)) > 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linalg import Interval, gamma, inf_norm_upper, norm_upper, one_norm_upper, symmetric_part_margin_lower
from .norms import row_norms
from .problem import AffineMap


@dataclass(frozen=True)
class Solved:
    """An AffineMap as it was when it was solved."""

    problem: AffineMap
    versions: tuple[int | None, ...]

    @classmethod
    def of(cls, problem: AffineMap) -> Solved:
        """What an error bound of this map's equilibria is computed from."""
        return cls(problem, _versions(problem))

    def error(self, z: Tensor) -> Tensor | None:
        """≥ ‖z − z*‖ of each row, (N,) in float64; None where no bound is known."""
        if _versions(self.problem) != self.versions:
            raise RuntimeError(
                "the error is the distance to the equilibrium of the weights and inputs that were solved. "
                "Some have been changed in place since: ask for the error before that, or solve again."
            )
        return error_bounds(self.problem, z)


@torch.no_grad()
def error_bounds(problem: AffineMap, z: Tensor) -> Tensor | None:
    """≥ ‖z − z*‖ for the one equilibrium z* of each row, (N,) in float64; None where none is proved.

    The equilibrium is that of W and b as they are stored. All is rounded outward, with the hypotheses on
    arithmetic of `equipoise.linalg`.
    """
    if not problem.activation.exact:
        return None
    factor = _factor(problem.weight)
    if not factor < math.inf:
        return None
    W, b, z = (t.detach().double() for t in (problem.weight, problem.bias, z))
    m = len(W)
    f = problem.activation(torch.addmm(b, z, W.T))
    sizes = torch.addmm(b.abs(), z.abs(), W.abs().T)  # (N, m): each dot product errs by γ of this
    off = (z - f).abs() + 2 * gamma(m + 4) * sizes + 2 * (m + 4) * 2.0**-1074
    # The roundings of a norm of m numbers, and of the operations around it, are below m·2⁻⁵⁰ + 2⁻⁴⁰ of it.
    bound = (row_norms(off) * (1 + m * 2.0**-50 + 2.0**-40) + 2.0**-1060) * factor * (1 + 2.0**-40)
    return bound.nan_to_num(nan=math.inf, posinf=math.inf)


def _factor(weight: Tensor) -> float:
    """The least of the factors that are proved, ∞ where none is."""
    q, margin = Interval(norm_upper(weight)), Interval(symmetric_part_margin_lower(weight))
    found = [
        Interval(len(weight)).sqrt() / (1 - Interval(norm(weight)))
        for norm in (one_norm_upper, inf_norm_upper)
        if norm(weight) < 1
    ]
    if q.hi < 1:
        found.append(1 / (1 - q))
    if margin.lo > 0:
        found.append(1 + q / margin)
    return min((one.hi for one in found), default=math.inf)


def _versions(problem: AffineMap) -> tuple[int | None, ...]:
    return tuple(None if t.is_inference() else t._version for t in (problem.weight, problem.bias))
