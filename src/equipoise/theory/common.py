"""What the papers' theorems share: obstacles, hypotheses and the frame of a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..linalg import Interval
from .certificate import EXACT_GRADIENTS, FLOAT64_TIER, Certificate, Kind
from .claim import Claim, Claims
from .instance import Instance

HALF_SQUARE = "the loss is ½‖ŷ − y‖² summed over the samples"
FULL_BATCH = "every parameter moves by full-batch gradient steps of one step size"
FULL_FLOW = "every parameter follows the gradient flow of the full batch"


def obstacle_of(instance: Instance, family: type, scalar: bool = True) -> str:
    """Why a theorem of this family cannot speak of the instance at all; empty when it can."""
    if not isinstance(instance.model, family):
        return (
            f"the theorem is about {family.__name__}. Got {type(instance.model).__name__} instead: "
            f"'two_timescale' and 'safeguarded' speak of every family."
        )
    if scalar and instance.model.outputs != 1:
        return (
            f"the theorem is about one output. Got {instance.model.outputs} instead: 'two_timescale' and "
            f"'safeguarded' allow any number."
        )
    return instance.obstacle


def independent_rows(claims: Claims, instance: Instance) -> Claim:
    """σ_min(Z(0)) > 0: without it every theorem of this kind promises L ≤ L(0) and no more."""
    m, N = instance.model.width, instance.N
    remedy = (
        f"a width of at least {N}"
        if m < N
        else "removing duplicate or zero rows, or theorem='safeguarded' with slack"
    )
    return claims.need(
        "σ_min(Z) > 0",
        instance.sigma_N,
        ">",
        0.0,
        "the equilibria of the samples are linearly independent",
        method="a-posteriori bounds on an SVD, less the error of the equilibria",
        remedy=remedy,
    )


def well_posed(claims: Claims, instance: Instance) -> bool:
    claims.items.extend(instance.enclosure.unique)
    return all(c.holds for c in instance.enclosure.unique)


def certificate(
    theorem: str,
    instance: Instance,
    claims: Claims | None = None,
    *,
    kind: Kind,
    hypotheses: tuple[str, ...] = (),
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Certificate:
    """A certificate with what every training theorem states."""
    move = FULL_FLOW if kind == "flow" else FULL_BATCH
    return Certificate(
        theorem=theorem,
        claims=tuple(claims.items) if claims else (),
        kind=kind,
        hypotheses=(HALF_SQUARE, *(hypotheses or (move,)), EXACT_GRADIENTS, FLOAT64_TIER),
        options={k: v for k, v in (options or {}).items() if v is not None},
        fingerprint=instance.fingerprint,
        **more,
    )


def relative_movement(instance: Instance, distance: Interval) -> float:
    """An upper bound of ‖Z − Z(0)‖_F as a share of ‖Z(0)‖_F."""
    return (distance / instance.equilibria.frobenius).hi
