"""Every input has exactly one equilibrium: the family's own reason, computed, and the rate it predicts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .certificate import FLOAT64_TIER, Certificate
from .enclosure import Equilibria
from .instance import Instance


@dataclass(frozen=True)
class WellPosed:
    """One z with z = σ(W z + u), for every u.

    `constants` hold the resolvent bound R, the contraction factor q (None where the reason is monotonicity),
    and the sound distance of the computed equilibria to the true ones.
    """

    name: ClassVar[str] = "wellposed"
    needs_targets: ClassVar[bool] = False

    def prove(self, instance: Instance) -> Certificate:
        common = {"theorem": self.name, "fingerprint": instance.fingerprint, "hypotheses": (FLOAT64_TIER,)}
        if instance.obstacle:
            return Certificate(claims=(), obstacle=instance.obstacle, **common)  # type: ignore[arg-type]
        at = instance.enclosure
        q = instance.model.contraction()
        rate = "by splitting" if q is None else f"by a factor {q:.3g} a step of plain iteration"
        return Certificate(
            claims=at.unique,
            promise=f"every input has exactly one equilibrium ({at.reason}); solvers approach it {rate}.",
            constants={
                "R": at.resolvent.hi,
                "q": q,
                "error": instance.equilibria.error,
                "reason": at.reason,
            },
            **common,  # type: ignore[arg-type]
        )


def equilibrium_error(model: torch.nn.Module, X: Tensor, Z: Tensor) -> float:
    """≥ ‖Z − Z*‖_F for any Z offered as the equilibria of X: an a-posteriori bound, ∞ where none is proved.

    ‖z − z*‖ ≤ ‖z − f(z)‖ + R‖W(z − f(z))‖, for contractions and monotone maps alike. (‖z − f(z)‖/μ, which
    looks like the monotone form, is violated in practice.)
    """
    instance = Instance(model, X)  # type: ignore[arg-type]
    if instance.obstacle or not all(c.holds for c in instance.enclosure.unique):
        return math.inf
    if tuple(Z.shape) != (instance.N, instance.model.width):
        raise ValueError(
            f"Z must be {(instance.N, instance.model.width)}. Got shape {tuple(Z.shape)} instead."
        )
    if not bool(torch.isfinite(Z).all()):
        return math.inf
    return Equilibria(instance.model, instance.enclosure, Z.detach().double()).error
