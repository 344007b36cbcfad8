"""z = relu(W z + U x + bias),  W = (1 − μ)I − AᵀA + B − Bᵀ,  ŷ = z u    [hieu2022].

The equilibrium is unique for every A and B, since sym(I − W) = μI + AᵀA, and R = 1/μ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ...checks import one_of
from ...linalg import Interval, frobenius, gamma, norm_upper
from ...linalg.ball import balls, python_flint, scalar_matrix
from ...models.affine import Monotone
from ...models.checks import refuse_nonfinite
from ...models.norms import spectral_norm
from ...solve import Stop
from ..claim import Claim
from ..enclosure import EXACT, Enclosure, Iteration, product_rounding, stored_error
from ..facts import AffineFacts
from ..geometry import Ball, Geometry, Number, input_norm, larger
from ..instance import Instance
from ..lipschitz import AffineBounds
from ..register import facts_of
from ..rigorous import BallEnclosure, ball_enclosure, precision
from ..rigorous import frobenius as frobenius_of_balls
from ..verify.network import UnitNetwork


def is_monotone(margin: float) -> Claim:
    """sym(I − W) ⪰ μI, which holds by the parameterisation where μ > 0."""
    return Claim(
        "sym(I−W) ⪰ μI",
        "sym(I − W) = μI + AᵀA whatever A and B are: one equilibrium for every input",
        Interval(float(margin)),
        ">",
        Interval(0.0),
        EXACT,
    )


@dataclass(frozen=True)
class Monotonic(Geometry):
    """A in a ball of radius δ: R = 1/μ, K = 4 max(1, Ā²)S̄² + x², β = 2ĀS̄, with Ā = ‖A(0)‖ + δ.

    a = ‖A(0)‖, μ the margin, and x = ‖X‖, or ‖[X, 1]‖ with a trained bias.
    """

    a: Number
    mu: Number
    x: Number

    @property
    def scale(self) -> float:
        """1 + ‖A(0)‖."""
        return 1 + Interval(self.a).hi

    def ball(self, delta: Number, S: Number) -> Ball:
        """R = 1/μ whatever the weights are."""
        A = self.a + delta
        return Ball(R=1 / self.mu, K=4 * larger(1.0, A**2) * S**2 + self.x**2, beta=2 * A * S)


@facts_of(Monotone)
class MonotoneFacts(AffineFacts):
    """What is known of Monotone."""

    family, paper = "Monotone", "hieu2022"
    linear_injection = True

    def enclosure(self, X: Tensor) -> Enclosure:
        """The enclosure, with the rounding of every part of W."""
        model = self.model
        weight = model.weight()
        # 1 − μ and three sums of what is at most |1 − μ|I + |A|ᵀ|A| + |B| + |B|ᵀ, entry by entry.
        parts = (
            frobenius(model.A) ** 2
            + 2 * frobenius(model.B)
            + Interval(len(weight)).sqrt() * (1 + abs(Interval(float(model.margin))))
        )
        error = product_rounding(model.A.T, model.A) + gamma(8) * parts
        return Enclosure(
            weight=weight,
            weight_error=error.hi,
            weight_norm=Interval(0.0, (frobenius(weight) + error).hi),
            injection=model.injection(X),
            injection_error=self.injection_error(X),
            **self._reason(),
        )

    def injection_error(self, X: Tensor) -> float:
        """The rounding of one product, and of the sum with a bias."""
        model = self.model
        shift = Interval(0.0) if model.bias is None else gamma(2) * frobenius(model.injection(X))
        return (product_rounding(X, model.U.T) + shift).hi

    def enclosure_in_balls(self, X: Tensor) -> BallEnclosure:
        """The same W and u in balls."""
        model = self.model
        with precision():
            A, B = balls(model.A), balls(model.B)
            keep = 1 - python_flint().arb(model.margin)
            W = scalar_matrix(model.width, 1) * keep - A.transpose() * A + B - B.transpose()
            u = balls(X) * balls(model.U.T)
            if model.bias is not None:
                u = u + balls(model.bias.expand(len(X), -1))
        norm = Interval(0.0, frobenius_of_balls(W.tolist()).hi)
        return ball_enclosure(model, X, W, u, norm, **self._reason())

    def _reason(self) -> dict[str, Any]:
        reason = is_monotone(self.model.margin)
        resolvent = 1 / reason.left if reason.holds else Interval(0.0, math.inf)
        return {"unique": (reason,), "resolvent": resolvent, "reason": "the monotone margin μ"}

    def geometry(self, instance: Instance) -> Monotonic:
        """The geometry with the coordinate c = A."""
        a, mu = Interval(instance.norm("A").hi), Interval(float(self.model.margin))
        return Monotonic(a=a, mu=mu, x=input_norm(instance, bias=self.model.bias is not None))

    def iteration(self, weight: Tensor, shift: Tensor) -> Iteration:
        """The plain iteration where ‖W‖ < 1, else forward-backward splitting with the step μ/ℓ²."""
        model, n = self.model, self.model.width
        sizes = abs(1 - model.margin) * math.sqrt(n) + 1 + frobenius(model.A) ** 2 + 2 * frobenius(model.B)
        error = stored_error(shift) + gamma(n + 8) * sizes
        plain = Iteration(1.0, Interval(norm_upper(weight)) + error, 1.0, error)
        mu = Interval(float(model.margin)) - error
        if plain.factor.hi < 1 or not mu.lo > 0:  # μ ≤ 0: B is too large for its rounding, nothing is proved
            return plain
        eye = torch.eye(n, dtype=torch.float64)
        ell = Interval(norm_upper(eye - weight)) * (1 + 2.0**-50) + error
        alpha = (mu / ell**2).lo
        return Iteration(alpha, (1 - 2 * alpha * mu + alpha**2 * ell**2).sqrt(), 1.0, error)

    def input_map(self) -> Tensor:
        """U."""
        return self.model.U

    def units(self, known: AffineBounds) -> UnitNetwork:
        """The units of the equation as it stands, with its bias."""
        return known.units(self.model.U, self.model.bias)


# -- a start from which the theorems of [hieu2022] hold ------------------------------------------------------


@torch.no_grad()
def certified_start(
    model: Monotone, X: Tensor, y: Tensor, kind: Literal["flow", "descent"] = "flow"
) -> dict[str, float]:
    """Scale U and set u = 0, so that the theorem's conditions hold; returns its radii R_A, R_B, R_U, R_u.

    With κ = σ_N(Z)/(‖X‖_F‖U‖), which no scaling of U changes, U is enlarged until

        flow:     ‖U‖‖X‖_F ≥ 1.3 √(128(1 + 4‖A‖²)) ‖y‖/(μκ)^2.5
        descent:  ‖U‖‖X‖_F ≥ 1.3·64 √(1 + 4‖A‖²) ‖y‖/(μκ)³          (the repaired conditions)

    A and B stay. Needs n ≥ N and independent equilibria, σ_N(Z) > 0.
    """
    one_of("kind", kind, ("flow", "descent"))
    stop = Stop(rtol=1e-12) if X.dtype == torch.float64 else None
    _check(model, X, y)
    N, Z = len(X), model.solve(X, stop=stop).raise_if_failed().value
    assert isinstance(Z, Tensor)
    least = torch.linalg.svdvals(Z.double())[N - 1].item()  # λ₀
    a, size = spectral_norm(model.A), spectral_norm(model.U) * X.double().norm().item()
    if a == 0 or least <= N * torch.finfo(X.dtype).eps * size:
        raise ValueError(
            f"the certified start needs A ≠ 0 and independent equilibria, σ_N(Z) > 0. Got ‖A‖ = {a:.3g} "
            f"and σ_N(Z) = {least:.3g} instead: remove repeated or proportional rows of X, or draw again."
        )
    kappa, target = least / size, y.double().norm().item()
    if kind == "flow":
        c = 4
        wanted = 1.3 * (128 * (1 + 4 * a**2)) ** 0.5 * target / (model.margin * kappa) ** 2.5
    else:
        c = 8
        wanted = 1.3 * 64 * (1 + 4 * a**2) ** 0.5 * target / (model.margin * kappa) ** 3
    model.U.mul_(max(1.0, wanted / size))
    model.u.zero_()
    size = max(size, wanted)
    radius = 1.05 * c * target / (model.margin * kappa**2 * size)
    return {"A": a, "B": 1.0, "U": 0.02 * spectral_norm(model.U), "u": radius}


def _check(model: Monotone, X: Tensor, y: Tensor) -> None:
    """Raise a ValueError unless the model has one output and no bias, and y a target for each row of X."""
    N = len(X)
    if model.outputs != 1 or model.bias is not None or model.c is not None:
        raise ValueError(
            f"the certified start is that of one output and no bias. Got outputs={model.outputs}, "
            f"bias={model.bias is not None}, output_bias={model.c is not None}."
        )
    if tuple(y.shape) != (N,):
        raise ValueError(
            f"y must be ({N},), one target for each row of X. Got shape {tuple(y.shape)} instead."
        )
    refuse_nonfinite("y", y)
    if not bool(y.any()):
        raise ValueError("y must not be zero: there u = 0 fits already, and the radii would vanish.")
    if model.width < N or N == 0:
        raise ValueError(
            f"the certified start needs 1 ≤ N ≤ n, no more samples than the width. "
            f"Got N = {N} and n = {model.width} instead."
        )
