"""L(t) ≤ e^{−λ₀²t/2} L(0): gradient flow and (repaired) descent of Monotone [hieu2022, ch. 3].

With margin μ, λ₀ = σ_N(Z(0)), radii R_A, R_B, R_U, R_u > 0, ā = ‖A(0)‖ + R_A, Ū = ‖U(0)‖ + R_U,
ū = ‖u(0)‖ + R_u:

    flow     (3.8)  λ₀² ≥ 4‖X‖_F r₀ max{2Ūūā/(μ²R_A), 2Ūū/(μ²R_B), ū/(μR_U), Ū/(μR_u)}
             (3.9)  λ₀³ ≥ 8‖X‖_F² r₀ (ū/μ²)(4(Ū²ā² + Ū²)/μ² + 1)
    descent  (3.16) = (3.8) with 8
             (3.17) λ₀³ ≥ 16‖X‖_F² r₀ (ū/μ²)[1 + (6Ū²ā² + 4Ū²)/μ²]   powers of μ restored
             (3.18) λ₀² ≥ 16 C₁₃                                        replaces a condition that cannot hold
             η ≤ min{4/λ₀², 1/(32 C₁₂), λ₀²/(25 C₁₁²)}

    C₁₁ = ‖X‖_F²[(ū² + Ū²)/μ² + 4ū²Ū²(1 + ā²)/μ⁴],  C₁₂ = ‖X‖_F²ū²Ū²ā²/(4μ⁴),  C₁₃ = C₁₁ − ‖X‖_F²Ū²/μ²

Printed, (3.17) and (3.18) lack powers of μ, and Theorem 3.3.5 built on them is false for small μ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..linalg import Interval, maximum, minimum
from ..models.monotone import Monotone
from .certificate import Certificate
from .claim import Claims
from .common import certificate, independent_rows, obstacle_of, relative_movement, well_posed
from .instance import Instance
from .search import best_constants, log_margin

BLOCKS = ("A", "B", "U", "u")
_REMEDY = "Monotone.certified_start(X, y), or theorem='safeguarded'"


@dataclass(frozen=True)
class _Constants:
    """ā, Ū, ū and the scalars of the data; in floats for the search, in intervals for the proof."""

    a: Any
    U: Any
    u: Any
    mu: Any
    X: Any
    r: Any
    R: Mapping[str, Any]

    def ball(self, number: int, top: Any) -> Any:
        """The right-hand side of (3.8) and (3.16)."""
        Uu, mu2 = self.U * self.u, self.mu**2
        worst = top(
            2 * Uu * self.a / (mu2 * self.R["A"]),
            2 * Uu / (mu2 * self.R["B"]),
            self.u / (self.mu * self.R["U"]),
            self.U / (self.mu * self.R["u"]),
        )
        return number * self.X * self.r * worst

    def flow_spectrum(self) -> Any:
        mu2 = self.mu**2
        return 8 * self.X**2 * self.r * (self.u / mu2) * (4 * (self.U**2 * self.a**2 + self.U**2) / mu2 + 1)

    def descent_spectrum(self) -> Any:
        mu2 = self.mu**2
        inner = 1 + (6 * self.U**2 * self.a**2 + 4 * self.U**2) / mu2
        return 16 * self.X**2 * self.r * (self.u / mu2) * inner

    def printed_spectrum(self) -> Any:
        """(3.17) as printed: the powers of μ inside the bracket and a factor 2 are missing."""
        inner = 1 + 4 * self.U**2 * self.a**2 + 4 * self.U**2
        return 16 * self.X**2 * self.r * (self.u / self.mu**2) * inner

    def descent(self) -> tuple[Any, Any, Any]:
        """C₁₁, C₁₂, C₁₃."""
        mu2, X2, u2, U2, a2 = self.mu**2, self.X**2, self.u**2, self.U**2, self.a**2
        cross = 4 * u2 * U2 * (1 + a2) / mu2**2
        c11 = X2 * ((u2 + U2) / mu2 + cross)
        c12 = X2 * u2 * U2 * a2 / (4 * mu2**2)
        return c11, c12, X2 * (u2 / mu2 + cross)


@dataclass(frozen=True)
class _Theorem:
    """`radii` {"A", "B", "U", "u"} of the ball the weights stay in; chosen for the best margin when None."""

    radii: Mapping[str, float] | None = None
    printed: bool = False

    needs_targets: ClassVar[bool] = True
    name: ClassVar[str]

    def __post_init__(self) -> None:
        if self.radii is not None and (
            set(self.radii) != set(BLOCKS) or not all(r > 0 for r in self.radii.values())
        ):
            raise ValueError(
                f"radii must give a number > 0 for each of {BLOCKS}. Got {dict(self.radii)} instead."
            )

    def prove(self, instance: Instance) -> Certificate:
        options = {"radii": None if self.radii is None else dict(self.radii), "printed": self.printed}
        kind = "flow" if self.name.endswith("flow") else "descent"
        obstacle = obstacle_of(instance, Monotone)
        if not obstacle and getattr(instance.model, "bias", None) is not None:
            obstacle = "the theorem is about a network without bias: give Monotone(…, bias=False)."
        if obstacle:
            return certificate(self.name, instance, kind=kind, options=options, obstacle=obstacle)  # type: ignore[arg-type]
        claims = Claims()
        well_posed(claims, instance)
        lambda0 = independent_rows(claims, instance).left
        radii = dict(self.radii or self._choose(instance))
        k = self._constants(instance, radii)
        more = self._claim(claims, k, lambda0)
        return certificate(
            self.name,
            instance,
            claims,
            kind=kind,  # type: ignore[arg-type]
            options=options,
            movement=relative_movement(instance, lambda0 / 2),
            constants={"radii": radii, "lambda0": lambda0.lo, "mu": float(instance.model.margin)},  # type: ignore[arg-type]
            **more,
        )

    def _constants(self, instance: Instance, radii: Mapping[str, float]) -> _Constants:
        assert isinstance(instance.model, Monotone)
        return _Constants(
            a=instance.norm("A") + radii["A"],
            U=instance.norm("U") + radii["U"],
            u=instance.norm("u") + radii["u"],
            mu=Interval(float(instance.model.margin)),
            X=instance.X_frobenius,
            r=instance.residual_norm,
            R={name: Interval(r) for name, r in radii.items()},
        )

    def _choose(self, instance: Instance) -> Mapping[str, float]:
        """Radii with the best worst margin."""
        assert isinstance(instance.model, Monotone)
        mid = lambda x: (x.lo + x.hi) / 2
        A, U, u = (mid(instance.norm(name)) for name in ("A", "U", "u"))
        mu, X, r = float(instance.model.margin), mid(instance.X_frobenius), mid(instance.residual_norm)
        lambda0 = max(mid(instance.sigma_N), 1e-300)

        def score(radii: Sequence[float]) -> float:
            R = dict(zip(BLOCKS, radii, strict=True))
            k = _Constants(A + R["A"], U + R["U"], u + R["u"], mu, X, r, R)
            return log_margin(*self._sides(k, lambda0))

        small = max(r, 1e-3) / max(lambda0, 1e-3)
        starts = [(max(A, 1e-2), 1.0, 0.02 * max(U, 1e-2), small), (1.0, 1.0, 1.0, 1.0)]
        found = best_constants(score, starts, tries=1500)
        return dict(zip(BLOCKS, found, strict=True))

    def _sides(self, k: _Constants, lambda0: float) -> list[tuple[float, float]]:
        raise NotImplementedError

    def _claim(self, claims: Claims, k: _Constants, lambda0: Interval) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True)
class Flow(_Theorem):
    """L(t) ≤ e^{−λ₀²t/2} L(0) under (3.8), (3.9)    [hieu2022, Condition 1]."""

    name = "hieu2022.flow"

    def _sides(self, k: _Constants, lambda0: float) -> list[tuple[float, float]]:
        return [(lambda0**2, k.ball(4, max)), (lambda0**3, k.flow_spectrum())]

    def _claim(self, claims: Claims, k: _Constants, lambda0: Interval) -> dict[str, Any]:
        claims.need(
            "(3.8)", lambda0**2, ">=", k.ball(4, maximum), "the weights stay in the ball", remedy=_REMEDY
        )
        claims.need("(3.9)", lambda0**3, ">=", k.flow_spectrum(), "σ_N(Z) stays above λ₀/2", remedy=_REMEDY)
        exponent = (lambda0**2 / 2).lo
        return {"exponent": exponent, "promise": f"the loss falls at least as exp(−{exponent:.3g} t)."}


@dataclass(frozen=True)
class Descent(_Theorem):
    """L(k+1) ≤ (1 − ηλ₀²/4) L(k) under (3.16)-(3.18) repaired    [hieu2022, Condition 2]."""

    name = "hieu2022.descent"

    def _sides(self, k: _Constants, lambda0: float) -> list[tuple[float, float]]:
        return [
            (lambda0**2, k.ball(8, max)),
            (lambda0**3, k.descent_spectrum()),
            (lambda0**2, 16 * k.descent()[2]),
        ]

    def _claim(self, claims: Claims, k: _Constants, lambda0: Interval) -> dict[str, Any]:
        c11, c12, c13 = k.descent()
        claims.need(
            "(3.16)", lambda0**2, ">=", k.ball(8, maximum), "the weights stay in the ball", remedy=_REMEDY
        )
        claims.need(
            "(3.17)", lambda0**3, ">=", k.descent_spectrum(), "σ_N(Z) stays above λ₀/2", remedy=_REMEDY
        )
        claims.need(
            "(3.18)", lambda0**2, ">=", 16 * c13, "a step of descent decreases the loss", remedy=_REMEDY
        )
        if self.printed:
            claims.need(
                "(3.17)",
                lambda0**3,
                ">=",
                k.printed_spectrum(),
                "without the powers of μ that the proof needs",
                printed=True,
            )
        # The step is bounded with ≤; Certificate.max_step_size is exclusive, which only asks for less.
        parts = [4 / lambda0**2, lambda0**2 / (25 * c11**2)]
        if c12.hi > 0:
            parts.append(1 / (32 * c12))
        largest = minimum(*parts)
        claims.need("step size", largest, ">", 0.0, "a step size that the theorem allows exists")
        exponent = (lambda0**2 / 4).lo
        return {
            "exponent": exponent,
            "max_step_size": max(largest.lo, 0.0),
            "promise": f"with step size η < {largest.lo:.3g}, L(k) ≤ (1 − {exponent:.3g} η)^k L(0).",
        }
