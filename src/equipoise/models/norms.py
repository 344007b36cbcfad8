"""‖W‖ of a weight, accurate or estimated: not rounded outward, so no theorem may use it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..linalg import estimate_norm
from ..solve.norms import norm_dtype


def spectral_norm(W: Tensor) -> float:
    """‖W‖ by a float64 SVD: accurate, not rounded outward."""
    return float(torch.linalg.matrix_norm(W.detach().double(), ord=2))


def wellposed_norms(W: Tensor) -> tuple[float, float]:
    """‖W‖ and λ_max(sym W), either of which below 1 gives every input one equilibrium; by float64 too."""
    if not bool(torch.isfinite(W).all()):
        return math.nan, math.nan
    half = W.detach().double() / 2
    return spectral_norm(W), float(torch.linalg.eigvalsh(half + half.T)[-1])


def norm_estimate(W: Tensor) -> float:
    """About ‖W‖: √(‖W‖₁‖W‖_∞) where that shows it below 1 (exact if diagonal), else by Lanczos."""
    W = W.to(norm_dtype(W))
    size = W.abs()
    bound = float(size.sum(dim=0).amax() * size.sum(dim=1).amax()) ** 0.5
    if bound < 1:
        return bound
    return estimate_norm(W, steps=8, generator=torch.Generator(W.device).manual_seed(0)).value
