"""Why an affine family has one equilibrium for every input: reasons that more than one family has.

A map that contracts has R = 1/(1 − ‖W‖), one with a positive symmetric part of I − W has
R = 1/(1 − λ_max(sym W)). Both are asked, and the better one counts.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..linalg import Interval, symmetric_part_margin_lower
from .claim import Claim

SVD = "a-posteriori bounds on an SVD, rounded outward"
EXACT = "exact, by the parameterisation"


def contracts(
    norm: Interval, method: str = SVD, name: str = "‖W‖ < 1", remedy: str = "a smaller W (sigma_w2)"
) -> Claim:
    """‖W‖ < 1, from the norm."""
    statement = "the map contracts: one equilibrium for every input"
    return Claim(name, statement, norm, "<", Interval(1.0), method, remedy=remedy)


def resolvent_of(reason: Claim) -> Interval:
    """R of a contraction: 1/(1 − q)."""
    return 1 / (1 - reason.left) if reason.holds else Interval(0.0, math.inf)


def is_positive(margin: float) -> Claim:
    """λ_max(sym W) < 1, from a margin ≤ λ_min(sym(I − W))."""
    return Claim(
        "λ_max(sym W) < 1",
        "sym(I − W) is positive, though W may not contract: one equilibrium for every input",
        Interval(-math.inf, (1 - Interval(margin)).hi),
        "<",
        Interval(1.0),
        "a Cholesky witness, rounded outward",
    )


def reasons(contraction: Claim, margin: float) -> dict[str, Any]:
    """Of a family that contracts or is monotone: the better of both, and ‖W‖ < 1 where neither is proved."""
    reason, resolvent = contraction, resolvent_of(contraction)
    if margin > 0:
        reason = contraction if contraction.holds else is_positive(margin)
        resolvent = Interval(0.0, min(resolvent.hi, (1 / Interval(margin)).hi))
    return {
        "unique": (reason,),
        "resolvent": resolvent,
        "reason": reason.name,
        "contraction": contraction,
    }


def margin_of(W: Tensor, error: float) -> float:
    """≤ λ_min(sym(I − W exact)) for a W that is off by at most `error`."""
    return (Interval(symmetric_part_margin_lower(W)) - error).lo
