"""F(h, a) = Σ_i w_i ℓ(φ_i(h) a, y_i) + (λ/2)‖a‖² + (κ/2)‖h‖²: enclosed in one pass over blocks of rows.

With ‖Φ − Φ*‖_F ≤ e in a block, the outputs there are off by ε ≥ ‖Φ*a − fl(Φa)‖_F, ε = ‖a‖e + rounding, and

    |Σ w_i(ℓ(q*_i) − ℓ(q_i))| ≤ ‖(w_i‖ℓ'_i‖)_i‖ ε + (β/2) max w ε²,
    ‖∇_a − ∇̂_a‖ ≤ e(‖(w_i‖ℓ'_i‖)_i‖ + max w βε) + βε‖(w_i φ_i)_i‖_F + rounding,

by the convexity and smoothness of ℓ and the inequality of Cauchy and Schwarz. F(h, ·) is λ-strongly convex,
so that F(h, a) − min F(h, ·) ≤ ‖∇_a F(h, a)‖²/(2λ) for every a, however it was found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..linalg import Interval, frobenius, gamma, norm_upper
from .certificate import fingerprint
from .convex_losses import ConvexLoss
from .enclosure import product_rounding
from .read_features import FeatureBlock, LinearReadout, ReadFeatures
from .shards import Shard, enclosed_total, ranks, require_equal, total, whole

BLOCK = 2048  # rows that are solved for at once


@dataclass(frozen=True)
class Terms:
    """What F is made of: ℓ, λ, κ and w."""

    loss: ConvexLoss
    ridge: float
    decay: float = 0.0
    weights: Tensor | None = None  # (N,) ≥ 0 in float64; None for ones


@dataclass(frozen=True)
class EnclosedLoss:
    """F and ∇_a F at one readout, with bounds of their errors."""

    F: Interval
    data: Interval  # Σ w ℓ alone
    gradient: Tensor | None = None  # (p, k)
    slack: Interval = field(default_factory=lambda: Interval(0.0))  # ≥ ‖∇_a F − gradient‖

    def gap(self, ridge: float) -> Interval:
        """An interval that holds F(h, a) − min F(h, ·)."""
        assert self.gradient is not None
        size = frobenius(self.gradient) + self.slack
        return Interval(0.0, (size**2 / (2 * Interval(ridge))).hi)


class SampleRows:
    """X, y and w of N samples, read in blocks. With a Shard, those of this rank; sums are over all ranks."""

    def __init__(self, X: Any, y: Any, terms: Terms, outputs: int) -> None:
        if len(X) != len(y) or len(X) == 0:
            raise ValueError(
                f"X and y must have the same number of rows, and at least one. Got {len(X)} and {len(y)}."
            )
        self.X, self.y, self.terms, self.outputs = X, y, terms, outputs
        self.shared, self.whole = isinstance(X, Shard), whole(X)
        self.first = X.first if isinstance(X, Shard) else 0
        if terms.weights is not None and tuple(terms.weights.shape) != (len(X),):
            raise ValueError(f"weights must be ({len(X)},). Got {tuple(terms.weights.shape)} instead.")

    def __len__(self) -> int:
        return len(self.X)

    def total(self, *parts: Tensor) -> list[Tensor]:
        """Sums over all rows, from sums over the rows of this rank."""
        return total(*parts) if self.shared else list(parts)

    def weight(self) -> float:
        """Σ w over all rows."""
        w = self.terms.weights
        return float(self.whole) if w is None else float(self.total(w.sum())[0])

    def slices(self, size: int = BLOCK) -> list[slice]:
        """The blocks."""
        return [slice(i, min(i + size, len(self))) for i in range(0, len(self), size)]

    def targets(self, rows: slice, device: torch.device) -> tuple[Tensor, Tensor]:
        """y (n, k) and w (n,) of a block in float64."""
        y = self.terms.loss.targets(torch.as_tensor(self.y[rows]), self.outputs).to(device)
        w = self.terms.weights
        return y, y.new_ones(len(y)) if w is None else w[rows].to(y)


class Objective:
    """F of one model at its present weights, on rows."""

    def __init__(self, reads: ReadFeatures, rows: SampleRows) -> None:
        self.reads, self.rows, self.terms = reads, rows, rows.terms
        self.readout: LinearReadout = reads.readout_of(reads.model)
        self.work = 0  # evaluations of a row so far
        if rows.shared:  # otherwise the sum over ranks would be about no single network
            require_equal("weights", fingerprint(reads.model)["weights"])

    @cached_property
    def decay(self) -> Interval:
        """(κ/2)‖h‖²."""
        total, kappa = Interval(0.0), Interval(self.terms.decay) / 2
        if self.terms.decay:
            read = self.readout.parameters(self.reads.model)
            for name, p in self.reads.model.named_parameters():
                if name not in read:
                    total = total + frobenius(p.detach()) ** 2
        return kappa * total

    def blocks(self, rtol: float, starts: Tensor | None = None) -> Iterator[tuple[slice, FeatureBlock]]:
        """Features of every block, with a column of ones where the readout has a bias."""
        for rows in self.rows.slices():
            X = torch.as_tensor(self.rows.X[rows])
            found = self.reads.block(X, rtol, None if starts is None else starts[rows])
            self.work += found.work
            if self.readout.bias is not None:
                Phi = torch.cat([found.Phi, found.Phi.new_ones(len(found.Phi), 1)], dim=1)
                found = FeatureBlock(Phi, found.error, found.state, found.work)
            yield rows, found

    def enclosed(
        self,
        blocks: Iterator[tuple[slice, FeatureBlock]],
        readouts: Sequence[Tensor],
        gradient: bool = False,
    ) -> list[EnclosedLoss]:
        """F at these readouts, from one sweep over the blocks."""
        sums = [_Sum(self.terms.loss, a, gradient) for a in readouts]
        for rows, block in blocks:
            y, w = self.rows.targets(rows, block.Phi.device)
            for one in sums:
                one.add(block, y, w)
        return [self._whole(one) for one in sums]

    def at_zero(self) -> Interval:
        """F(h, 0), which depends on y only, apart from the decay."""
        found = Interval(0.0)
        for rows in self.rows.slices(BLOCK * 8):
            y, w = self.rows.targets(rows, torch.device("cpu"))
            at = self.terms.loss.rows(torch.zeros_like(y), y)
            found = found + _weighed(w, at.value, at.value_error)
        (found,) = enclosed_total(found) if self.rows.shared else (found,)
        return found + self.decay

    def _whole(self, one: _Sum) -> EnclosedLoss:
        ridge = Interval(self.terms.ridge)
        if self.rows.shared:
            one.share()
        F = one.value + ridge / 2 * one.size**2 + self.decay
        F = Interval(max(F.lo, 0.0), max(F.hi, 0.0))
        if one.gradient is None:
            return EnclosedLoss(F, one.value)
        whole = one.gradient + self.terms.ridge * one.a
        rounding = gamma(4) * (frobenius(whole) + frobenius(one.gradient) + ridge * one.size)
        return EnclosedLoss(F, one.value, whole, one.slack + rounding)


class _Sum:
    """Σ w ℓ and its gradient in a, block by block."""

    def __init__(self, loss: ConvexLoss, a: Tensor, gradient: bool) -> None:
        self.loss, self.a, self.size, self.norm = loss, a, frobenius(a), Interval(norm_upper(a))
        self.value = self.slack = Interval(0.0)
        self.gradient = torch.zeros_like(a) if gradient else None

    def add(self, block: FeatureBlock, y: Tensor, w: Tensor) -> None:
        Phi, e = block.Phi, Interval(0.0, block.error)
        a = self.a.to(Phi.device)
        off = self.norm * e + product_rounding(Phi, a)  # ≥ ‖Φ*a − fl(Φa)‖_F
        at = self.loss.rows(Phi @ a, y)
        pulled = w[:, None] * at.slope
        beta, heaviest = Interval(self.loss.smoothness), Interval(float(w.max()))
        lost = Interval(0.0, pulled.numel() * 2.0**-1074)  # where products are subnormal
        steep = (frobenius(pulled) + frobenius(w * at.slope_error)) * (1 + gamma(4)) + lost
        moved = steep * off + beta / 2 * heaviest * off**2
        self.value = self.value + _weighed(w, at.value, at.value_error) + Interval.within(moved.hi)
        if self.gradient is None:
            return
        part = Phi.T @ pulled
        size = frobenius(w[:, None] * Phi) * (1 + gamma(4)) + Phi.numel() * 2.0**-1074
        slack = e * (steep + heaviest * beta * off) + beta * off * size
        slack += size * frobenius(at.slope_error) + product_rounding(Phi.T, pulled)
        slack += frobenius(Phi) * (gamma(4) * frobenius(pulled) + lost)  # w ℓ' was rounded
        self.gradient += part.to(self.gradient.device)
        self.slack = self.slack + slack + gamma(2) * frobenius(self.gradient)

    def share(self) -> None:
        """The sums of this rank become those of all."""
        own = Interval(0.0) if self.gradient is None else frobenius(self.gradient)
        self.value, self.slack, sizes = enclosed_total(self.value, self.slack, own)
        if self.gradient is not None:
            (self.gradient,) = total(self.gradient)
            self.slack = self.slack + gamma(2 * ranks()) * sizes  # in whatever order the ranks are added


def _weighed(w: Tensor, value: Tensor, error: Tensor) -> Interval:
    """Σ w ℓ of a block, with the rounding of ℓ and of the sum."""
    total, sizes = float((w * value).sum()), float((w * (value.abs() + error)).sum())
    lost = float((w * error).sum())
    if not (math.isfinite(total) and math.isfinite(sizes)):
        return Interval(-math.inf, math.inf)
    n = gamma(len(w) + 8)
    under = 4 * len(w) * 2.0**-1074  # what products lose where they are subnormal
    return Interval(total) + Interval.within((Interval(lost) * (1 + n) + n * Interval(sizes) + under).hi)
