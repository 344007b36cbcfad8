"""σ with what the solvers ask of it: its slope, and prox_{αφ} of the convex φ with σ = prox_φ."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Activation:
    """σ with its derivative, and prox_{αφ} where σ = prox_φ has it (splitting needs that).

    Every non-decreasing 1-Lipschitz σ is prox_φ of some convex φ. Then u − σ(u) ∈ ∂φ(σ(u)), so that

        prox_{αφ}((1 − α) σ(u) + α u) = σ(u)   for every α > 0,

    which determines each prox below.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]  # σ'(p) at the pre-activation p; at a kink the smaller: relu'(0) = 0
    prox: Callable[[Tensor, float], Tensor] | None = None  # (v, α) ↦ prox_{αφ}(v)
    lipschitz: float = 1.0
    in_place: Callable[[Tensor], Tensor] | None = None  # σ(p) in the memory of p, where torch has that
    exact: bool = False  # whether σ is as above and computed without rounding, which error bounds need

    def overwrite(self, p: Tensor) -> Tensor:
        """σ(p), where p is not needed any more."""
        return self.value(p) if self.in_place is None else self.in_place(p)

    def __call__(self, p: Tensor) -> Tensor:
        return self.value(p)


def clamp(low: float, high: float) -> Activation:
    """σ(p) = min(max(p, low), high): the projection on [low, high], which is its own prox for every α."""
    if not low < high:
        raise ValueError(f"clamp needs low < high. Got {low} and {high} instead.")
    return Activation(
        f"clamp({low:g}, {high:g})",
        lambda p: torch.nn.functional.hardtanh(p, low, high),
        lambda p: ((p > low) & (p < high)).to(p.dtype),
        lambda v, _: v.clamp(low, high),
        exact=True,
    )


def leaky_relu(slope: float) -> Activation:
    """σ(p) = p for p ≥ 0, s·p below, s ∈ (0, 1]; φ(z) = ½(1/s − 1) min(z, 0)²."""
    if not 0 < slope <= 1:
        raise ValueError(f"the slope of a leaky relu must lie in (0, 1]. Got {slope} instead.")
    return Activation(
        f"leaky_relu({slope:g})",
        lambda p: torch.nn.functional.leaky_relu(p, slope),
        lambda p: torch.where(p > 0, torch.ones_like(p), slope),
        lambda v, alpha: torch.nn.functional.leaky_relu(v, 1 / (1 + alpha * (1 / slope - 1))),
    )


def soft_threshold(threshold: float) -> Activation:
    """σ(p) = sign(p) max(|p| − λ, 0); φ(z) = λ|z|."""
    if not 0 <= threshold < math.inf:
        raise ValueError(f"a soft threshold must be finite and ≥ 0. Got {threshold} instead.")
    return Activation(
        f"soft_threshold({threshold:g})",
        lambda p: torch.nn.functional.softshrink(p, threshold),
        lambda p: (p.abs() > threshold).to(p.dtype),
        lambda v, alpha: torch.nn.functional.softshrink(v, alpha * threshold),
    )


def _tanh_prox(v: Tensor, alpha: float) -> Tensor:
    """tanh(u) where (1 − α) tanh(u) + α u = v, by Newton from u = v.

    The left side is odd and increasing, and for u > 0 concave (α < 1) or convex (α > 1); the start lies on
    the side from which Newton's steps are then monotone, so they reach u whatever v and α are.
    """
    u, eps = v, torch.finfo(v.dtype).eps
    for _ in range(60):
        t = torch.tanh(u)
        excess = (1 - alpha) * t + alpha * u - v
        if not bool((excess.abs() > 4 * eps * (v.abs() + alpha * u.abs())).any()):
            break
        u = u - excess / (alpha + (1 - alpha) * (1 - t * t))
    return torch.tanh(u)


RELU = Activation(
    "relu",
    torch.relu,
    lambda p: (p > 0).to(p.dtype),
    lambda v, _: torch.relu(v),
    in_place=torch.relu_,
    exact=True,
)
IDENTITY = Activation("identity", lambda p: p, torch.ones_like, lambda v, _: v, exact=True)
TANH = Activation("tanh", torch.tanh, lambda p: 1 - torch.tanh(p) ** 2, _tanh_prox, in_place=torch.tanh_)
ACTIVATIONS = {
    "relu": RELU,
    "identity": IDENTITY,
    "tanh": TANH,
    "hardtanh": clamp(-1.0, 1.0),
    "relu6": clamp(0.0, 6.0),
    "leaky_relu": leaky_relu(0.01),
    "softshrink": soft_threshold(0.5),
}


def as_activation(which: str | Activation) -> Activation:
    """An Activation by name, or itself."""
    if isinstance(which, Activation):
        return which
    if which not in ACTIVATIONS:
        raise ValueError(
            f"activation must be one of {sorted(ACTIVATIONS)} or an Activation. Got {which!r} instead."
        )
    return ACTIVATIONS[which]
