"""a ← a − η Zᵀ r, or a ← a − η Zᵀ(ZZᵀ)⁻¹ r: the readout's own step, with or without slack.

With slack λ the readout is (a, e) on the features [Z, √λ I], the residual r̃ = Za + √λ e − y, and the
Gauss-Newton step solves (ZZᵀ + λI) w = r̃. From e = 0, a = 0 it ends at the ridge regression of y on Z.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor


@dataclass
class Readout:
    """The state (a, e) of a readout during training. `a` is (m, k), `e` is (N, k)."""

    a: Tensor  # (m, k)
    y: Tensor  # (N, k)
    slack: float = 0.0
    kind: Literal["gradient", "gauss-newton"] = "gradient"
    e: Tensor = field(init=False)  # (N, k)

    def __post_init__(self) -> None:
        self.e = torch.zeros_like(self.y)

    @property
    def root(self) -> float:
        return math.sqrt(self.slack)

    def residual(self, Z: Tensor) -> Tensor:
        """r̃ = Za + √λ e − y, (N, k)."""
        r = Z @ self.a - self.y
        return r + self.root * self.e if self.slack else r

    def stepped(self, Z: Tensor, r: Tensor, eta: float) -> tuple[Tensor, Tensor]:
        """(a, e) after a step of size η at residual r; nothing is changed in place."""
        if self.kind == "gradient":
            return self.a - eta * (Z.T @ r), self.e - eta * self.root * r
        w, move = gauss_newton(Z, r, self.slack)
        return self.a - eta * move, self.e - eta * self.root * w


def gauss_newton(Z: Tensor, r: Tensor, slack: float = 0.0) -> tuple[Tensor, Tensor]:
    """w with (ZZᵀ + λI) w = r, and Zᵀw, the move of the readout. Refined once in the working precision."""
    N, m = Z.shape
    if N <= m or slack == 0:
        G = Z @ Z.T
        G.diagonal().add_(slack)
        factor = _cholesky(G, "the rows of Z are dependent: use slack > 0")
        w = torch.cholesky_solve(r, factor)
        w = w + torch.cholesky_solve(r - (Z @ (Z.T @ w) + slack * w), factor)
        return w, Z.T @ w
    C = Z.T @ Z  # (m, m): Zᵀ(ZZᵀ + λI)⁻¹ = (ZᵀZ + λI)⁻¹Zᵀ
    C.diagonal().add_(slack)
    factor = _cholesky(C, "ZᵀZ + λI is singular in floating point: use a larger slack")
    t = torch.cholesky_solve(Z.T @ r, factor)
    w = (r - Z @ t) / slack
    gap = r - (Z @ (Z.T @ w) + slack * w)
    again = torch.cholesky_solve(Z.T @ gap, factor)
    w = w + (gap - Z @ again) / slack
    return w, Z.T @ w


def _cholesky(G: Tensor, otherwise: str) -> Tensor:
    factor, info = torch.linalg.cholesky_ex(G)
    if int(info) != 0:
        raise ValueError(
            f"the Gauss-Newton readout needs ZZᵀ + λI to be positive definite. Here {otherwise}."
        )
    return factor
