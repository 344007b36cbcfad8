"""L(T) − L* ≤ e^{−2κλ_T T} (L(0) − L*): gradient flow of LinearEquilibrium from any start [kawaguchi2021].

λ_T = inf λ_min(D_t) ≥ 1/(m(1+γ)²), and κ is the PL constant of the loss in M = B(I − γS)⁻¹, on ‖M‖₁ < R:

    square (Corollary 1)    R = ∞, κ = 2σ_min(Φ)²
    logistic (Corollary 2)  κ = (2τ + ρ(R)) σ_min(Φ)², ρ(R) = e^{−c}/(1 + e^{−c})², c = R max‖φ_i‖₁;
                            the radius is a hypothesis on the whole path; with τ > 0, R = ∞ and κ = 2τσ_min(Φ)²

σ_min(Φ) is the min(N, m)-th singular value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from ..linalg import Interval, one_norm_upper, singular_bounds
from ..models.linear import LinearEquilibrium
from .certificate import EXACT_GRADIENTS, FLOAT64_TIER, Certificate
from .claim import Claims
from .common import FULL_FLOW, obstacle_of, well_posed
from .instance import Instance

LOSSES = ("square", "logistic")


@dataclass(frozen=True)
class Theorem1:
    """L(T) − L* ≤ e^{−2κλ_T T} (L(0) − L*)    [kawaguchi2021, Theorem 1, Corollaries 1 and 2].

    Args:
        loss: "square" (‖q − y‖², no ½) or "logistic" (y ∈ {0, 1}, with the penalty tau·q²).
        tau: τ ≥ 0 of the logistic loss.
        radius: R, for the logistic loss: ‖B_t‖₁ < (1 − γ)R along the whole path is then assumed.
    """

    loss: Literal["square", "logistic"] = "square"
    tau: float = 0.0
    radius: float | None = None

    name: ClassVar[str] = "kawaguchi2021"
    needs_targets: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ValueError(f"loss must be one of {LOSSES}. Got {self.loss!r} instead.")
        if not (self.tau >= 0 and math.isfinite(self.tau)):
            raise ValueError(f"tau must be a finite number ≥ 0. Got {self.tau} instead.")
        if self.radius is not None and not self.radius > 0:
            raise ValueError(f"radius must be > 0. Got {self.radius} instead.")
        if self.loss == "square" and (self.tau or self.radius is not None):
            raise ValueError("tau and radius belong to the logistic loss; the square loss takes neither.")

    def prove(self, instance: Instance) -> Certificate:
        written = "‖ŷ − y‖²" if self.loss == "square" else f"−y log p − (1−y) log(1−p) + {self.tau:g} q²"
        frame: dict[str, Any] = {
            "theorem": self.name,
            "kind": "flow",
            "loss": self.loss,
            "options": {k: v for k, v in vars(self).items() if v is not None},
            "fingerprint": instance.fingerprint,
        }
        hypotheses = [
            f"the loss is {written} summed over the samples",
            "the promise is on the gap to the least loss",
        ]
        obstacle = obstacle_of(instance, LinearEquilibrium, scalar=False) or self._wrong_labels(instance)
        if obstacle:
            return Certificate(claims=(), obstacle=obstacle, hypotheses=tuple(hypotheses), **frame)
        claims = Claims()
        well_posed(claims, instance)
        model = instance.model
        assert isinstance(model, LinearEquilibrium)
        Phi = instance.enclosure.injection
        sigma = singular_bounds(Phi).sigma_min
        claims.need(
            "σ_min(Φ) > 0",
            sigma,
            ">",
            0.0,
            "the features have full rank",
            remedy="removing dependent features",
        )
        if self.radius is not None and self.loss == "logistic" and self.tau == 0:
            limit = (1 - Interval(float(model.gamma))) * self.radius
            claims.need(
                "‖B₀‖₁ < (1−γ)R", one_norm_upper(model.B), "<", limit, "the start lies within the radius"
            )
            hypotheses.append(f"‖B_t‖₁ < (1 − γ)·{self.radius:g} along the whole path")
        kappa = self._pl_constant(sigma, Phi)
        claims.need(
            "κ > 0",
            kappa,
            ">",
            0.0,
            "the loss satisfies the PL inequality",
            remedy="tau > 0, or a radius that the path stays in" if self.loss == "logistic" else "",
        )
        lambda_T = 1 / (model.width * (1 + Interval(float(model.gamma))) ** 2)
        exponent = (2 * kappa * lambda_T).lo
        return Certificate(
            claims=tuple(claims.items),
            hypotheses=(*hypotheses, FULL_FLOW, EXACT_GRADIENTS, FLOAT64_TIER),
            exponent=exponent,
            promise=f"the gap to the least loss falls at least as exp(−{exponent:.3g} t), whatever the start.",
            constants={
                "kappa": kappa.lo,
                "lambda_T": lambda_T.lo,
                "sigma_min": sigma.lo,
                "radius": self.radius,
            },
            **frame,
        )

    def _pl_constant(self, sigma: Interval, Phi: torch.Tensor) -> Interval:
        if self.loss == "square":
            return 2 * sigma**2
        if self.tau > 0:
            return 2 * Interval(self.tau) * sigma**2
        if self.radius is None:
            return Interval(0.0)
        c = self.radius * Interval(0.0, one_norm_upper(Phi.T))  # max_i ‖φ_i‖₁
        fade = (-Interval(c.hi)).exp()
        return fade / (1 + fade) ** 2 * sigma**2

    def _wrong_labels(self, instance: Instance) -> str:
        assert instance.y is not None
        if self.loss == "logistic" and not bool(((instance.y == 0) | (instance.y == 1)).all()):
            return "the logistic loss needs labels 0 and 1; y holds other numbers."
        return ""
