"""σ̃(t) = ∫₀ᵗ σ: monotone activations with slopes in [0, L_σ], and what the convex problem asks of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.polynomial.legendre import leggauss
from scipy.special import spence
from torch import Tensor

from ...solve import Activation
from ...solve.activation import ACTIVATIONS, clamp, leaky_relu, soft_threshold

SOFTPLUS = Activation("softplus", lambda p: torch.logaddexp(p, torch.zeros_like(p)), torch.sigmoid)
KNOWN = {**ACTIVATIONS, "softplus": SOFTPLUS}
_MAKERS: dict[str, Callable[..., Activation]] = {
    "clamp": clamp,
    "leaky_relu": leaky_relu,
    "soft_threshold": soft_threshold,
}

_PANEL, _NODES = 0.5, 12  # of the quadrature: as accurate as float64 for an analytic σ


def monotone_activation(which: str | Activation) -> Activation:
    """An activation by name, or a user's `Activation(name, value, slope, lipschitz=L_σ)`, checked on a grid.

    The theorems need 0 ≤ (σ(a) − σ(b))/(a − b) ≤ L_σ [xie2021, Assumption 1]: a declaration that is false on
    the grid is refused.
    """
    if isinstance(which, str) and which in KNOWN:
        return KNOWN[which]
    if not isinstance(which, Activation):
        raise ValueError(
            f"activation must be one of {', '.join(sorted(KNOWN))}, or an Activation with its slope and its "
            f"largest slope declared. Got {which!r} instead; a file holds the name alone, so pass your own "
            f"to load(path, activation=…)."
        )
    if not 0 < which.lipschitz < math.inf:
        raise ValueError(f"the largest slope of {which.name} must be finite and > 0. Got {which.lipschitz}.")
    t = torch.linspace(-12, 12, 4801, dtype=torch.float64)
    slopes = which(t).diff() / t.diff()
    low, high = float(slopes.min()), float(slopes.max())
    if not (low >= -1e-9 and high <= which.lipschitz * (1 + 1e-9)):
        raise ValueError(
            f"activation must be monotone with slopes in [0, {which.lipschitz:g}], as it declares. Got "
            f"slopes of {which.name} from {low:.4g} to {high:.4g} instead: declare lipschitz={high:.4g}, or "
            f"take a monotone one."
        )
    meant = _named(which.name)
    if which.name in KNOWN and which != meant:
        raise ValueError(f"{which.name} is the name of another activation, known here: choose a new one.")
    if meant is not None and not torch.allclose(which(t), meant(t), rtol=1e-5, atol=1e-5):  # a name rounds
        raise ValueError(
            f"{which.name} is the name of another activation, with other values: choose a new one."
        )
    return which


def _named(name: str) -> Activation | None:
    """What is known by a name, "relu" or "clamp(-1, 2)"; None for a user's own."""
    if name in KNOWN:
        return KNOWN[name]
    maker, _, rest = name.partition("(")
    if maker not in _MAKERS or not rest:
        return None
    try:
        return _MAKERS[maker](*(float(number) for number in rest.removesuffix(")").split(",")))
    except (TypeError, ValueError):
        raise ValueError(f"{name} is not the name of any {maker}: choose a new one.") from None


def potential(activation: Activation, t: Tensor) -> Tensor:
    """σ̃(t) = ∫₀ᵗ σ(s) ds, entry by entry: in closed form where known, else by Gauss-Legendre quadrature.

    The quadrature is accurate to rounding for an analytic σ and to about 1e-4 at a kink of a user's own.
    """
    name, value = activation.name, activation(t)
    if name in ("relu", "identity") or name.startswith("leaky_relu("):  # positively homogeneous
        return t * value / 2
    if name.startswith("soft_threshold("):
        return value.square() / 2
    if name.startswith("clamp("):  # ½t² − ½(distance to the interval)², from 0, without their cancellation
        zero = activation(torch.zeros_like(t))
        return (value * (2 * t - value) + zero.square()) / 2
    if name == "tanh":  # log cosh; near 0 as log(1 + 2 sinh²(t/2)), which is small like ½t²
        size = t.abs()
        near = torch.log1p(2 * torch.sinh(size.clamp_max(1.0) / 2).square())
        return torch.where(size < 1, near, size + torch.log1p(torch.exp(-2 * size)) - math.log(2))
    if name == "softplus":  # Li₂(−1) − Li₂(−eᵗ), with Li₂(u) = spence(1 − u)
        tail = torch.as_tensor(spence(1 + np.exp(-t.abs().double().cpu().numpy()))).to(t)
        right = t.square() / 2 + math.pi**2 / 12 + tail
        return torch.where(t > 0, right, -tail - math.pi**2 / 12)
    return _quadrature(activation, t)


def _quadrature(activation: Activation, t: Tensor) -> Tensor:
    nodes, weights = (torch.as_tensor(v, dtype=t.dtype, device=t.device) for v in leggauss(_NODES))
    panels = max(1, math.ceil(float(t.abs().max()) / _PANEL)) if t.numel() else 1
    at = (torch.arange(panels, dtype=t.dtype, device=t.device)[:, None] + (nodes + 1) / 2).flatten() / panels
    share = (weights / 2).repeat(panels) / panels  # of [0, 1]
    return t * (activation(t[..., None] * at) @ share)
