"""L(t) ≤ e^{−λ₀²t/2} L(0): gradient flow and (repaired) descent of Monotone [hieu2022, ch. 3].

With margin μ, λ₀ = σ_N(Z(0)), radii R_A, R_B, R_U, R_u > 0, ā = ‖A(0)‖ + R_A, Ū = ‖U(0)‖ + R_U,
ū = ‖u(0)‖ + R_u, r₀ = ‖r(0)‖:

    flow     (3.8)  λ₀² ≥ 4‖X‖_F r₀ max{2Ūūā/(μ²R_A), 2Ūū/(μ²R_B), ū/(μR_U), Ū/(μR_u)}
             (3.9)  λ₀³ ≥ 8‖X‖_F² r₀ (ū/μ²)(4(Ū²ā² + Ū²)/μ² + 1)
    descent  (3.16) = (3.8) with 8
             (3.17) λ₀³ ≥ 16‖X‖_F² r₀ (ū/μ²)[1 + (6Ū²ā² + 4Ū²)/μ²]
             (3.18) λ₀² ≥ 16 C₁₃
             η ≤ min{4/λ₀², 1/(32 C₁₂), λ₀²/(25 C₁₁²)}

    C₁₁ = ‖X‖_F²[(ū² + Ū²)/μ² + 4ū²Ū²(1 + ā²)/μ⁴],  C₁₂ = ‖X‖_F²ū²Ū²ā²/(4μ⁴),  C₁₃ = C₁₁ − ‖X‖_F²Ū²/μ²

The thesis prints the conditions of descent without the powers of μ that its own lemmas give:

    (3.17) λ₀³ ≥ 8‖X‖_F² r₀ ū (1 + 6Ū²ā² + 4Ū²)
    (3.18) λ₀² ≥ 20‖X‖_F² (ū² + 4ū²Ū²ā² + 4ū²Ū² + Ū²)
    η ≤ min{4/λ₀², 1/(‖X‖_F²(ū² + 4Ū²ū² + 4Ū²ū²ā² + Ū²)), 1/(2‖X‖_Fλ₀Ūūā), 1/(6λ₀²ū²ā²)}

and Theorem 3.3.5 built on them is false for small μ; with μ restored its (3.18) can never hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..linalg import Interval, maximum, minimum
from .claim import Claims
from .common import SAME, PaperTheorem, along_the_flow, relative_movement, step_exists
from .families.monotone import certified_start as certified_start
from .features import Reach, plain_descent
from .instance import Instance
from .search import best_constants, log_margin, middle

BLOCKS = ("A", "B", "U", "u")
_REMEDY = "theory.hieu2022.certified_start(model, X, y), or theorem='safeguarded'"
_BALL, _SPECTRUM = "the weights stay in the ball", "σ_N(Z) stays above λ₀/2"


@dataclass(frozen=True)
class Hieu2022Ball:
    """ā, Ū, ū and the scalars of the data; of floats for the search, of intervals for the proof."""

    a: Any
    U: Any
    u: Any
    mu: Any
    X: Any
    r: Any
    R: Mapping[str, Any]

    def worst(self, top: Any) -> Any:
        """The maximum in (3.8) and (3.16), times ‖X‖_F r₀."""
        Uu, mu2 = self.U * self.u, self.mu**2
        largest = top(
            2 * Uu * self.a / (mu2 * self.R["A"]),
            2 * Uu / (mu2 * self.R["B"]),
            self.u / (self.mu * self.R["U"]),
            self.U / (self.mu * self.R["u"]),
        )
        return self.X * self.r * largest

    def flow_spectrum(self) -> Any:
        """The right side of (3.9)."""
        mu2, U2, a2 = self.mu**2, self.U**2, self.a**2
        return 8 * self.X**2 * self.r * (self.u / mu2) * (4 * (U2 * a2 + U2) / mu2 + 1)

    def descent_spectrum(self) -> Any:
        """The right side of (3.17), with the powers of μ."""
        mu2, U2, a2 = self.mu**2, self.U**2, self.a**2
        return 16 * self.X**2 * self.r * (self.u / mu2) * (1 + (6 * U2 * a2 + 4 * U2) / mu2)

    def descent(self) -> tuple[Any, Any, Any]:
        """C₁₁, C₁₂, C₁₃."""
        mu2, X2, u2, U2, a2 = self.mu**2, self.X**2, self.u**2, self.U**2, self.a**2
        cross = 4 * u2 * U2 * (1 + a2) / mu2**2
        return X2 * ((u2 + U2) / mu2 + cross), X2 * u2 * U2 * a2 / (4 * mu2**2), X2 * (u2 / mu2 + cross)

    def printed_spectrum(self) -> Any:
        """The right side of (3.17) as printed."""
        U2, a2 = self.U**2, self.a**2
        return 8 * self.X**2 * self.r * self.u * (1 + 6 * U2 * a2 + 4 * U2)

    def printed_curvature(self) -> Any:
        """‖X‖_F²(ū² + 4ū²Ū²ā² + 4ū²Ū² + Ū²): C₁₁ as printed, of which (3.18) takes 20."""
        u2, U2, a2 = self.u**2, self.U**2, self.a**2
        return self.X**2 * (u2 + 4 * u2 * U2 * a2 + 4 * u2 * U2 + U2)

    def printed_step(self, lambda0: Interval) -> Interval:
        """The largest step of Theorem 3.3.5 as printed."""
        return minimum(
            4 / lambda0**2,
            1 / self.printed_curvature(),
            1 / (2 * self.X * lambda0 * self.U * self.u * self.a),
            1 / (6 * lambda0**2 * self.u**2 * self.a**2),
        )


@dataclass(frozen=True)
class _Hieu2022(PaperTheorem):
    """`radii` {"A", "B", "U", "u"} of the ball the weights stay in; chosen for the best margin when None.

    `printed` shows the thesis' own conditions beside these, where they differ.
    """

    radii: Mapping[str, float] | None = None
    printed: bool = False

    contracting: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.radii is not None and (
            set(self.radii) != set(BLOCKS) or not all(r > 0 for r in self.radii.values())
        ):
            raise ValueError(
                f"radii must give a number > 0 for each of {BLOCKS}. Got {dict(self.radii)} instead."
            )

    def options(self) -> dict[str, Any]:
        """The radii and printed."""
        return {"radii": None if self.radii is None else dict(self.radii), "printed": self.printed}

    def obstacle(self, instance: Instance) -> str:
        """Why a bias stands in the way; empty if there is none."""
        if getattr(instance.model, "bias", None) is None:
            return ""
        return "the theorem is about a network without bias. Got one instead: Monotone(…, bias=False)."

    def argued(self, claims: Claims, instance: Instance, least: Interval) -> dict[str, Any]:
        """(3.8) and (3.9), or (3.16) to (3.18), with λ₀ = σ_min(Z(0))."""
        lambda0, radii = least, dict(self.radii or self._choose(instance))
        mu, A, U, u = _norms(instance)
        at = Hieu2022Ball(
            A + radii["A"],
            U + radii["U"],
            u + radii["u"],
            mu,
            instance.X_frobenius,
            instance.residual_norm,
            {name: Interval(r) for name, r in radii.items()},
        )
        found = self._claim(claims, instance, at, lambda0)
        moved = relative_movement(instance, self._spectrum(at) / (2 * lambda0**2))
        known = {"radii": radii, "lambda0": lambda0.lo, "mu": mu.lo, **found.pop("constants", {})}
        return {"movement": moved, "constants": known, **found}

    def _choose(self, instance: Instance) -> Mapping[str, float]:
        """Radii with the best worst margin."""
        mu, A, U, u = (middle(x) for x in _norms(instance))
        X, r = middle(instance.X_frobenius), middle(instance.residual_norm)
        lambda0 = max(middle(instance.sigma_N), 1e-100)  # even for 0 the least bad radii are shown

        def radii(three: Sequence[float]) -> dict[str, float]:
            R_A, R_U, R_u = three
            return {"A": R_A, "B": R_A / (A + R_A), "U": R_U, "u": R_u}  # R_B is the least that does not bind

        def score(three: Sequence[float]) -> float:
            R = radii(three)
            at = Hieu2022Ball(A + R["A"], U + R["U"], u + R["u"], mu, X, r, R)
            return log_margin(*self._sides(at, lambda0))

        small = min(max(r, 1e-3) / max(lambda0, 1e-3), 1e6)
        starts = [(max(A, 1e-2), 0.02 * max(U, 1e-2), small), (1.0, 1.0, 1.0)]
        return radii(best_constants(score, starts, tries=1000))

    def _spectrum(self, at: Hieu2022Ball) -> Any:
        """The right side of (3.9) or (3.17); over 2λ₀² it bounds ‖Z − Z(0)‖_F."""
        raise NotImplementedError

    def _sides(self, at: Hieu2022Ball, lambda0: float) -> list[tuple[float, float]]:
        raise NotImplementedError

    def _claim(
        self, claims: Claims, instance: Instance, at: Hieu2022Ball, lambda0: Interval
    ) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True)
class Hieu2022Flow(_Hieu2022):
    """L(t) ≤ e^{−λ₀²t/2} L(0) under (3.8), (3.9), right as printed    [hieu2022, Theorem 3.3.1]."""

    name = "hieu2022.flow"
    kind = "flow"

    def _spectrum(self, at: Hieu2022Ball) -> Any:
        return at.flow_spectrum()

    def _sides(self, at: Hieu2022Ball, lambda0: float) -> list[tuple[float, float]]:
        return [(lambda0**2, 4 * at.worst(max)), (lambda0**3, at.flow_spectrum())]

    def _claim(
        self, claims: Claims, instance: Instance, at: Hieu2022Ball, lambda0: Interval
    ) -> dict[str, Any]:
        square = lambda0**2
        claims.need("(3.8)", square, ">=", 4 * at.worst(maximum), _BALL, remedy=_REMEDY)
        claims.need("(3.9)", square * lambda0, ">=", at.flow_spectrum(), _SPECTRUM, remedy=_REMEDY)
        return {**along_the_flow((square / 2).lo), "constants": SAME if self.printed else {}}


@dataclass(frozen=True)
class Hieu2022Descent(_Hieu2022):
    """L(k+1) ≤ (1 − ηλ₀²/4) L(k) under (3.16)-(3.18) repaired    [hieu2022, Theorem 3.3.5].

    `rtol` is the tolerance of the solves of the run, which goes into the floor of the bound.
    """

    rtol: float = 1e-15

    name = "hieu2022.descent"
    kind = "descent"

    def _spectrum(self, at: Hieu2022Ball) -> Any:
        return at.descent_spectrum()

    def _sides(self, at: Hieu2022Ball, lambda0: float) -> list[tuple[float, float]]:
        return [
            (lambda0**2, 8 * at.worst(max)),
            (lambda0**3, at.descent_spectrum()),
            (lambda0**2, 16 * at.descent()[2]),
        ]

    def _claim(
        self, claims: Claims, instance: Instance, at: Hieu2022Ball, lambda0: Interval
    ) -> dict[str, Any]:
        c11, c12, c13 = at.descent()
        square, cube = lambda0**2, lambda0**2 * lambda0
        claims.need("(3.16)", square, ">=", 8 * at.worst(maximum), _BALL, remedy=_REMEDY)
        claims.need("(3.17)", cube, ">=", at.descent_spectrum(), _SPECTRUM, remedy=_REMEDY)
        claims.need("(3.18)", square, ">=", 16 * c13, "a step of descent decreases the loss", remedy=_REMEDY)
        # The step is bounded with ≤; Certificate.max_step_size is exclusive, which only asks for less.
        step = minimum(4 / square, 1 / (32 * c12), square / (25 * c11**2))
        largest = step_exists(claims, "step size", step)
        if self.printed:
            lost = "without the powers of μ that the proof needs"
            claims.need("(3.17)", cube, ">=", at.printed_spectrum(), f"{lost}, and 8 for 16", printed=True)
            claims.need("(3.18)", square, ">=", 20 * at.printed_curvature(), lost, printed=True)
            claims.need("step size", at.printed_step(lambda0), ">", 0.0, lost, printed=True)
        along, exponent = Reach(at.R["A"], at.u, at.U * at.X / at.mu), (square / 4).lo
        return plain_descent(claims, instance, along, exponent=exponent, largest=largest, rtol=self.rtol)


Flow = Hieu2022Flow
Descent = Hieu2022Descent


def _norms(instance: Instance) -> tuple[Interval, Interval, Interval, Interval]:
    """μ, ‖A(0)‖, ‖U(0)‖, ‖u(0)‖."""
    model: Any = instance.model
    A, U, u = (instance.norm(name) for name in ("A", "U", "u"))
    return Interval(float(model.margin)), A, U, u
