"""Every input has exactly one equilibrium: the family's own reason, computed, and the rate it predicts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..linalg import Interval
from ..models.altered import altered
from ..models.conv import ConvOptEq
from ..models.linear import LinearEquilibrium
from ..models.opteq import MultiBlockOptEq
from .certificate import Certificate
from .conv_robustness import conv_error
from .instance import Instance
from .opteq import is_opteq, opteq_error


@dataclass(frozen=True)
class WellPosed:
    """One z with z = σ(W z + u), for every u.

    `constants` hold the resolvent bound R; the factor `rate` by which a step of plain iteration brings the
    iterate nearer (of forward-backward splitting where the map is monotone and not known to contract, in the
    1-norm for LinearEquilibrium); and
    `error`, a sound distance of the computed equilibria to the true ones.
    """

    name: ClassVar[str] = "wellposed"
    needs_targets: ClassVar[bool] = False

    def prove(self, instance: Instance) -> Certificate:
        frame: dict[str, Any] = {
            "theorem": self.name,
            "hypotheses": (instance.arithmetic,),
            "tier": instance.tier,
            "fingerprint": instance.fingerprint,
        }
        if instance.obstacle:
            return Certificate(claims=(), obstacle=instance.obstacle, **frame)
        at = instance.enclosure
        if not instance.unique:
            return Certificate(claims=at.unique, constants={"reason": at.reason}, **frame)
        rate, method = _rate(instance)
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


def _rate(instance: Instance) -> tuple[float, str]:
    """An upper bound of the contraction factor, and of what."""
    model, at = instance.model, instance.enclosure
    if at.unique[0] is at.contraction or isinstance(model, LinearEquilibrium):
        return at.unique[0].left.hi, "plain iteration"
    eye = torch.eye(model.width, dtype=torch.float64, device=at.weight.device)
    # ℓ ≥ ‖I − W‖, the rounding of I − W included; the factor is √(1 − (μ/ℓ)²) at the step μ/ℓ².
    lipschitz = instance.singular(eye - at.weight).norm.hi * Interval(1 + 2.0**-52) + at.weight_error
    share = 1 / (Interval(at.resolvent.hi) * lipschitz)  # μ = 1/R
    return min((1 - share**2).sqrt().hi, 1.0), "forward-backward splitting"


def equilibrium_error(model: torch.nn.Module, X: Tensor, Z: Tensor) -> float:
    """≥ ‖Z − Z*‖_F for any Z offered as the equilibria of X: an a-posteriori bound, ∞ where none is proved.

    ‖z − z*‖ ≤ (1 + ‖W‖R)‖z − f(z)‖, for contractions and monotone maps alike. (‖z − f(z)‖/μ, which looks like
    the monotone form, is violated in practice.) For an OptEq or a ConvOptEq ‖z − T(z)‖/(1 − q), of T itself,
    not of the whole steps that are solved. A part of a ConvOptEq that has no bound at all, such as the batch
    norms of an OptEqSegmenter or one in an extractor, is a ValueError that names it.
    """
    if isinstance(model, ConvOptEq):
        return math.inf if altered(model, outside=()) else conv_error(model, X, Z)
    if is_opteq(model):
        return _opteq_error(model, X, Z)
    instance = Instance(model, X)  # type: ignore[arg-type]
    expected = (instance.N, instance.model.width)
    _check_shape(Z, expected)
    if instance.obstacle or not bool(torch.isfinite(Z).all()) or not instance.unique:
        return math.inf
    return instance.equilibria_of(Z.detach().to(instance.X.device).double()).error


def _opteq_error(model: Any, X: Tensor, Z: Tensor) -> float:
    blocks = " A stacked state is no Z: give equilibrium(X)." if isinstance(model, MultiBlockOptEq) else ""
    _check_shape(Z, (len(X), model.state), blocks)
    return math.inf if altered(model) else opteq_error(model, X, Z)


def _check_shape(Z: Tensor, expected: tuple[int, int], hint: str = "") -> None:
    if not isinstance(Z, Tensor) or tuple(Z.shape) != expected:
        got = tuple(Z.shape) if isinstance(Z, Tensor) else type(Z).__name__
        raise ValueError(f"Z must be {expected}, a row a sample. Got {got} instead.{hint}")
