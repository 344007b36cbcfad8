"""∏(1 − α + α L_σ‖W_l‖²/μ) < 1: every input of an OptEq has exactly one equilibrium.    [xie2021]

Each layer f_l is (1 − α)I plus α/μ times the gradient of a convex function with Lipschitz constant L_σ‖W_l‖²,
so the product bounds the contraction of the whole. It is below 1 where every ‖W_l‖ ≤ √(μ/L_σ) and one is
smaller; at equality of all, T is nonexpansive and nothing is proved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from ..linalg import Interval, frobenius, gamma, norm_upper_ball, singular_bounds
from ..models import altered
from ..models.conv import ConvOptEq
from ..models.methods import returned
from ..models.opteq import DeepOptEq, MultiBlockOptEq, OptEq
from ..models.opteq.activations import KNOWN
from ..models.opteq.deep import OptEqLayer
from ..models.properties import Proximal
from ..solve import Stop
from .certificate import FLOAT64_TIER, RIGOROUS_TIER, Certificate, fingerprint
from .claim import Claim
from .enclosure import product_rounding
from .families import SVD

Network = OptEq | DeepOptEq
_ULPS = 16  # of an activation or a property, as computed
_UNSCALED = 63 / 64  # of the bound: a smaller W is used as it is stored, in float32 too


def is_opteq(model: nn.Module) -> bool:
    """Whether the certificate below speaks of the model."""
    return isinstance(model, OptEq | DeepOptEq | MultiBlockOptEq)


@torch.no_grad()
def prove_wellposed(model: Network | MultiBlockOptEq, X: Tensor, tier: str = "float64") -> Certificate:
    """The certificate of `theorem="wellposed"`: R = 1/(1 − q), the rate q, and the equilibria's error.

    Of the multi-block form it is that of the deep one: L of its steps apply T to each block, from another
    layer on, and so contract by the same q.
    """
    rigorous = tier == "rigorous"
    exact = double(model)
    X64 = X.detach().to(exact.V.device)
    X64 = X64.double() if X64.is_floating_point() else X64
    hypotheses = [RIGOROUS_TIER if rigorous else FLOAT64_TIER, *declared(model)]
    if exact.feature_map is not None:
        hypotheses.append("the features of X, as computed, are taken as exact and the same at each call")
    frame = {
        "theorem": "wellposed",
        "hypotheses": tuple(hypotheses),
        "tier": tier,
        "fingerprint": fingerprint(model, X),
    }
    obstacle = obstacle_of(model, exact, X64)
    if obstacle:
        return Certificate(claims=(), obstacle=obstacle, **frame)  # type: ignore[arg-type]
    exact._check_inputs(X64)
    norm = (lambda W: Interval(0.0, norm_upper_ball(W))) if rigorous else (lambda W: singular_bounds(W).norm)
    claim, q = contraction_claim(exact, norm, "ball arithmetic" if rigorous else SVD)
    reason = claim.name
    if not claim.holds:
        return Certificate(claims=(claim,), constants={"reason": reason}, **frame)  # type: ignore[arg-type]
    constants: dict[str, float | str] = {"R": (1 / (1 - q)).hi, "rate": q.hi, "reason": reason}
    if not rigorous:  # products of the iteration are not formed in balls
        constants["error"] = equilibria_error(exact, X64, exact.solve(X64, stop=tight(exact)).value, q)
    blocks = len(model.blocks) if isinstance(model, MultiBlockOptEq) else 1
    steps = (
        "each step of plain iteration brings" if blocks == 1 else f"{blocks} steps of plain iteration bring"
    )
    return Certificate(
        claims=(claim,),
        promise=(
            f"every input has exactly one equilibrium ({reason}); {steps} the iterate nearer by a factor "
            f"{q.hi:.6g}."
        ),
        constants=constants,
        **frame,  # type: ignore[arg-type]
    )


def declared(model: Network | MultiBlockOptEq | ConvOptEq) -> list[str]:
    """What is believed of parts that are the user's own, and that a model returns no equilibrium."""
    activation, regulariser, found = model.activation, model.regulariser, []
    if activation not in KNOWN.values():
        found.append(f"{activation.name} is monotone with slopes ≤ {activation.lipschitz:g}, as declared")
    if regulariser is not None and regulariser.nonexpansive and regulariser.declared:
        found.append(regulariser.declared)
    if instead := returned(model.method):
        found.append(f"what is said is of equilibria: the model itself returns {instead}")
    return found


def contraction_claim(
    model: Network, norm: Callable[[Tensor], Interval], method: str
) -> tuple[Claim, Interval]:
    """L_σ‖W‖² < μ, or ∏(1 − α + α L_σ‖W_l‖²) < 1; and q, the Lipschitz constant of T."""
    lipschitz, mu = Interval(float(model.activation.lipschitz)), Interval(model.mu)
    alpha = Interval(model.alpha)
    sizes = [lipschitz * effective_norm(model, norm(W)) ** 2 for W in model.weights()]
    q = Interval(1.0)
    for size in sizes:
        q = q * (1 - alpha + alpha * size / mu)
    one = isinstance(model, OptEq)
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


