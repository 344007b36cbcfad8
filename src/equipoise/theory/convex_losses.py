"""ℓ(q, y), convex and β-smooth in the outputs q of a row: values and slopes with the rounding of each.

| name | ℓ(q, y) | β |
| --- | --- | --- |
| half_square, square | ½‖q − y‖², ‖q − y‖² | 1, 2 |
| cross_entropy | Σ_c y_c (log Σ_j e^{q_j} − q_c), y a class or probabilities | ½ |
| logistic | Σ_c log(1 + e^{q_c}) − y_c q_c, y in [0, 1] | ¼ |
| smoothed_hinge | Σ_c max(0, 1 − y_c q_c)², y = ±1 | 2 |

exp, log and log1p of torch are trusted to `LIBM_ULPS` units in the last place, as those of the C library are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..checks import one_of
from ..linalg import gamma
from ..linalg.rounding import LIBM_ULPS
from ..losses import LOSSES

TRUSTED = f"torch's exp, log and log1p are right to {LIBM_ULPS} units in the last place"
_UNITS = 8 * LIBM_ULPS + 16  # roundings of one entry of a loss, exp and log included


@dataclass(frozen=True)
class LossRows:
    """ℓ and ∂ℓ/∂q of n rows as computed at the computed q, and bounds of their rounding, row by row."""

    value: Tensor  # (n,)
    slope: Tensor  # (n, k)
    value_error: Tensor  # (n,)
    slope_error: Tensor  # (n,), of the norm of a row


@dataclass(frozen=True)
class ConvexLoss(ABC):
    """One of the losses of the table, in float64."""

    name: ClassVar[str]
    smoothness: ClassVar[float]  # β ≥ ‖∂²ℓ/∂q²‖

    @abstractmethod
    def rows(self, q: Tensor, y: Tensor) -> LossRows:
        """ℓ and its slope at q (n, k), with their rounding."""

    @abstractmethod
    def curvature(self, q: Tensor, y: Tensor) -> Tensor:
        """What determines ℓ''(q), row by row, (n, k): here its diagonal. No proof relies on it."""

    def curved(self, at: Tensor, d: Tensor) -> Tensor:
        """ℓ''(q) d, row by row, (n, k), from the curvature at q."""
        return at * d

    def diagonal(self, at: Tensor) -> Tensor:
        """The diagonal of ℓ'', from the curvature."""
        return at

    def targets(self, y: Tensor, outputs: int) -> Tensor:
        """y of n rows as (n, k) in float64; a ValueError where it does not fit the outputs or the loss."""
        y = y.detach()
        wide = y.reshape(len(y), -1)
        if y.is_complex() or y.ndim > 2 or wide.shape[1] != outputs:
            raise ValueError(
                f"y must be ({len(y)}, {outputs}) like the network's outputs. Got {tuple(y.shape)} instead."
            )
        LOSSES[self.name]().check(wide.double(), wide.double())
        return wide.double()


@dataclass(frozen=True)
class HalfSquared(ConvexLoss):
    """½‖q − y‖²."""

    name = "half_square"
    smoothness = 1.0

    def rows(self, q: Tensor, y: Tensor) -> LossRows:
        """The difference is rounded once, its square and sum a few times."""
        r = q - y
        value = self.smoothness / 2 * r.square().sum(dim=1)
        slope = self.smoothness * r
        units = gamma(q.shape[1] + 8)
        return LossRows(value, slope, units * value + 1e-300, units * slope.norm(dim=1) + 1e-300)

    def curvature(self, q: Tensor, y: Tensor) -> Tensor:
        """β."""
        return torch.full_like(q, self.smoothness)


@dataclass(frozen=True)
class Squared(HalfSquared):
    """‖q − y‖²."""

    name = "square"
    smoothness = 2.0


@dataclass(frozen=True)
class SoftmaxCrossEntropy(ConvexLoss):
    """Σ_c y_c (log Σ_j e^{q_j} − q_c), of probabilities y; their sum is at most 1 + 2⁻²⁰, and so β = ½."""

    name = "cross_entropy"
    smoothness = 0.5 * (1 + 2.0**-20)

    def rows(self, q: Tensor, y: Tensor) -> LossRows:
        """With d = q − max q rounded once: e^d is off by |d|u relatively, and |d|e^d < 1."""
        top = q.amax(dim=1, keepdim=True)
        d = q - top
        powers = d.exp()
        total = powers.sum(dim=1, keepdim=True)
        log_total = total.log()
        value = (y * (log_total - d)).sum(dim=1)
        slope = powers / total * y.sum(dim=1, keepdim=True) - y
        k = q.shape[1]
        units = gamma(4 * k + _UNITS)
        sizes = 1 + log_total[:, 0] + (y * d.abs()).sum(dim=1) * (1 + 2.0**-20)
        return LossRows(value, slope, units * sizes, torch.full_like(value, units * 2 * (k + 1)))

    def curvature(self, q: Tensor, y: Tensor) -> Tensor:
        """p, from which ℓ'' = diag p − ppᵀ, with the diagonal p(1 − p)."""
        return torch.softmax(q, dim=1)

    def curved(self, at: Tensor, d: Tensor) -> Tensor:
        """p∘d − p(p·d)."""
        return at * (d - (at * d).sum(dim=1, keepdim=True))

    def diagonal(self, at: Tensor) -> Tensor:
        """p(1 − p)."""
        return at * (1 - at)

    def targets(self, y: Tensor, outputs: int) -> Tensor:
        """Classes (n,) as rows of the identity; probabilities as they are."""
        y = y.detach()
        if not y.is_floating_point():
            if y.shape != y.shape[:1] or (len(y) and not 0 <= int(y.min()) <= int(y.max()) < outputs):
                raise ValueError(
                    f"y must be classes ({len(y)},) in 0…{outputs - 1}, one of the network's outputs. "
                    f"Got shape {tuple(y.shape)}, {int(y.min())} to {int(y.max())} instead."
                )
            return torch.nn.functional.one_hot(y.long(), outputs).double()
        if tuple(y.shape) != (len(y), outputs):
            raise ValueError(
                f"y must be classes ({len(y)},) of integers, or probabilities ({len(y)}, {outputs}). "
                f"Got {y.dtype} of {tuple(y.shape)} instead."
            )
        y = y.double()
        if not bool(((y >= 0).all(dim=1) & ((y.sum(dim=1) - 1).abs() < 2.0**-21)).all()):
            raise ValueError("probabilities y must be ≥ 0 with the sum 1 in each row, to 2⁻²¹.")
        return y


@dataclass(frozen=True)
class LogisticRows(ConvexLoss):
    """Σ_c log(1 + e^{q_c}) − y_c q_c."""

    name = "logistic"
    smoothness = 0.25

    def rows(self, q: Tensor, y: Tensor) -> LossRows:
        """log(1 + e^q) as max(q, 0) + log1p(e^{−|q|})."""
        softplus = q.clamp_min(0) + (-q.abs()).exp().log1p()
        value = (softplus - y * q).sum(dim=1)
        k = q.shape[1]
        units = gamma(k + _UNITS)
        sizes = k + (softplus + (y * q).abs()).sum(dim=1)
        return LossRows(value, torch.sigmoid(q) - y, units * sizes, torch.full_like(value, units * 2 * k))

    def curvature(self, q: Tensor, y: Tensor) -> Tensor:
        """p(1 − p)."""
        return torch.sigmoid(q) * torch.sigmoid(-q)


@dataclass(frozen=True)
class HingeRows(ConvexLoss):
    """Σ_c max(0, 1 − y_c q_c)²."""

    name = "smoothed_hinge"
    smoothness = 2.0

    def rows(self, q: Tensor, y: Tensor) -> LossRows:
        """y = ±1 is exact, and 1 − yq is rounded once."""
        short = (1 - y * q).clamp_min(0)
        value = short.square().sum(dim=1)
        units = gamma(q.shape[1] + 8)
        return LossRows(value, -2 * y * short, units * value, units * 2 * short.norm(dim=1))

    def curvature(self, q: Tensor, y: Tensor) -> Tensor:
        """2 where y q < 1, and 0 elsewhere."""
        return torch.where(y * q < 1, 2.0, 0.0)


CONVEX: dict[str, ConvexLoss] = {
    loss.name: loss for loss in (HalfSquared(), Squared(), SoftmaxCrossEntropy(), LogisticRows(), HingeRows())
}


def convex_loss(name: str) -> ConvexLoss:
    """The loss of that name; "hinge" is the smoothed one."""
    name = "smoothed_hinge" if name == "hinge" else name
    one_of("loss", name, CONVEX)
    return CONVEX[name]
