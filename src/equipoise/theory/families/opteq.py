"""∏(1 − α + α L_σ‖W_l‖²/μ) < 1: what is known of OptEq, DeepOptEq and MultiBlockOptEq.    [xie2021]

Each layer f_l is (1 − α)I plus α/μ times the gradient of a convex function with Lipschitz constant L_σ‖W_l‖²,
so the product bounds the contraction of the whole. It is below 1 where every ‖W_l‖ ≤ √(μ/L_σ) and one is
smaller; at equality of all, T is nonexpansive and nothing is proved.

With g_l = 1 − α + α L_σ‖W_l‖²/μ, T contracts by q = ∏ g_l in z, and when x moves by one it moves by at most
s = Σ_l (α/μ) L_σ‖W_l‖‖U_l‖ ∏_{j>l} g_j. So ‖z(x) − z(x')‖ ≤ s/(1 − q) ‖x − x'‖. A nonexpansive property
behind the layers changes neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...linalg import (
    Interval,
    frobenius,
    gamma,
    norm_upper,
    norm_upper_ball,
    singular_bounds,
)
from ...models import altered
from ...models.proximal import DeepOptEq, MultiBlockOptEq, OptEq, OptEqLayer
from ...models.proximal.properties import Proximal
from ...solve import Stop
from ..certificate import FLOAT64_TIER, RIGOROUS_TIER, Certificate, fingerprint
from ..claim import Claim
from ..common import FEATURES, declared, not_finite, unknown_layer
from ..enclosure import SVD, margin_of, product_rounding
from ..facts import Facts
from ..lipschitz import Bounds, RowScores, score_error
from ..read_features import ReadFeatures
from ..register import facts_of, has_own_facts
from ..verify.network import UnitNetwork
from ..wellposed import check_shape

Network = OptEq | DeepOptEq
_VERIFIED = ("relu", "identity")
_ULPS = 16  # of an activation or a property, as computed
_UNSCALED = 63 / 64  # of the bound: a smaller W is used as it is stored, in float32 too


class ProximalFacts(Facts):
    """What the three forms share; each says what it is in the deep form."""

    layered = True  # whether the condition is that of a product of layers
    shape_hint = ""  # added to the error about a Z of another shape

    @cached_property
    @torch.no_grad()
    def exact(self) -> Network:
        """The model in float64: the exact values of its stored numbers, in a form whose steps are T.

        Weights that `bound=` scales are taken as they come out in the dtype of the model.
        """
        model = self.model
        device = torch.device("cpu") if model.V.device.type == "mps" else model.V.device
        exact = altered.double(model, device)
        finite = all(bool(torch.isfinite(block.W).all()) for block in model.blocks)
        if model.bound is not None and model.V.dtype != torch.float64 and finite:
            for block, W in zip(exact.blocks, model.weights(), strict=True):
                block.W.copy_(W)  # below the bound by more than float64 asks for: it stays as it is
        return self.unstacked(exact)

    def unstacked(self, exact: Any) -> Network:
        """The form of the model whose steps are T itself."""
        return exact

    def step_words(self) -> str:
        """How many steps contract by q, as the subject of a sentence with its verb."""
        return "each step of plain iteration brings"

    @torch.no_grad()
    def wellposed(self, X: Tensor, tier: str) -> Certificate:
        """R = 1/(1 − q), the rate q, and the equilibria's error."""
        model, rigorous = self.model, tier == "rigorous"
        X64 = self.inputs_of(X)
        hypotheses = [RIGOROUS_TIER if rigorous else FLOAT64_TIER, *declared(model)]
        if self.exact.feature_map is not None:
            hypotheses.append("the features of X, as computed, are taken as exact and the same at each call")
        frame: dict[str, Any] = {
            "theorem": "wellposed",
            "hypotheses": tuple(hypotheses),
            "tier": tier,
            "fingerprint": fingerprint(model, X),
        }
        if obstacle := self.obstacle(X64):
            return Certificate(claims=(), obstacle=obstacle, **frame)
        self.exact._check_inputs(X64)
        norm = (lambda W: Interval(0.0, norm_upper_ball(W))) if rigorous else _norm
        claim, q = self.contraction(norm, "ball arithmetic" if rigorous else SVD)
        if not claim.holds:
            return Certificate(claims=(claim,), constants={"reason": claim.name}, **frame)
        constants: dict[str, float | str] = {"R": (1 / (1 - q)).hi, "rate": q.hi, "reason": claim.name}
        if not rigorous:  # products of the iteration are not formed in balls
            Z = self.exact.solve(X64, stop=tight(self.exact)).value
            constants["error"] = equilibria_error(self.exact, X64, Z, q)
        return Certificate(
            claims=(claim,),
            promise=(
                f"every input has exactly one equilibrium ({claim.name}); {self.step_words()} the iterate "
                f"nearer by a factor {q.hi:.6g}."
            ),
            constants=constants,
            **frame,
        )

    @torch.no_grad()
    def equilibrium_error(self, X: Tensor, Z: Tensor) -> float:
        """≥ ‖Z − Z*‖_F by ‖z − T(z)‖/(1 − q), of T itself; infinite where nothing is proved."""
        check_shape(Z, (len(X), self.model.state), self.shape_hint)
        if altered.altered(self.model):
            return math.inf
        X64 = self.inputs_of(X)
        if self.obstacle(X64) or not bool(torch.isfinite(Z).all()):
            return math.inf
        claim, q = self.contraction(_norm, SVD)
        if not claim.holds:
            return math.inf
        return equilibria_error(self.exact, X64, Z.detach().to(self.exact.V.device).double(), q)

    def reads(self) -> ProximalReads:
        """φ(x) = z."""
        return ProximalReads(self)

    def bounds(self) -> OptEqBounds:
        """Lipschitz constants of the outputs."""
        return OptEqBounds(self)

    @torch.no_grad()
    def unit_network(self) -> UnitNetwork:
        """The units of all layers, h_l = σ(W_l z_{l−1} + U_l x + b_l), stacked: z is linear in them.

        z_l = (α/μ)W_lᵀh_l + (1 − α)z_{l−1} goes round, so z_l = Σ_j κ_{(l−j) mod L} W_jᵀh_j with
        κ_i = (α/μ)(1 − α)^i/(1 − (1 − α)^L), which are exact rational numbers, rounded once.
        """
        known = OptEqBounds(self)
        if known.obstacle:
            raise ValueError(f"nothing can be verified of this model: {known.obstacle}")
        model, W = known.model, known.model.weights()
        if model.regulariser is not None or model.bound is not None or model.activation.name not in _VERIFIED:
            raise ValueError(
                f"predictions are verified of OptEq and DeepOptEq with the activation "
                f"{' or '.join(_VERIFIED)}, without a regulariser and without bound=. Got {model} instead: "
                f"project_(0.99) keeps free weights well-posed."
            )
        L, alpha, rest = len(W), Fraction(model.alpha), 1 - Fraction(model.alpha)
        share = [float(alpha / Fraction(model.mu) * rest**i / (1 - rest**L)) for i in range(L)]
        error, out_error, rows, V = Interval(0.0), Interval(0.0), [], known.a.T
        for before in range(L):  # layer `before` + 1 reads z_before
            parts = [share[(before - 1 - j) % L] * (W[before] @ Wj.T) for j, Wj in enumerate(W)]
            rows.append(torch.cat(parts, dim=1))
            for j, Wj in enumerate(W):
                rounded = product_rounding(W[before], Wj.T) * share[(before - 1 - j) % L]
                error = error + rounded * (1 + gamma(4)) + gamma(4) * frobenius(parts[j])
        readout = [share[L - 1 - j] * (V @ Wj.T) for j, Wj in enumerate(W)]
        for j, Wj in enumerate(W):
            rounded = product_rounding(V, Wj.T) * share[L - 1 - j]
            out_error = out_error + rounded * (1 + gamma(4)) + gamma(4) * frobenius(readout[j])
        weight = torch.cat(rows)
        gap = 1 - (Interval(norm_upper(weight)) + error)
        margin = max(gap.lo, margin_of(weight, error.hi))
        if not margin > 0:
            raise ValueError("predictions are verified where every ‖W_l‖ < √μ: project_(0.99) makes it so.")
        return UnitNetwork(
            weight=weight,
            weight_error=error.hi,
            inputs=torch.cat([layer.U for layer in model.blocks]),
            offset=torch.cat([layer.b for layer in model.blocks]),
            readout=torch.cat(readout, dim=1),
            readout_error=out_error.hi,
            shift=known.a.new_zeros(known.a.shape[1]),
            resolvent=(1 / Interval(margin)).hi,
            activation=model.activation,
        )

    def inputs_of(self, X: Tensor) -> Tensor:
        """X on the device of the exact model, in float64 unless it holds integers."""
        X = X.detach().to(self.exact.V.device)
        return X.double() if X.is_floating_point() else X

    def contraction(self, norm: Callable[[Tensor], Interval], method: str) -> tuple[Claim, Interval]:
        """L_σ‖W‖² < μ, or ∏(1 − α + α L_σ‖W_l‖²) < 1; and q, the Lipschitz constant of T."""
        model, one = self.exact, not self.layered
        lipschitz, mu = Interval(float(model.activation.lipschitz)), Interval(model.mu)
        alpha = Interval(model.alpha)
        sizes = [lipschitz * effective_norm(model, norm(W)) ** 2 for W in model.weights()]
        q = Interval(1.0)
        for size in sizes:
            q = q * (1 - alpha + alpha * size / mu)
        return (
            Claim(
                "L_σ‖W‖² < μ" if one else "∏(1−α+αL_σ‖W_l‖²) < 1",
                "the map contracts: one equilibrium for every input",
                sizes[0] if one else q,
                "<",
                mu if one else Interval(1.0),
                method,
                remedy="project_(0.99), or bound=0.99: smaller weights" + (", or a larger μ" if one else ""),
            ),
            q,
        )

    def obstacle(self, X: Tensor) -> str:
        """Why nothing can be said at all; empty if something can."""
        regulariser = self.exact.regulariser
        if not has_own_facts(self.model):
            name = type(self.model).__name__
            return (
                f"{name} may compute otherwise than {self.family}, which is known: certify {self.family} "
                f"with its parameters (load_state_dict); modules of your own can stand around it."
            )
        if why := altered.altered(self.model) or unknown_layer(self.model.blocks, OptEq, OptEqLayer):
            return why
        if regulariser is not None and not regulariser.nonexpansive:
            return f"{regulariser} is not known to be nonexpansive: R is not convex, or the step too long."
        if len(X) == 0:
            raise ValueError("X must have at least one row: a certificate is about data. Got none.")
        return not_finite(self.exact, X)


