"""dM/dt = V/δ,  V = argmin{ ∇L₀ᵀv + ½vᵀ∇²L₀v : ‖v‖_G ≤ δ‖dM/dt‖_G }    [kawaguchi2021, Theorem 2].

Gradient flow of LinearEquilibrium with one output moves its predictor M = B Umat⁻¹ as a trust-region Newton
method would:

    S = I + γ² diag(‖J_jᵀMᵀ‖²),   F = Σ_i ℓ''(ŷ_i) z_i z_iᵀ,   G = Umat (S⁻¹ − δF) Umatᵀ,
    dM/dt = −Umat⁻ᵀ S Umat⁻¹ ∇L₀,   δ < δ̄ = 1/λ_max(S^½ F S^½)   (+∞ if F ⪯ 0),

and KKT: ∇L₀ + ∇²L₀ v + λ·2Gv = 0 with λ = 1/(2δ) ≥ 0, the constraint active, ∇²L₀ + G/δ ≻ 0. Since
∇²L₀ = Umat F Umatᵀ, the matrix of the last condition is Umat S⁻¹ Umatᵀ/δ whatever the sign of ℓ'' is.

These are float64 numbers, measured and not proved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..losses import Loss, as_loss
from ..models.affine import LinearEquilibrium
from ..models.affine.linear import couplings
from .register import is_about


@dataclass(frozen=True)
class TrustRegion:
    """The trust-region problem that gradient flow solves at this moment, and how well it solves it."""

    S: Tensor  # (m,) the diagonal of S
    F: Tensor  # (m, m)
    G: Tensor  # (m, m)
    gradient: Tensor  # (m,) ∇L₀
    hessian: Tensor  # (m, m) ∇²L₀ = Σ ℓ'' φφᵀ
    velocity: Tensor  # (m,) dM/dt
    delta: float
    delta_max: float  # δ̄, exclusive

    @property
    def V(self) -> Tensor:
        """δ dM/dt, (m,)."""
        return self.delta * self.velocity

    @property
    def multiplier(self) -> float:
        """1/(2δ), of ‖v‖²_G ≤ δ²‖dM/dt‖²_G."""
        return 1 / (2 * self.delta)

    @property
    def radius(self) -> float:
        """δ‖dM/dt‖_G."""
        return self.delta * math.sqrt(max(float(self.velocity @ self.G @ self.velocity), 0.0))

    @property
    def kkt_residual(self) -> float:
        """‖∇L₀ + ∇²L₀ V + 2·multiplier·G V‖ / ‖∇L₀‖: zero up to rounding."""
        rest = self.gradient + self.hessian @ self.V + 2 * self.multiplier * (self.G @ self.V)
        size = float(self.gradient.norm())
        return float(rest.norm()) / size if size > 0 else float(rest.norm())

    def model(self, v: Tensor) -> Tensor:
        """∇L₀ᵀv + ½vᵀ∇²L₀v, of vectors v (…, m)."""
        return v @ self.gradient + 0.5 * ((v @ self.hessian) * v).sum(dim=-1)


@torch.no_grad()
def trust_region(
    model: LinearEquilibrium, X: Tensor, y: Tensor, delta: float | None = None, loss: str | Loss = "square"
) -> TrustRegion:
    """The trust region of Theorem 2 at the model's weights; δ is half of δ̄ (1 where that is ∞) by default.

    The loss must be twice differentiable; it need not be convex.
    """
    if not is_about(model, "LinearEquilibrium"):
        raise TypeError(f"Theorem 2 is about LinearEquilibrium. Got {type(model).__name__} instead.")
    if model.outputs != 1:
        raise ValueError(f"Theorem 2 is about one output. Got {model.outputs} instead.")
    chosen = as_loss(loss)
    A, B, Phi = model.A.double(), model.B.double(), model.injection(X).double()
    S_soft = torch.softmax(A, dim=0)
    umat = torch.eye(len(A), dtype=A.dtype, device=A.device) - model.gamma * S_soft
    M = torch.linalg.solve(umat, B, left=False)  # (1, m)
    Z = torch.linalg.solve(umat.T, Phi, left=False)  # (N, m)
    yhat = Phi @ M.T  # (N, 1)
    y = y.double().reshape(yhat.shape)
    slope, curvature = chosen.gradient(yhat, y)[:, 0], chosen.second_derivative(yhat, y)[:, 0]
    S = 1 + model.gamma**2 * couplings(M, M, S_soft)[0, 0]  # (m,)
    F = Z.T @ (curvature[:, None] * Z)
    root = S.sqrt()
    top = float(torch.linalg.eigvalsh(root[:, None] * F * root)[-1])
    delta_max = 1 / top if top > 0 else math.inf
    if delta is None:
        delta = 0.5 * delta_max if math.isfinite(delta_max) else 1.0
    if not 0 < delta < delta_max:
        raise ValueError(f"delta must lie in (0, {delta_max:.6g}), where G ≻ 0. Got {delta} instead.")
    gradient = Phi.T @ slope  # (m,)
    inner = S * torch.linalg.solve(umat, gradient)
    return TrustRegion(
        S=S,
        F=F,
        G=umat @ (torch.diag(1 / S) - delta * F) @ umat.T,
        gradient=gradient,
        hessian=Phi.T @ (curvature[:, None] * Phi),
        velocity=-torch.linalg.solve(umat.T, inner),
        delta=delta,
        delta_max=delta_max,
    )


# -- implicit bias, Appendix B -------------------------------------------------------------------------------


@torch.no_grad()
def stationary(model: LinearEquilibrium) -> Tensor:
    """π with Sπ = π, 1ᵀπ = 1, π > 0, (m,): one, since softmax makes every entry of S positive."""
    S = torch.softmax(model.A.double(), dim=0)
    m = len(S)
    # (I − S) has rank m − 1 and columns that sum to 0: any row may be replaced by 1ᵀπ = 1.
    system = torch.eye(m, dtype=S.dtype, device=S.device) - S
    system[-1] = 1.0
    right = torch.zeros(m, dtype=S.dtype, device=S.device)
    right[-1] = 1.0
    return torch.linalg.solve(system, right)


@torch.no_grad()
def resolvent_limit(model: LinearEquilibrium) -> tuple[Tensor, Tensor]:
    """(I − γS)⁻¹ = π1ᵀ/(1−γ) + a rest that stays bounded as γ → 1    [kawaguchi2021, Appendix B, corrected].

    Returns both parts, (m, m) each. The printed 11ᵀ/m in place of π1ᵀ is right only for a doubly stochastic
    S; otherwise its rest grows as 1/(1−γ).
    """
    pi = stationary(model)
    S = torch.softmax(model.A.double(), dim=0)
    eye = torch.eye(len(S), dtype=S.dtype, device=S.device)
    leading = pi[:, None].expand_as(S) / (1 - model.gamma)
    # S and π1ᵀ commute and S·π1ᵀ = π1ᵀ, so the rest is (I − γ(S − π1ᵀ))⁻¹ − π1ᵀ: no cancellation.
    rest = torch.linalg.inv(eye - model.gamma * (S - pi[:, None])) - pi[:, None]
    return leading, rest