def effective_norm(model: Network, norm: Interval) -> Interval:
    """‖W‖ of an effective W that has this norm as computed here.

    An SVD gives the norm that `bound=` divides by, and with other threads it rounds otherwise. What holds of
    a W that was scaled is ‖W‖ ≤ bound·√(μ/L_σ), and no more; one that is well below that was not scaled.
    """
    if model.bound is None:
        return norm
    cap = Interval(model.bound) * model.limit * (1 + gamma(8))
    return norm if norm.hi < _UNSCALED * cap.lo else Interval(norm.lo, max(norm.hi, cap.hi))


@torch.no_grad()
def opteq_error(model: Network | MultiBlockOptEq, X: Tensor, Z: Tensor) -> float:
    """≥ ‖Z − Z*‖_F for any Z offered as the equilibria of X; ∞ where none is proved."""
    exact = double(model)
    X64 = X.detach().to(exact.V.device)
    X64 = X64.double() if X64.is_floating_point() else X64
    if obstacle_of(model, exact, X64) or not bool(torch.isfinite(Z).all()):
        return math.inf
    claim, q = contraction_claim(exact, lambda W: singular_bounds(W).norm, SVD)
    return (
        equilibria_error(exact, X64, Z.detach().to(exact.V.device).double(), q) if claim.holds else math.inf
    )


def tight(model: Network) -> Stop:
    """As near as float64 tells, of layers of which a step leads a part of the way."""
    return Stop(rtol=max(1e-13, 2 * Stop.reach(torch.float64) / model.pace), max_steps=5000)


@torch.no_grad()
def double(model: Network | MultiBlockOptEq) -> Network:
    """The model in float64: the exact values of its stored numbers; the deep form of stacked blocks.

    Weights that `bound=` scales are taken as they come out in the dtype of the model.
    """
    device = torch.device("cpu") if model.V.device.type == "mps" else model.V.device
    exact = altered.double(model, device)
    finite = all(bool(torch.isfinite(block.W).all()) for block in model.blocks)
    if model.bound is not None and model.V.dtype != torch.float64 and finite:
        for block, W in zip(exact.blocks, model.weights(), strict=True):
            block.W.copy_(W)  # below the bound by more than float64 asks for: it stays as it is
    return exact.deep() if isinstance(exact, MultiBlockOptEq) else exact


def obstacle_of(model: Network | MultiBlockOptEq, exact: Network, X: Tensor) -> str:
    """Why nothing can be said at all; empty if something can."""
    if type(model) not in (OptEq, DeepOptEq, MultiBlockOptEq):
        known = next(k.__name__ for k in (OptEq, DeepOptEq, MultiBlockOptEq) if isinstance(model, k))
        return (
            f"{type(model).__name__} may compute otherwise than {known}, which is known: certify {known} "
            f"with its parameters (load_state_dict); modules of your own can stand around it."
        )
    if why := altered.altered(model) or unknown_layer(model.blocks, OptEq, OptEqLayer):
        return why
    if exact.regulariser is not None and not exact.regulariser.nonexpansive:
        return f"{exact.regulariser} is not known to be nonexpansive: R is not convex, or the step too long."
    if len(X) == 0:
        raise ValueError("X must have at least one row: a certificate is about data. Got none.")
    return not_finite(exact, X)


def unknown_layer(layers: Iterable[nn.Module], *known: type[nn.Module]) -> str:
    """The layer that may compute otherwise than those that are known; empty if none may."""
    for i, layer in enumerate(layers):
        if type(layer) not in known:
            return (
                f"layers[{i}] is of the class {type(layer).__name__}, which may compute otherwise than "
                f"{known[-1].__name__}, which is known: certify a model of such layers with its parameters "
                f"(load_state_dict)."
            )
    return ""


def not_finite(model: nn.Module, X: Tensor) -> str:
    """The data or the weight that is NaN or infinite; empty if none is."""
    for name, value in (("X", X), *model.state_dict().items()):
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            rows = torch.nonzero(~torch.isfinite(value).reshape(len(value), -1).all(dim=1)).flatten()
            where = f" in row {int(rows[0])}" if name == "X" else ""
            return f"{name} holds NaN or infinity{where}: nothing can be said of it."
    return ""


def equilibria_error(model: Network, X: Tensor, Z: object, q: Interval) -> float:
    """‖z − T(z)‖/(1 − q) with the rounding of T, layer by layer, added."""
    assert isinstance(Z, Tensor)
    Z = torch.where(torch.isfinite(Z), Z, 0.0)
    x, lipschitz, alpha = model.features(X), Interval(float(model.activation.lipschitz)), model.alpha
    z, off = Z, Interval(0.0)  # T so far as computed, and ≥ its distance to the exact one
    for layer, W in zip(model.blocks, model.weights(), strict=True):
        size = effective_norm(model, singular_bounds(W).norm) * (1 + gamma(8))
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
        sizes = frobenius(before) + frobenius(z) + frobenius(Z)  # a step before − γ∇R may cancel
        off = off + gamma(_ULPS) * sizes * (1 + _inner(model))
    residual = frobenius(Z - z) * (1 + gamma(2)) + off
    return (residual / (1 - q)).hi


def _inner(model: Network) -> int:
    """Terms of a sum inside the property, whose rounding counts too: m for the norm of a group."""
    return model.state if isinstance(model.regulariser, Proximal) else 4 * model.state