@facts_of(OptEq)
class OptEqFacts(ProximalFacts):
    """What is known of OptEq, whose one layer contracts where L_σ‖W‖² < μ."""

    family, layered = "OptEq", False


@facts_of(DeepOptEq)
class DeepOptEqFacts(ProximalFacts):
    """What is known of DeepOptEq, whose layers together contract by the product of theirs."""

    family = "DeepOptEq"


@facts_of(MultiBlockOptEq)
class MultiBlockFacts(DeepOptEqFacts):
    """What is known of MultiBlockOptEq: what is known of its deep form.

    L of its steps apply T to each block, beginning with another layer, and so contract by the same q.
    """

    family = "MultiBlockOptEq"
    shape_hint = " A stacked state is no Z: give equilibrium(X)."

    def unstacked(self, exact: MultiBlockOptEq) -> Network:
        """The deep form."""
        return exact.deep()

    def step_words(self) -> str:
        """L steps, since one of them applies only one layer to each block."""
        return f"{len(self.model.blocks)} steps of plain iteration bring"


class ProximalReads(ReadFeatures):
    """φ(x) = z of an OptEq, a DeepOptEq or a MultiBlockOptEq."""

    def __init__(self, facts: ProximalFacts) -> None:
        super().__init__(facts.model)
        self.exact, self.hypotheses = facts.exact, tuple(declared(facts.model))
        if self.exact.feature_map is not None:
            self.hypotheses = (*self.hypotheses, FEATURES)
        self.obstacle = self.obstacle or facts.obstacle(self.exact.V.new_zeros(1, 1))
        if not self.obstacle:
            claim, self.q = facts.contraction(_norm, SVD)
            self.claims, self.resolvent = (claim,), (1 / (1 - self.q)).hi if claim.holds else math.inf
            self.sizes = _sizes(self.exact)

    def state_error(self, X: Tensor, Z: Tensor) -> float:
        """≥ ‖Z − Z*‖_F, by ‖z − T(z)‖/(1 − q)."""
        return equilibria_error(self.exact, X, Z, self.q, self.sizes)

    def stop(self, rtol: float) -> Stop:
        """The tolerance of a solve: T itself is solved, whose steps go part of the way."""
        return Stop(rtol=max(rtol, tight(self.exact).rtol or 0.0), max_steps=5000)


