"""Why every image of a ConvOptEq or a ConvMonotone has exactly one equilibrium.

| family | unique because | R |
| --- | --- | --- |
| ConvOptEq | ∏(1 − α + α‖W_l‖²) < 1    [xie2021] | 1/(1 − q), q that product |
| ConvMonotone | sym(I − W) = μI + Aᵀ⋆A⋆, for every A, B    [hieu2022] | 1/μ |

Norms are those of convolutions as linear maps of images, bounded by their symbols on an FFT grid.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..linalg import Interval, conv_norm_upper, frobenius, gamma
from ..models.conv import ConvMonotone, ConvOptEq
from ..models.conv.conv_opteq import ConvLayer
from ..models.conv.parts import transposed_kernel
from ..models.conv.segmentation import OptEqSegmenter
from ..models.methods import returned
from .certificate import FLOAT64_TIER, Certificate, fingerprint
from .claim import Claim
from .families import is_monotone
from .opteq import declared, not_finite, unknown_layer

METHOD = "the symbol on an FFT grid, its rounding added"


@torch.no_grad()
def prove_conv_wellposed(model: ConvOptEq | ConvMonotone, X: Tensor, tier: str = "float64") -> Certificate:
    """The certificate of `theorem="wellposed"`: R and the rate of plain iteration, or of splitting."""
    if tier == "rigorous":
        raise ValueError("the tier 'rigorous' forms dense products in balls, and knows no convolution.")
    if tuple(X.shape[1:]) != model.inputs:
        shape = ", ".join(map(str, model.inputs))
        raise ValueError(f"X must be images, (N, {shape}). Got shape {tuple(X.shape)} instead.")
    if not len(X):
        raise ValueError("X must have at least one image: a certificate is about data. Got none.")
    frame = {
        "theorem": "wellposed",
        "hypotheses": (FLOAT64_TIER, *_declared(model)),
        "tier": tier,
        "fingerprint": fingerprint(model, X),
    }
    obstacle = _obstacle(model, X)
    if obstacle:
        return Certificate(claims=(), obstacle=obstacle, **frame)  # type: ignore[arg-type]
    return _monotone(model, frame) if isinstance(model, ConvMonotone) else _contraction(model, frame)


def _contraction(model: ConvOptEq, frame: dict[str, Any]) -> Certificate:
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
        return Certificate(claims=(claim,), constants={"reason": claim.name}, **frame)
    return Certificate(
        claims=(claim,),
        promise=(
            f"every image has exactly one equilibrium ({claim.name}); each step of plain iteration brings "
            f"the iterate nearer by a factor {q:.6g}."
        ),
        constants={"R": (1 / (1 - Interval(q))).hi, "rate": q, "reason": claim.name},
        **frame,
    )


def _monotone(model: ConvMonotone, frame: dict[str, Any]) -> Certificate:
    """With M = I − W = S − K, S = μI + Aᵀ⋆A⋆ and K = B⋆ − Bᵀ⋆,

        ‖Mx‖ ≤ (‖S^½‖ + ‖K‖/√μ) ‖S^½x‖ = √λ ‖S^½x‖,  so  ‖(I − αM)x‖² ≤ (1 − (2α − α²λ)μ)‖x‖²  for αλ ≤ 2:

    forward-backward splitting contracts, most at α = 1/λ.
    """
    claim = is_monotone(model)
    mu, B = Interval(model.margin), model.B.cpu().double()
    K, side = B - transposed_kernel(B), B.shape[-1]
    a, k = (Interval(conv_norm_upper(T, model.state[1:], 1, side // 2)) for T in (model.A, K))
    k = k + gamma(1) * side * frobenius(K)  # entries of K were rounded; ‖K‖ ≤ side ‖K‖_F
    curvature = ((mu + a**2).sqrt() + k / mu.sqrt()) ** 2  # λ
    step, rate, nearer = 1 / curvature.hi, 1.0, ""
    if step:
        rate = min((1 - (2 * Interval(step) - Interval(step) ** 2 * curvature.hi) * mu).sqrt().hi, 1.0)
    if rate < 1:
        nearer = (
            f"; each step of forward-backward splitting with α = {step:.6g} brings the iterate nearer by a "
            f"factor {rate:.6g}"
        )
    return Certificate(
        claims=(claim,),
        promise=f"every image has exactly one equilibrium ({claim.name}){nearer}.",
        constants={"R": (1 / mu).hi, "rate": rate, "step_size": step, "reason": claim.name},
        **frame,
    )


def _declared(model: ConvOptEq | ConvMonotone) -> list[str]:
    if isinstance(model, ConvOptEq):
        found = declared(model)
    else:
        instead = returned(model.method)
        found = [f"what is said is of equilibria: the model itself returns {instead}"] if instead else []
    if any(norm.training for norm in _batch_norms(model).values()):
        found.append(
            "batch norms are in training: the equilibrium of an image is that in its batch, and another "
            "beside other images; model.eval() gives each its own"
        )
    return found


def _batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Those that an equilibrium depends on: all but the ones that read it."""
    return {
        name: m
        for name, m in model.named_modules()
        if isinstance(m, _BatchNorm) and name.partition(".")[0] not in ("last_norm", "head")
    }


def _obstacle(model: ConvOptEq | ConvMonotone, X: Tensor) -> str:
    """Why nothing can be said at all; empty if something can."""
    known = next(k for k in (OptEqSegmenter, ConvOptEq, ConvMonotone) if isinstance(model, k))
    if type(model) is not known:
        return (
            f"{type(model).__name__} may compute otherwise than {known.__name__}, which is known. Certify a "
            f"{known.__name__} with its parameters (load_state_dict): modules of your own can be its "
            f"extractor and its head, or stand around it."
        )
    if isinstance(model, ConvOptEq) and (why := unknown_layer(model.layers, ConvLayer)):
        return why
    for name, norm in _batch_norms(model).items():
        if norm.running_var is not None and bool((norm.running_var < 0).any()):
            return f"{name}.running_var must be ≥ 0, as variances are, and holds {norm.running_var.min():g}."
    R = model.regulariser if isinstance(model, ConvOptEq) else None
    if R is not None and not R.nonexpansive:
        return f"{R} is not known to be nonexpansive: R is not convex, or the step too long."
    return not_finite(model, X)
