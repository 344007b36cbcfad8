"""Every input has exactly one equilibrium: the family's own reason, computed, and the rate it predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .certificate import Certificate
from .instance import Instance
from .register import facts


@dataclass(frozen=True)
class WellPosed:
    """One z with z = σ(W z + u), for every u.

    `constants` hold the resolvent bound R; the factor `rate` by which a step of plain iteration brings the
    iterate nearer (in the 1-norm for LinearEquilibrium; a step of forward-backward splitting if the map is
    monotone and not known to contract); and `error`, a bound of the distance of the computed equilibria to
    the true ones.
    """

    name: ClassVar[str] = "wellposed"
    needs_targets: ClassVar[bool] = False

    def prove(self, instance: Instance) -> Certificate:
        """The verdict on an instance, by the reason of its family."""
        frame: dict[str, Any] = {
            "theorem": self.name,
            "hypotheses": (instance.arithmetic, *instance.facts.rests_on),
            "tier": instance.tier,
            "fingerprint": instance.fingerprint,
        }
        if instance.obstacle:
            return Certificate(claims=(), obstacle=instance.obstacle, **frame)
        at = instance.enclosure
        if not instance.unique:
            return Certificate(claims=at.unique, constants={"reason": at.reason}, **frame)
        rate, method = instance.facts.rate(instance)
        return Certificate(
            claims=at.unique,
            promise=(
                f"every input has exactly one equilibrium ({at.reason}); each step of {method} brings the "
                f"iterate nearer by a factor {rate:.6g}."
            ),
            constants={
                "R": at.resolvent.hi,
                "rate": rate,
                "error": instance.equilibria.error,
                "reason": at.reason,
            },
            **frame,
        )


def equilibrium_error(model: torch.nn.Module, X: Tensor, Z: Tensor) -> float:
    """≥ ‖Z − Z*‖_F for any Z offered as the equilibria of X: an a-posteriori bound, ∞ where none is proved.

    ‖z − z*‖ ≤ (1 + ‖W‖R)‖z − f(z)‖, for contractions and monotone maps alike. (‖z − f(z)‖/μ, which looks like
    the monotone form, is violated in practice.) For an OptEq or a ConvOptEq ‖z − T(z)‖/(1 − q), of T itself,
    not of the whole steps that are solved. A part of a ConvOptEq that has no bound at all, such as the batch
    norms of an OptEqSegmenter or one in an extractor, is a ValueError that names it.
    """
    return facts(model).equilibrium_error(X, Z)


def check_shape(Z: Tensor, expected: tuple[int, ...], hint: str = "") -> None:
    """Raise a ValueError unless Z has the shape of the equilibria."""
    if not isinstance(Z, Tensor) or tuple(Z.shape) != expected:
        got = tuple(Z.shape) if isinstance(Z, Tensor) else type(Z).__name__
        rows = "one row for each sample" if len(expected) == 2 else "one state for each image"
        raise ValueError(f"Z must be {expected}, {rows}. Got {got} instead.{hint}")
