"""∏(1 − α + α‖W_l‖²) < 1: every image of a ConvOptEq has exactly one equilibrium.    [xie2021]

‖W_l‖ is that of the convolution as a linear map of images, bounded by its symbol on an FFT grid.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..linalg import Interval
from ..models.conv import ConvOptEq
from ..models.conv.segmentation import OptEqSegmenter
from .certificate import FLOAT64_TIER, Certificate, fingerprint
from .claim import Claim
from .opteq import declared, not_finite

METHOD = "the symbol on an FFT grid, its rounding added"


@torch.no_grad()
def prove_conv_wellposed(model: ConvOptEq, X: Tensor, tier: str = "float64") -> Certificate:
    """The certificate of `theorem="wellposed"`: R = 1/(1 − q) and the rate q. It holds for every image."""
    if tier == "rigorous":
        raise ValueError("the tier 'rigorous' forms dense products in balls, and knows no convolution.")
    if tuple(X.shape[1:]) != model.inputs:
        shape = ", ".join(map(str, model.inputs))
        raise ValueError(f"X must be images, (N, {shape}). Got shape {tuple(X.shape)} instead.")
    if not len(X):
        raise ValueError("X must have at least one image: a certificate is about data. Got none.")
    frame = {
        "theorem": "wellposed",
        "hypotheses": (FLOAT64_TIER, *declared(model)),
        "tier": tier,
        "fingerprint": fingerprint(model, X),
    }
    obstacle = _obstacle(model, X)
    if obstacle:
        return Certificate(claims=(), obstacle=obstacle, **frame)  # type: ignore[arg-type]
    q = model.wellposed().contraction
    claim = Claim(
        "∏(1−α+α‖W_l‖²) < 1",
        "the map contracts: one equilibrium for every image",
        Interval(0.0, q),
        "<",
        Interval(1.0),
        METHOD,
        remedy="project_() with limit=0.99: smaller kernels",
    )
    if not claim.holds:
        return Certificate(claims=(claim,), constants={"reason": claim.name}, **frame)  # type: ignore[arg-type]
    return Certificate(
        claims=(claim,),
        promise=(
            f"every image has exactly one equilibrium ({claim.name}); each step of plain iteration brings "
            f"the iterate nearer by a factor {q:.6g}."
        ),
        constants={"R": (1 / (1 - Interval(q))).hi, "rate": q, "reason": claim.name},
        **frame,  # type: ignore[arg-type]
    )


def _obstacle(model: ConvOptEq, X: Tensor) -> str:
    """Why nothing can be said at all; empty if something can."""
    if type(model) not in (ConvOptEq, OptEqSegmenter):
        return f"{type(model).__name__} may compute otherwise than the family that is known."
    expansive = model.regulariser is not None and not model.regulariser.nonexpansive
    if expansive:
        return f"{model.regulariser} is not known to be nonexpansive: R is not convex, or the step too long."
    return not_finite(model, X)
