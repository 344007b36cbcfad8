"""a ← a − η Zᵀ r, or a ← a − η Z† r: the readout's own step, with or without slack.

With slack λ the readout is (a, e) on the features Z̃ = [Z, √λ I], the residual r = Za + √λ e − y, and the
Gauss-Newton step is that of least norm with Z δa + √λ δe = r. From e = 0, a = 0 it ends at the ridge
regression of y on Z. Predictions use Z a alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

_SQUARES = 200  # an exponent beyond which Z is scaled, so that ZZᵀ neither overflows nor is lost


@dataclass
class Readout:
    """The state (a, e) of a readout during training. `a` is (m, k), `e` is (N, k) and starts at 0."""

    a: Tensor  # (m, k)
    y: Tensor  # (N, k)
    slack: float = 0.0
    kind: Literal["gradient", "gauss-newton"] = "gradient"
    e: Tensor = field(init=False)  # (N, k)

    def __post_init__(self) -> None:
        self.e = torch.zeros_like(self.y)

    @property
    def root(self) -> float:
        """√λ."""
        return math.sqrt(self.slack)

    def residual(self, Z: Tensor) -> Tensor:
        """r = Za + √λ e − y, (N, k)."""
        r = Z @ self.a - self.y
        return r + self.root * self.e if self.slack else r

    def stepped(self, Z: Tensor, r: Tensor, eta: float) -> tuple[Tensor, Tensor]:
        """(a, e) after a step of size η at residual r; nothing is changed in place."""
        if self.kind == "gradient":
            return self.a - eta * (Z.T @ r), self.e - eta * self.root * r
        da, de = gauss_newton(Z, r, self.slack)
        return self.a - eta * da, self.e - eta * de


def gauss_newton(Z: Tensor, r: Tensor, slack: float = 0.0) -> tuple[Tensor, Tensor]:
    """δa (m, k) and δe (N, k) of least norm with Z δa + √λ δe = r; least squares where λ = 0 and N > m.

    N ≤ m:  δa = Zᵀw, δe = √λ w with (ZZᵀ + λI) w = r;   N > m:  (ZᵀZ + λI) δa = Zᵀr, δe = (r − Zδa)/√λ.
    By Cholesky, refined once; by an SVD where Z is too ill-conditioned for it.
    """
    peak = float(Z.abs().amax()) if Z.numel() else 0.0
    e = math.frexp(peak)[1] if math.isfinite(peak) else 0
    if not slack and abs(e) > _SQUARES:
        scale = 2.0 ** -max(-1000, min(1000, e))
        da, de = gauss_newton(Z * scale, r)
        return da * scale, de
    wide, root = len(Z) <= Z.shape[1], math.sqrt(slack)
    G = Z @ Z.T if wide else Z.T @ Z
    G.diagonal().add_(slack)
    factor, info = torch.linalg.cholesky_ex(G)
    if int(info) != 0:
        return _by_svd(Z, r, root)

    def solve(r: Tensor) -> tuple[Tensor, Tensor]:
        if wide:
            w = torch.cholesky_solve(r, factor)
            return Z.T @ w, root * w
        da = torch.cholesky_solve(Z.T @ r, factor)
        return da, (r - Z @ da) / root if slack else torch.zeros_like(r)

    da, de = solve(r)
    more_a, more_e = solve(r - Z @ da - root * de)
    return da + more_a, de + more_e


def _by_svd(Z: Tensor, r: Tensor, root: float) -> tuple[Tensor, Tensor]:
    U, s, Vt = torch.linalg.svd(Z, full_matrices=False)
    if root == 0 and not bool(s[-1] > 0):
        raise ValueError(
            "the Gauss-Newton readout needs features of full rank. Got σ_min(Z) = 0 instead: use slack > 0."
        )
    da = Vt.T @ ((s / (s**2 + root**2))[:, None] * (U.T @ r))
    return da, (r - Z @ da) / root if root else torch.zeros_like(r)
