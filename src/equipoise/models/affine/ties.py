"""The units of Z = σ(Z Wᵀ + u) whose pre-activation is 0."""

from __future__ import annotations

import torch
from torch import Tensor

from ...differentiate.ties import settle
from ...solve import Activation


def settled(P: Tensor, weight: Tensor, bias: Tensor, activation: Activation, near: Tensor) -> Tensor:
    """P = Z Wᵀ + u (…, N, m), with 0 for the ties among `near`, and the sign they have for the others.

    In float64, so that nothing but the rounding of a unit's own sum counts as 0: the error of Z makes no tie.
    """
    W, u = weight.double(), bias.double()
    unit = (W.shape[-1] + 2) * torch.finfo(W.dtype).eps

    def preactivation(Z: Tensor) -> Tensor:
        p = Z @ W.mT + u
        largest = unit * (Z.norm(dim=-1)[..., None] * W.norm(dim=-1)[..., None, :] + u.abs())
        if bool(((p != 0) & (p.abs() <= largest)).any()):  # seldom: these sums cost another product
            p = p.masked_fill(p.abs() <= unit * (Z.abs() @ W.abs().mT + u.abs()), 0.0)
        return p

    Z = settle(lambda Z: activation(preactivation(Z)), activation(P).double(), near)
    p = preactivation(Z)
    least = torch.finfo(P.dtype).tiny  # a sign is not lost where the number is too small
    return torch.where(near, (p.sign() * p.abs().clamp_min(least)).to(P.dtype), P)
