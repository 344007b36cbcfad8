"""`σ_max(W) ≤ s₁√((1+a)(1+b)) + ρ` with a, b and ρ from exact inputs in ball arithmetic: the tier `rigorous`.

The formulas and witnesses are those of `sound.py`, but python-flint computes the residual products in balls,
so that nothing is assumed of the floating-point products of the machine.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .products import FactorisationError, as_float64, as_square
from .sound import lambda_min_lower

SVD = tuple[Tensor, Tensor, Tensor]  # U (N, p), s (p,), Vᵀ (p, m)
_BITS = 128


def norm_upper_ball(M: Tensor, witness: SVD | None = None) -> float:
    """≥ ‖M‖₂; inf if M is not finite."""
    return _singular_ball(M, witness)[0]


def sigma_min_lower_ball(M: Tensor, witness: SVD | None = None) -> float:
    """≤ σ_min(M), the min(N, m)-th singular value; 0 if M is empty or not finite."""
    return _singular_ball(M, witness)[1]


@torch.no_grad()
def lambda_min_lower_ball(G: Tensor, witness: tuple[float, Tensor] | None = None) -> float:
    """≤ λ_min(G) of a symmetric G: `τ − ‖G − τI − LLᵀ‖` for the witness (τ, L); −inf if G is not finite."""
    flint, G = python_flint(), as_square(G)
    if G.numel() == 0 or not G.isfinite().all():
        return -math.inf
    if witness is None:
        tau = lambda_min_lower(G)
        L = torch.linalg.cholesky_ex(G - tau * torch.eye(len(G), dtype=G.dtype, device=G.device)).L
    else:
        tau, L = witness[0], as_float64(witness[1])
    if not (math.isfinite(tau) and L.isfinite().all()):
        return -math.inf
    with flint.ctx.workprec(_BITS):
        factor, shift = balls(L), flint.arb(tau)
        shifted = balls(G) - scalar_matrix(len(G), shift)
        return lower_end(shift - defect(factor, factor.transpose(), shifted))


@torch.no_grad()
def _singular_ball(M: Tensor, witness: SVD | None) -> tuple[float, float]:
    """≥ σ_max and ≤ σ_min."""
    flint, M = python_flint(), as_float64(M)
    if M.numel() == 0:
        return 0.0, 0.0
    if not M.isfinite().all():
        return math.inf, 0.0
    try:
        U, s, Vt = torch.linalg.svd(M, full_matrices=False) if witness is None else map(_exact, witness)
    except FactorisationError:
        return math.inf, 0.0
    p = min(M.shape)  # a truncated SVD says nothing of σ_min
    if (U.shape, s.shape, Vt.shape) != ((len(M), p), (p,), (p, M.shape[1])):
        shapes = ", ".join(str(tuple(part.shape)) for part in (U, s, Vt))
        raise ValueError(f"the witness must be a thin SVD U, s, Vᵀ of all {p} singular values. Got {shapes}")
    if not all(part.isfinite().all() for part in (U, s, Vt)):
        return math.inf, 0.0
    with flint.ctx.workprec(_BITS):
        left, right, sizes = balls(U), balls(Vt), [flint.arb(x) for x in s.tolist()]
        identity = scalar_matrix(len(sizes), 1)
        a = defect(left.transpose(), left, identity)
        b = defect(right, right.transpose(), identity)
        scaled = flint.arb_mat([[u * x for u, x in zip(row, sizes, strict=True)] for row in left.tolist()])
        rho = defect(scaled, right, balls(M))
        largest, smallest = s.abs().amax().item(), s.abs().amin().item()
        upper = upper_end(largest * ((1 + a) * (1 + b)).sqrt() + rho)
        if not (a < 1 and b < 1):
            return upper, 0.0
        return upper, max(lower_end(smallest * ((1 - a) * (1 - b)).sqrt() - rho), 0.0)


# ---- balls ----------------------------------------------------------------------------------------------


def python_flint() -> ModuleType:
    """The module of python-flint, or an ImportError that says how to get it."""
    try:
        import flint
    except ImportError as error:
        raise ImportError(
            'the rigorous tier needs python-flint, which is not installed: pip install "equipoise[rigorous]"'
        ) from error
    return flint


def _exact(M: Tensor) -> Tensor:
    return as_float64(M, ndim=None)


def balls(M: Tensor) -> Any:
    """The entries of M as exact balls."""
    return python_flint().arb_mat(M.tolist())


def scalar_matrix(n: int, value: Any) -> Any:
    """value·I, (n, n), as balls."""
    return python_flint().arb_mat([[value if i == j else 0 for j in range(n)] for i in range(n)])


def defect(A: Any, B: Any, C: Any) -> Any:
    """≥ ‖C − AB‖₂ as a ball: √(‖E‖₁‖E‖_∞)."""
    zero = python_flint().arb(0)
    E = [[x.abs_upper() for x in row] for row in (C - A * B).tolist()]
    rows = [sum(row, zero).upper() for row in E]
    columns = [sum(column, zero).upper() for column in zip(*E, strict=True)]
    return (python_flint().arb(max(rows)) * max(columns)).sqrt().upper()


def upper_end(x: Any) -> float:
    """A float above every number of the ball."""
    return math.nextafter(float(x.upper()), math.inf) if x.is_finite() else math.inf


def lower_end(x: Any) -> float:
    """A float below every number of the ball."""
    return math.nextafter(float(x.lower()), -math.inf) if x.is_finite() else -math.inf