class OptEqBounds(Bounds):
    """The Lipschitz constants of an OptEq, from its weights in float64."""

    def __init__(self, facts: ProximalFacts) -> None:
        if facts.model.feature_map is not None:
            raise ValueError(
                "a Lipschitz bound in x needs g(x) = x: nothing is known of a feature_map. "
                "Give the features themselves as inputs to a model without one."
            )
        self.model, self.believed = facts.exact, tuple(declared(facts.model))
        self.obstacle = facts.obstacle(self.model.V.new_zeros(1, self.model.inputs))
        self.a = self.model.V.reshape(self.model.width, self.model.outputs)  # (m, k)
        self.q = Interval(math.inf)
        if not self.obstacle:
            claim, self.q = facts.contraction(_norm, SVD)
            if not claim.holds:
                self.obstacle = f"uniqueness of the equilibrium is not proved: {claim}"

    @torch.no_grad()
    def state_bound(self, units: Tensor | None = None) -> float:
        """≥ the Lipschitz constant of x ↦ z(x), on all units."""
        if self.obstacle:
            return math.inf
        model, moved = self.model, Interval(0.0)
        alpha, slope = Interval(model.alpha), Interval(float(model.activation.lipschitz)) / model.mu
        for layer, W in zip(model.blocks, model.weights(), strict=True):
            size = effective_norm(model, _norm(W))
            moved = (1 - alpha + alpha * slope * size**2) * moved
            moved = moved + alpha * slope * size * Interval(norm_upper(layer.U))
        return (moved / (1 - self.q)).hi

    def checked(self, X: Tensor) -> tuple[Tensor, str]:
        """X (N, d) in float64, and why nothing can be said."""
        X = X.detach().to(self.a) if isinstance(X, Tensor) else X
        self.model._check_inputs(X)
        return X, self.obstacle

    @torch.no_grad()
    def scores(self, X: Tensor) -> RowScores:
        """ŷ (N, k) of a checked X, ≥ the error of a difference of two of a row's, and their scale."""
        Z = self.model.solve(X, stop=tight(self.model)).value
        assert isinstance(Z, Tensor)
        return RowScores(Z @ self.a, score_error(Z, equilibria_error(self.model, X, Z, self.q), self.a))


