"""ℓ(t) ≤ ℓ(0)(1 − ηQ₀)^t, as printed and not proved: the constants of [xie2021, Theorem 5], for the record.

    C_D = max{3B*, B_x}                         C_z = √(N n)|σ(0)| + 6B* + 3 B_Ub B_x
    B_J = 2α√L K C_z                            C_J = 9α√L B* L_σ C_z L_g + 2√(3L) αK B* L_σ C_D
    Q₀ = ¼K²Lα²κ²σ_m² N σ_min(W_{L+1})²         Q₁ = C_J√ℓ₀ + 2α√L K C_z L_g B_J B_L + B_J√ℓ₀
    Q₂ = 10 C_z B_L L_g / Q₀                    η < min{1/Q₀, 1/Q₁}

The rate rests on Lemma 16, ‖∇ℓ‖² ≥ K²Lα²κ²σ_m² N σ_min(W_{L+1})²‖y − y₀‖², which bounds the wrong singular
value and is false: two equal inputs have the same row of the Jacobian, so that with residuals 1 and −1 the
gradient is zero and the right side is not. Nor does a large N help, since √ℓ₀ grows with √N. What can be said
of a run is its measured λ_min(J Jᵀ).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol

from torch import Tensor

from ..linalg import Interval, frobenius, maximum, minimum, singular_bounds
from ..models.proximal.properties import Property
from ..solve import SAM
from .certificate import Certificate
from .claim import Claim

OBSTACLE = (
    "Theorem 5 is false as printed: its Lemma 16 bounds the wrong singular value. Two equal inputs with "
    "residuals (1, −1) have gradient zero at a positive loss, whatever the weights are. The constants are "
    "for the record; measure λ_min(J Jᵀ) (tangent_kernel) along the run instead."
)


@dataclass(frozen=True)
class Theorem5:
    """The numbers that Theorem 5 asks for; each may be an Interval.

    Args:
        N, width: samples, and n, the width of a hidden layer.
        layers, iterations: L and K.
        alpha: α of the skip form.
        B_star: B*, a bound of the equilibria (Lemma 12 names no constant: it must be given).
        B_x, B_Ub, B_L: bounds of ‖X‖_F, of ‖U_l‖ and ‖b_l‖, and of ‖W_{L+1}‖.
        sigma_m, sigma_readout: lower bounds of σ_min(W_l) and σ_min(W_{L+1}).
        kappa, L_sigma, sigma_zero: least slope, smoothness and value at 0 of the activation.
        L_g: Lipschitz constant of the extractor.
        loss: ℓ₀, the loss at the start.
    """

    N: int
    width: int
    layers: int
    iterations: int
    alpha: float | Interval
    B_star: float | Interval
    B_x: float | Interval
    B_Ub: float | Interval
    B_L: float | Interval
    sigma_m: float | Interval
    sigma_readout: float | Interval
    kappa: float | Interval
    L_sigma: float | Interval
    loss: float | Interval
    L_g: float | Interval = 1.0
    sigma_zero: float | Interval = 0.0

    name: ClassVar[str] = "xie2021"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = Interval(getattr(self, field.name))
            if not (value.lo >= 0 or field.name == "sigma_zero") or not math.isfinite(value.hi):
                raise ValueError(
                    f"{field.name} must be finite and ≥ 0. Got {getattr(self, field.name)} instead."
                )
        if min(self.N, self.width, self.layers, self.iterations) < 1:
            raise ValueError("N, width, layers and iterations must be at least 1.")

    @classmethod
    def of_weights(
        cls,
        W: Sequence[Tensor],
        U: Sequence[Tensor],
        b: Sequence[Tensor],
        readout: Tensor,
        X: Tensor,
        **numbers: float,
    ) -> Theorem5:
        """From layers W_l (n, m), U_l, b_l, a readout (k, m) and X (N, d); the other numbers by name."""
        sizes = [singular_bounds(M).norm for M in U] + [frobenius(v) for v in b]
        top = singular_bounds(readout)
        return cls(
            N=len(X),
            width=W[0].shape[0],
            layers=len(W),
            B_x=frobenius(X),
            B_Ub=maximum(*sizes),
            B_L=top.norm,
            sigma_m=minimum(*(singular_bounds(M).sigma_min for M in W)),
            sigma_readout=top.sigma_min,
            **numbers,  # type: ignore[arg-type]
        )

    @property
    def constants(self) -> Mapping[str, Interval]:
        """C_D, C_z, B_J, C_J, Q0, Q1, Q2 and the largest step."""
        values = {f.name: Interval(getattr(self, f.name)) for f in fields(self)}
        N, n, L, K = (values[name] for name in ("N", "width", "layers", "iterations"))
        alpha, B, B_x, B_Ub, B_L = (values[name] for name in ("alpha", "B_star", "B_x", "B_Ub", "B_L"))
        smooth, L_g, root = values["L_sigma"], values["L_g"], values["loss"].sqrt()
        C_D = maximum(3 * B, B_x)
        C_z = (N * n).sqrt() * abs(values["sigma_zero"]) + 6 * B + 3 * B_Ub * B_x
        B_J = 2 * alpha * L.sqrt() * K * C_z
        C_J = (
            9 * alpha * L.sqrt() * B * smooth * C_z * L_g + 2 * (3 * L).sqrt() * alpha * K * B * smooth * C_D
        )
        Q0 = 0.25 * self.lemma16_constant
        Q1 = C_J * root + 2 * alpha * L.sqrt() * K * C_z * L_g * B_J * B_L + B_J * root
        Q2 = 10 * C_z * B_L * L_g / Q0
        return {
            "C_D": C_D,
            "C_z": C_z,
            "B_J": B_J,
            "C_J": C_J,
            "Q0": Q0,
            "Q1": Q1,
            "Q2": Q2,
            "max_step_size": minimum(1 / Q0, 1 / Q1),
        }

    @property
    def lemma16_constant(self) -> Interval:
        """K²Lα²κ²σ_m² N σ_min(W_{L+1})²."""
        squares = [self.iterations, self.alpha, self.kappa, self.sigma_m, self.sigma_readout]
        value = Interval(self.layers) * self.N
        for factor in squares:
            value = value * Interval(factor) ** 2
        return value

    def lemma16(self, gradient: Interval | float, residual: Interval | float) -> Claim:
        """‖∇ℓ‖² ≥ K²Lα²κ²σ_m² N σ_min(W_{L+1})²‖y − y₀‖², of a measured gradient: refuted by equal inputs."""
        return Claim(
            "Lemma 16",
            "the gradient is bounded below by the residual",
            Interval(gradient) ** 2,
            ">=",
            self.lemma16_constant * Interval(residual) ** 2,
            "as given",
            printed=True,
        )

    def certificate(self) -> Certificate:
        """The constants in a certificate that is never proved, and says why."""
        numbers = dict(self.constants)
        return Certificate(
            theorem=self.name,
            claims=(),
            kind="descent",
            obstacle=OBSTACLE,
            exponent=numbers["Q0"].lo,
            max_step_size=max(numbers["max_step_size"].lo, 0.0),
            constants=numbers,
            hypotheses=("the constants are those printed; no verdict rests on them",),
        )


# -- which fixed point SAM chooses, Theorem 4 ----------------------------------------------------------------


class _Layered(Protocol):
    regulariser: Property | None

    def layer_sizes(self) -> list[tuple[float, float]]:
        """For each layer a sound bound of ‖W_l‖, and the norm up to which it is a proximal map."""
        ...


@dataclass(frozen=True)
class Selection:
    """Whether Theorem 4 promises that SAM tends to the fixed point with the least R."""

    promised: bool
    missing: tuple[str, ...]  # hypotheses that do not hold or are not known to
    schedule: str

    def __str__(self) -> str:
        verdict = "promised by Theorem 4" if self.promised else f"not promised: {'; '.join(self.missing)}"
        return f"least R among the fixed points: {verdict}. {self.schedule}"


def selection(model: _Layered, sam: SAM) -> Selection:
    """The hypotheses of [xie2021, Theorem 4], checked: R convex, T nonexpansive (by a sound norm bound).

    That R has one minimiser on Fix(T), and that the perturbed fixed points stay bounded, is not checked: both
    hold for a contraction, and for ½‖z − a‖² where there is a fixed point at all.
    """
    R, missing = sam.regulariser, []
    if not R.convex:
        missing.append(f"{R.name} is not convex")
    if model.regulariser is not None and not model.regulariser.nonexpansive:
        missing.append(f"{model.regulariser} is not known to be nonexpansive")
    for i, (size, limit) in enumerate(model.layer_sizes(), 1):
        if not size <= limit:
            missing.append(f"‖W‖ of layer {i} is not ≤ √(μ/L_σ) = {limit:.6g} but {size:.6g}")
    L = R.lipschitz
    eta = min(math.sqrt(2 * L), 0.5, L / 2)
    schedule = (
        f"γ = {1 / (2 * L):g}, β_k = {eta:g}/k^{sam.rho:g}, λ_k = {eta:g}/k^{sam.c:g}: the iterate is "
        f"~ k^-{sam.rho:g} off the fixed points"
    )
    return Selection(not missing, tuple(missing), schedule)
