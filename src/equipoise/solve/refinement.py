"""z ← σ(p + (z − y) Wᵀ), p = y Wᵀ + b: plain iteration about a point y, by products in a lower precision.

A relative error ε of a product costs ε‖z − y‖ here, and not ε‖z‖. So most steps of a solve can be taken with
half the digits at half the cost, about a point y whose own product p is recomputed in full precision when
that error would show. Nothing found here is trusted: it is the start of a solve in float64 that verifies
every row.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from .loop import RowsFound
from .norms import row_distances, row_norms
from .problem import AffineMap, Map
from .solution import Counts, Stop

# The share of ‖z − y‖ that remains as a residual when products are rounded to a dtype, in units of its eps.
_ROUNDED = 1 / 8
# The residual to aim at, as a share of the tolerance, since a forecast is a little wrong.
_AIM = 0.8
# If float64 finishes the work, float32 is asked for this many times the residual that it could reach.
_FAR = 5.0
# The most steps between two checks of the residual, and the checks without progress before giving up.
_LONGEST_WAIT, _PATIENCE = 8, 4
# Rows beyond _BEHIND times the median residual are solved on their own if they are at most _FEW of all.
_BEHIND, _FEW = 10.0, 0.25


def refined(f: Map, z: Tensor, stop: Stop, cold: bool) -> RowsFound:
    """What cheap products reach from z for a float64 AffineMap; `cold` says that z is σ(b), a step from 0."""
    assert f.affine is not None
    assert stop.rtol is not None
    single, reach, aim = torch.float32, Stop.reach(torch.float32), _AIM * stop.rtol
    half = torch.bfloat16 if _multiplies_halves(z.device) else single
    near = _Approach(f.affine.to(single), z.to(single), half, f.counts)
    # If the tolerance is beyond float32, float64 follows, and float32 is not asked for its last digits.
    near.run(replace(stop, rtol=max(aim, reach) if stop.rtol >= reach else _FAR * reach), cold)
    value, taken, rate = near.answer.double(), near.taken, near.rate
    if stop.rtol < reach and near.falling:
        last = _Approach(f.affine, value, half, f.counts, near.rate)
        last.run(replace(stop, rtol=aim))
        value, taken, rate = last.answer, taken + last.taken, last.rate
    lost = near.grown | ~torch.isfinite(value.sum(dim=1))
    out = RowsFound.unsolved(z)
    out.value = torch.where(lost[:, None], z, value) if bool(lost.any()) else value
    out.steps += taken
    out.rate = rate
    return out


class _Approach:
    """Steps of z ↦ σ(W z + b) with iterates in the dtype of `g` and products in that dtype or in `low`."""

    def __init__(self, g: AffineMap, z: Tensor, low: torch.dtype, counts: Counts, rate: float = 1.0) -> None:
        self.g, self.z, self.answer, self.counts, self.rate = g, z, z, counts, rate
        self.rows = torch.arange(len(z), device=z.device)
        self.low = None if low == z.dtype else low
        self.y: Tensor | None = None  # the point about which products are taken; None is y = 0, with p = b
        self.p = g.bias
        self.taken, self.falling = 0, True
        self.grown = torch.zeros(len(z), dtype=torch.bool, device=z.device)

    def run(self, stop: Stop, cold: bool = False) -> None:
        """Take steps until the next iterate should meet the tolerance, or residuals fall no more."""
        assert stop.rtol is not None
        rounding = 0.0 if self.low is None else _ROUNDED * torch.finfo(self.low).eps
        about = cold and self.low is not None  # whether the step at hand is one about y
        left, before, best, idle, looked, due = 1 / stop.rtol, math.inf, math.inf, 0, 0, 1
        tiny = torch.finfo(torch.float32).tiny
        first: Tensor | None = None
        for k in range(1, stop.max_steps + 1):
            new, self.taken = self._step(about), k
            if about and k < due:
                self.z = new
                continue
            excess = self._excess(new, stop)  # (n,)
            worst, self.z = float(excess.max()), new
            first = excess if first is None else first
            if before < math.inf and (about or self.low is None):  # a full step after rounded ones: no rate
                self.rate = min((worst / before) ** (1 / (k - looked)), 1.0)
            before, looked = max(worst, tiny), k
            idle, best = (0 if worst < 0.99 * best else idle + 1), min(best, worst)
            if idle >= _PATIENCE or not worst < math.inf:
                self.falling = False
                if len(excess) == len(first):
                    self.grown = ~(excess <= first)
                break
            if not about:
                left = worst  # the first step from y tells how far y is off
            # Forecasts of the next residual, which is not computed: the way from y is a geometric sum.
            noise, ahead = rounding * left / max(1 - self.rate, 0.1), worst * self.rate
            if ahead + about * noise <= 1:
                break
            if not about:
                worst = left = before = self._part(excess, stop)
                ahead = worst * self.rate
            about = self.low is not None and (not about or ahead > noise)
            due = k + self._wait(ahead, max(noise, 1.0))
        self._put()

    def _step(self, about: bool) -> Tensor:
        """σ(W z + b), by a full product or by a rounded one about y."""
        g, z = self.g, self.z
        self.counts.evaluations += 1
        self.counts.row_evaluations += len(z)
        if not about:
            self.p, self.y = g.preactivation(z), z
            return g.activation(self.p) if self.low is not None else g.activation.overwrite(self.p)
        assert self.low is not None
        moved = z.to(self.low) if self.y is None else _difference(z, self.y, self.low)
        # A sum of two dtypes takes several times as long as a cast and a sum in one dtype.
        return g.activation.overwrite((moved @ _cast(g, self.low).T).to(z.dtype).add_(self.p))

    def _excess(self, new: Tensor, stop: Stop) -> Tensor:
        """The length of the step divided by the tolerance, in every row."""
        tiny = torch.finfo(new.dtype).tiny
        return row_distances(new, self.z) / stop.tolerance(row_norms(new)).clamp_min(tiny)

    def _wait(self, ahead: float, goal: float) -> int:
        """Steps until a check of the residual could end these steps, at the present rate."""
        if not 0 < self.rate < 1 or ahead <= goal:
            return 1
        return max(1, min(_LONGEST_WAIT, 1 + math.floor(math.log(ahead / goal) / -math.log(self.rate))))

    def _part(self, excess: Tensor, stop: Stop) -> float:
        """Drop the rows that have arrived, and a few that are far behind after solving them on their own.

        Returns the largest excess of the rows that go on.
        """
        there = excess * self.rate <= 1
        behind = excess > _BEHIND * excess.median()
        count = int(behind.sum())
        if 0 < count <= _FEW * len(excess) and self.low is not None:
            rows = torch.nonzero(behind).flatten()
            few = _Approach(self.g.take(rows), self.z[rows], self.low, self.counts, self.rate)
            few.run(stop)
            self.z = self.z.index_copy(0, rows, few.answer)
            there |= behind
        done = int(there.sum())
        if done == len(there) or (done < self.g.worth * len(there) and not count):
            return float(excess.max())
        self._put()
        keep = torch.nonzero(~there).flatten()
        self.rows, self.z, self.p, self.g = self.rows[keep], self.z[keep], self.p[keep], self.g.take(keep)
        self.y = None if self.y is None else self.y[keep]
        return float(excess[keep].max())

    def _put(self) -> None:
        if len(self.rows) == len(self.answer):
            self.answer = self.z
        else:
            self.answer = self.answer.index_copy(0, self.rows, self.z)


def _difference(z: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """z − y, rounded once, in one pass."""
    return torch.sub(z, y, out=torch.empty_like(z, dtype=dtype))


def _cast(g: AffineMap, dtype: torch.dtype) -> Tensor:
    """W in another dtype, kept for the next time."""
    key = ("weight", dtype)
    if key not in g.cache:
        g.cache[key] = g.weight.to(dtype)
    return g.cache[key]


def _multiplies_halves(device: torch.device) -> bool:
    """Whether products in bfloat16 are instructions of the processor, and so twice as fast as in float32."""
    known = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return (
        device.type == "cpu" and known is not None and torch.backends.mkldnn.is_available() and bool(known())
    )