# -- pieces of the certificate and of the bounds -------------------------------------------------------------


def _norm(W: Tensor) -> Interval:
    return singular_bounds(W).norm


def effective_norm(model: Network, norm: Interval) -> Interval:
    """‖W‖ of an effective W whose norm, as computed here, is `norm`.

    `bound=` divides by a norm from an SVD, which rounds differently with another number of threads. So a W
    that was scaled is only sure to have ‖W‖ ≤ bound·√(μ/L_σ); one well below that was not scaled.
    """
    if model.bound is None:
        return norm
    cap = Interval(model.bound) * model.proximal_norm * (1 + gamma(8))
    return norm if norm.hi < _UNSCALED * cap.lo else Interval(norm.lo, max(norm.hi, cap.hi))


def tight(model: Network) -> Stop:
    """The tightest stop in float64 for T itself, whose steps go part of the way."""
    return Stop(rtol=max(1e-13, 2 * Stop.reach(torch.float64) / model.pace), max_steps=5000)


def _sizes(model: Network) -> list[Interval]:
    """≥ ‖W_l‖, the rounding of a scaled one included."""
    return [effective_norm(model, _norm(W)) * (1 + gamma(8)) for W in model.weights()]


def equilibria_error(
    model: Network, X: Tensor, Z: object, q: Interval, sizes: list[Interval] | None = None
) -> float:
    """≥ ‖Z − Z*‖_F: ‖Z − T(Z)‖_F/(1 − q) with the rounding of each layer added; `sizes` are ≥ ‖W_l‖."""
    assert isinstance(Z, Tensor)
    sizes = _sizes(model) if sizes is None else sizes
    Z = torch.where(torch.isfinite(Z), Z, 0.0)
    x, lipschitz, alpha = model.features(X), Interval(float(model.activation.lipschitz)), model.alpha
    z, off = Z, Interval(0.0)  # T so far as computed, and ≥ its distance to the exact one
    for layer, W, size in zip(model.blocks, model.weights(), sizes, strict=True):
        c = x @ layer.U.T + layer.b
        pre = z @ W.T + c
        h = model.activation(pre)
        out = (alpha / model.mu) * (h @ W)
        new = out if alpha == 1 else out + (1 - alpha) * z
        at_pre = (
            product_rounding(x, layer.U.T)
            + product_rounding(z, W.T)
            + gamma(8) * (frobenius(c) + frobenius(pre) + frobenius(z) * size)
        )
        at_h = lipschitz * at_pre + gamma(_ULPS) * frobenius(h)
        at_out = Interval(alpha) / model.mu * (size * at_h + product_rounding(h, W)) + gamma(8) * (
            frobenius(out) + frobenius(h) * size * (alpha / model.mu) + frobenius(z) + frobenius(new)
        )
        grow = 1 - Interval(alpha) + Interval(alpha) * lipschitz * size**2 / model.mu
        off, z = grow * off + at_out, new
    if model.regulariser is not None:
        before, z = z, model.regulariser(z)
        near = frobenius(before) + frobenius(z) + frobenius(Z)  # a step before − γ∇R may cancel
        off = off + gamma(_ULPS) * near * (1 + _inner(model))
    residual = frobenius(Z - z) * (1 + gamma(2)) + off
    return (residual / (1 - q)).hi


def _inner(model: Network) -> int:
    """Terms of a sum inside the property, whose rounding counts too: m for the norm of a group."""
    return model.state if isinstance(model.regulariser, Proximal) else 4 * model.state
