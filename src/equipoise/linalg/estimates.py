"""`K_k = span{b, Ab, …, A^{k−1}b}`: cheap estimates of a spectrum from a few products. They prove nothing.

A Ritz value lies inside the spectrum, so these numbers err on the flattering side: norms and radii come out
too small, smallest eigenvalues too large. They are returned as an `Estimate`, which is no float: `Interval`
refuses it, and its number must be read as `.value`. The bounds are in `sound.py` and `cheap.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

Operator = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Estimate:
    """A number that proves nothing: its value, the products it took, and how far it still seems to be off."""

    value: float
    products: int
    residual: float

    def __float__(self) -> NoReturn:
        raise TypeError(
            "an Estimate proves nothing and is no float: read .value, or use a bound of equipoise.linalg"
        )


def estimate_norm(M: Tensor, steps: int = 20, generator: torch.Generator | None = None) -> Estimate:
    """About ‖M‖₂ = √λ_max(MᵀM), from below, of a matrix of any size; NaN where an entry is not finite."""
    size = _largest(M) or 1.0
    if not math.isfinite(size):
        return Estimate(math.nan, 0, math.nan)
    M = M.to(_wide(M)) / size  # whose squares neither overflow nor underflow
    found = estimate_lambda_max(lambda x: M.mT @ (M @ x), M.new_empty(M.shape[1]), steps, generator)
    value = math.sqrt(max(found.value, 0.0))
    return Estimate(size * value, 2 * found.products, size * found.residual / (2 * value) if value else 0.0)


def estimate_lambda_max(
    apply: Operator, like: Tensor, steps: int = 30, generator: torch.Generator | None = None
) -> Estimate:
    """About λ_max of a symmetric operator on tensors shaped as `like`, from below (Lanczos)."""
    H, rest = _krylov(apply, like, steps, generator)
    if not bool(torch.isfinite(H).all()):
        return Estimate(math.nan, len(H), math.nan)
    values, vectors = torch.linalg.eigh((H + H.mT) / 2)
    return Estimate(values[-1].item(), len(H), abs(rest * vectors[-1, -1].item()))


def estimate_lambda_min(
    apply: Operator, like: Tensor, steps: int = 30, generator: torch.Generator | None = None
) -> Estimate:
    """About λ_min of a symmetric operator on tensors shaped as `like`, from above (Lanczos)."""
    found = estimate_lambda_max(lambda x: -apply(x), like, steps, generator)
    return Estimate(-found.value, found.products, found.residual)


def estimate_spectral_radius(
    matvec: Operator, z: Tensor, steps: int = 30, generator: torch.Generator | None = None
) -> Estimate:
    """About max|λ| of a linear operator on tensors shaped as z, symmetric or not (Arnoldi)."""
    H, rest = _krylov(matvec, z, steps, generator)
    if not bool(torch.isfinite(H).all()):
        return Estimate(math.nan, len(H), math.nan)
    values, vectors = torch.linalg.eig(H)
    top = int(values.abs().argmax())
    return Estimate(values[top].abs().item(), len(H), abs(rest * vectors[-1, top].abs().item()))


def estimate_trace(
    apply: Operator, like: Tensor, samples: int = 30, generator: torch.Generator | None = None
) -> Estimate:
    """About tr A, the mean of `xᵀAx` over random signs x (Hutchinson); the residual is its standard error."""
    if samples < 2:
        raise ValueError(f"estimate_trace needs samples ≥ 2 to know its own spread. Got {samples}")
    draws = []
    for _ in range(samples):
        x = torch.randint(0, 2, like.shape, generator=generator, device=like.device).to(like.dtype) * 2 - 1
        draws.append((x * apply(x)).sum())
    values = torch.stack(draws).to(torch.float64)
    return Estimate(values.mean().item(), samples, (values.std() / math.sqrt(samples)).item())


@torch.no_grad()
def _krylov(
    apply: Operator, like: Tensor, steps: int, generator: torch.Generator | None
) -> tuple[Tensor, float]:
    """`A Q = Q H + h q eᵀ` with QᵀQ = I: H (k, k) and h, from a random start, fully reorthogonalised."""
    if steps < 1 or like.numel() == 0:
        raise ValueError(f"a Krylov estimate needs steps ≥ 1 and a space of dimension ≥ 1. Got steps={steps}")
    steps, wide = min(steps, like.numel()), _wide(like)
    q = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device).flatten().to(wide)
    Q = q.new_zeros(steps + 1, q.numel())
    H = q.new_zeros(steps + 1, steps)
    Q[0] = q / q.norm()
    for j in range(steps):
        w = apply(Q[j].view(like.shape).to(like.dtype)).flatten().to(wide)
        size = _norm(w)
        for _ in range(2):  # twice is enough
            h = Q[: j + 1] @ w
            w = w - h @ Q[: j + 1]
            H[: j + 1, j] += h
        H[j + 1, j] = _norm(w)
        # The subspace is invariant, or the numbers are not finite.
        if not H[j + 1, j] > 4 * torch.finfo(wide).eps * size or not math.isfinite(size):
            return H[: j + 1, : j + 1], 0.0
        Q[j + 1] = w / H[j + 1, j]
    return H[:steps], H[steps, steps - 1].item()


def _wide(t: Tensor) -> torch.dtype:
    """A dtype in which torch computes eigenvalues: float32 in place of half precision."""
    return torch.float32 if t.dtype.itemsize < 4 else t.dtype


def _largest(t: Tensor) -> float:
    return float(t.abs().amax()) if t.numel() else 0.0


def _norm(w: Tensor) -> float:
    """‖w‖ of a vector whose squares may overflow or underflow."""
    size = _largest(w)
    if not 0 < size < math.inf:
        return size
    return size * float((w / size).norm())
