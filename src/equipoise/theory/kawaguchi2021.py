"""L(T) − L* ≤ e^{−2κλ_T T} (L(0) − L*): gradient flow of LinearEquilibrium from any start [kawaguchi2021].

λ_T = inf λ_min(D_t) ≥ 1/(m(1+γ)²), and κ is the PL constant of the loss in M = B(I − γS)⁻¹, on ‖M‖₁ < R:

    square (Corollary 1)    R = ∞, κ = 2σ_min(Φ)²
    logistic (Corollary 2)  κ = (2τ + ρ(R)) σ_min(Φ)², ρ(R) = e^{−c}/(1 + e^{−c})², c = R max‖φ_i‖₁, ρ(∞) = 0;
                            a finite radius is a hypothesis on the whole path, ‖B_t‖₁ < (1 − γ)R

σ_min(Φ) is the min(N, m)-th singular value. L* is the least loss, of the M with ‖M‖₁ < R where R is finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from ..checks import nonnegative, one_of, positive
from ..linalg import Interval
from .certificate import EXACT_GRADIENTS, Certificate
from .claim import Claims
from .common import FEATURES, FULL_FLOW, obstacle_of, trained_features, well_posed
from .instance import Instance

LOSSES = ("square", "logistic")
_PRINTED = "the bounds are the same; Corollary 2 asks for rank(Φ) = m, where min(N, m) is enough"


@dataclass(frozen=True)
class Theorem1:
    """L(T) − L* ≤ e^{−2κλ_T T} (L(0) − L*)    [kawaguchi2021, Theorem 1, Corollaries 1 and 2].

    Args:
        loss: "square" (‖q − y‖², no ½) or "logistic" (y ∈ {0, 1}, with the penalty tau·q²).
        tau: τ ≥ 0 of the logistic loss.
        radius: R, for the logistic loss: ‖B_t‖₁ < (1 − γ)R along the whole path is then assumed.
        printed: say how the paper's own conditions differ.
    """

    loss: Literal["square", "logistic"] = "square"
    tau: float = 0.0
    radius: float | None = None
    printed: bool = False

    name: ClassVar[str] = "kawaguchi2021"
    needs_targets: ClassVar[bool] = True

    def __post_init__(self) -> None:
        one_of("loss", self.loss, LOSSES)
        nonnegative("tau", self.tau)
        positive("radius", 1.0 if self.radius is None else self.radius, ", or None for R = ∞")
        if self.loss == "square" and (self.tau or self.radius is not None):
            raise ValueError("tau and radius belong to the logistic loss; the square loss takes neither.")

    def prove(self, instance: Instance) -> Certificate:
        """The verdict on an instance."""
        frame: dict[str, Any] = {
            "theorem": self.name,
            "kind": "flow",
            "loss": self.loss,
            "hypotheses": tuple(self._hypotheses(instance)),
            "options": {k: v for k, v in vars(self).items() if v is not None},
            "tier": instance.tier,
            "fingerprint": instance.fingerprint,
        }
        obstacle = obstacle_of(instance, self.name, scalar=False) or self._obstacle(instance)
        if obstacle:
            return Certificate(claims=(), obstacle=obstacle, **frame)
        model: Any = instance.model
        gamma, Phi = Interval(float(model.gamma)), instance.enclosure.injection
        claims = Claims()
        well_posed(claims, instance)
        sigma = instance.singular(Phi).sigma_min
        kappa = self._pl_constant(instance, sigma, Phi)
        self._claim(claims, instance, gamma, sigma, kappa)
        lambda_T = 1 / (model.width * (1 + gamma) ** 2)
        exponent = (2 * kappa * lambda_T).lo
        return Certificate(
            claims=tuple(claims.items),
            exponent=max(exponent, 0.0),
            promise=f"the gap to the least loss falls at least as exp(−{exponent:.3g} t), from any start.",
            constants={
                "kappa": kappa.lo,
                "lambda_T": lambda_T.lo,
                "sigma_min": sigma.lo,
                "radius": self.radius,
                **({"printed": _PRINTED} if self.printed else {}),
            },
            **frame,
        )

    def _hypotheses(self, instance: Instance) -> Iterator[str]:
        """What the theorem rests on besides its claims."""
        within = "" if self.radius is None else f" over ‖M‖₁ < {self.radius:g}"
        written = "‖ŷ − y‖²" if self.loss == "square" else f"−y log p − (1−y) log(1−p) + {self.tau:g} q²"
        yield f"the loss is {written} summed over the samples"
        yield f"the promise is on the gap to the least loss{within}"
        if self.radius is not None:
            yield f"‖B_t‖₁ < (1 − γ)·{self.radius:g} along the whole path"
        yield from (FULL_FLOW, EXACT_GRADIENTS, instance.arithmetic, *instance.facts.rests_on)
        if getattr(instance.model, "feature_map", None) is not None:
            yield FEATURES

    def _claim(
        self, claims: Claims, instance: Instance, gamma: Interval, sigma: Interval, kappa: Interval
    ) -> None:
        """State that the features have full rank, that the start is within the radius, and that κ > 0."""
        claims.need(
            "σ_min(Φ) > 0",
            sigma,
            ">",
            0.0,
            "the features have full rank",
            method=instance.method,
            remedy="removing features, or samples, that depend on others",
        )
        if self.radius is not None:
            claims.need(
                "‖B₀‖₁ < (1−γ)R",
                instance.one_norm(instance.model.B),  # type: ignore[arg-type]
                "<",
                (1 - gamma) * self.radius,
                "the start lies within the radius",
                remedy="a larger radius, or R = ∞ with tau > 0",
            )
        claims.need(
            "κ > 0",
            kappa,
            ">",
            0.0,
            "the loss satisfies the PL inequality",
            remedy="tau > 0, or a radius that the path stays in" if self.loss == "logistic" else "",
        )

    def _pl_constant(self, instance: Instance, sigma: Interval, Phi: torch.Tensor) -> Interval:
        """κ."""
        if self.loss == "square":
            return 2 * sigma**2
        rho = Interval(0.0)  # ρ(∞)
        if self.radius is not None:
            c = self.radius * instance.one_norm(Phi.T)  # R max_i ‖φ_i‖₁
            fade = (-c).exp()
            rho = Interval((Interval(fade.lo) / (1 + Interval(fade.lo)) ** 2).lo, 0.25)  # ρ falls with c
        return (2 * Interval(self.tau) + rho) * sigma**2

    def _obstacle(self, instance: Instance) -> str:
        model, y = instance.original, instance.y
        if trained := trained_features(model):
            return trained
        assert y is not None
        if self.loss == "logistic" and not bool((right := (y == 0) | (y == 1)).all()):
            row, column = torch.nonzero(~right)[0].tolist()
            return (
                f"the logistic loss is about labels 0 and 1. Got y = {y[row, column].item():g} in row {row} "
                f"instead."
            )
        return ""
