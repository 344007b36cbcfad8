"""The units of Z = σ(Z Wᵀ + u) whose pre-activation is 0."""

from __future__ import annotations

import torch
from torch import Tensor

from ...differentiate.ties import settle
from ...solve import Activation


def settled(P: Tensor, weight: Tensor, bias: Tensor, activation: Activation, near: Tensor) -> Tensor:
    """P = Z Wᵀ + u (…, N, m), in which every unit marked by `near` is 0 if it ties, or has its true sign.

    It is computed in float64, so that a unit counts as a tie only by the rounding of its own sum, and never
    by the error of Z.
    """
    W, u = weight.double(), bias.double()
    unit = (W.shape[-1] + 2) * torch.finfo(W.dtype).eps

    def preactivation(Z: Tensor) -> Tensor:
        p = Z @ W.mT + u
        largest = unit * (Z.norm(dim=-1)[..., None] * W.norm(dim=-1)[..., None, :] + u.abs())
        if bool(((p != 0) & (p.abs() <= largest)).any()):  # seldom, and these sums cost another product
            p = p.masked_fill(p.abs() <= unit * (Z.abs() @ W.abs().mT + u.abs()), 0.0)
        return p

    Z = settle(lambda Z: activation(preactivation(Z)), activation(P).double(), near)
    p = preactivation(Z)
    least = torch.finfo(P.dtype).tiny  # keeps the sign of a number that the dtype would round to 0
    return torch.where(near, (p.sign() * p.abs().clamp_min(least)).to(P.dtype), P)
