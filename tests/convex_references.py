"""The losses of anchored training from their definitions, in as many digits as mpmath is set to."""

from __future__ import annotations

import mpmath
import torch


def targets(loss: str, N: int, k: int, seed: int = 0) -> torch.Tensor:
    """Targets that fit a loss: classes, probabilities of two, signs or numbers."""
    generator = torch.Generator().manual_seed(seed)
    if loss == "cross_entropy":
        return torch.randint(0, k, (N,), generator=generator)
    if loss == "logistic":
        return torch.rand(N, k, generator=generator, dtype=torch.float64)
    if loss == "smoothed_hinge":
        return 2.0 * torch.randint(0, 2, (N, k), generator=generator).double() - 1
    return torch.randn(N, k, generator=generator, dtype=torch.float64)


def exact_loss(loss: str, q: list, y: list) -> mpmath.mpf:
    """ℓ(q, y) of one row in fifty digits, from its definition."""
    q, y = [mpmath.mpf(x) for x in q], [mpmath.mpf(x) for x in y]
    pairs = list(zip(q, y, strict=True))
    if loss in ("square", "half_square"):
        return sum((a - b) ** 2 for a, b in pairs) / (2 if loss == "half_square" else 1)
    if loss == "cross_entropy":
        return sum(b * (mpmath.log(sum(mpmath.exp(x) for x in q)) - a) for a, b in pairs)
    if loss == "logistic":
        return sum(mpmath.log(1 + mpmath.exp(a)) - b * a for a, b in pairs)
    return sum(max(mpmath.mpf(0), 1 - a * b) ** 2 for a, b in pairs)


def exact_slope(loss: str, q: list, y: list) -> list:
    """∂ℓ/∂q of one row in fifty digits."""
    q, y = [mpmath.mpf(x) for x in q], [mpmath.mpf(x) for x in y]
    if loss in ("square", "half_square"):
        return [(a - b) * (2 if loss == "square" else 1) for a, b in zip(q, y, strict=True)]
    if loss == "cross_entropy":
        total = sum(mpmath.exp(x) for x in q)
        return [mpmath.exp(a) / total * sum(y) - b for a, b in zip(q, y, strict=True)]
    if loss == "logistic":
        return [1 / (1 + mpmath.exp(-a)) - b for a, b in zip(q, y, strict=True)]
    return [-2 * b * max(mpmath.mpf(0), 1 - a * b) for a, b in zip(q, y, strict=True)]
