"""‖f(z) − z‖ of every row, and whether the row has converged, stalled, diverged or become not a number."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .norms import norm_dtype, row_norms
from .problem import AffineMap, Map
from .solution import SHARE, Status, Stop
from .solver import Solver

# A solver with a steady rate is checked when a check could pass, but never less often than this.
_LONGEST_WAIT = 8
# Early in a solve, when no row can have stalled, what counts as progress is noted every so many steps.
_NOTED = 4


@dataclass
class Progress:
    """The residuals of each row so far, from which one tells whether it stalled or diverged."""

    floor: Tensor  # (n,) the ‖f(z)‖ below which the tolerance does not fall any more
    first: Tensor  # (n,) first residual, or the tolerance where that is larger
    asked: Tensor  # (n,) first tolerance
    best: Tensor  # (n,) lowest residual that counted as progress
    best_at: Tensor  # (n,) step of it
    done: Tensor  # (n,)
    recent: Tensor | None = None  # (n,) lowest residual since progress was last noted
    start: Tensor | None = None  # (n,) ‖f(z)‖ at the start, while the size of f(0) is not known
    begun: Tensor | None = None  # (n,) the same at the user's start, where a solve goes on from another one
    excess: float = math.inf  # worst residual over tolerance at the last check
    checked: int = 0
    rate: float = 1.0  # measured factor of the excess in each step
    lowest: float = 0.0  # no more than the least of `first`
    noted: int = 0  # step at which progress was last noted
    least: float = math.inf  # lowest residual over tolerance of a row at work, at the last check
    fall: float = math.inf  # logarithm of the largest factor by which that fell in a step, if known

    @classmethod
    def begin(cls, f: Map, z: Tensor, rate: float, begun: Tensor | None = None) -> Progress:
        """Nothing known yet but the rate and the size at the user's start, where they are given."""
        inf = torch.full((z.shape[0],), math.inf, dtype=norm_dtype(z), device=z.device)
        zero = torch.zeros(z.shape[0], dtype=torch.int64, device=z.device)
        floor = torch.full_like(inf, torch.finfo(f.rounding or z.dtype).tiny)
        # Several may be one tensor: all but `done` are replaced, and never written into.
        return cls(floor, inf, inf, inf, zero, zero.bool(), rate=rate, begun=begun)

    def take(self, rows: Tensor) -> Progress:
        """What is known of some of the rows."""
        some: dict[str, Any] = {name: t[rows] for name, t in vars(self).items() if isinstance(t, Tensor)}
        return replace(self, **some)

    def tolerance(self, k: int, f: Map, z: Tensor, residual: Tensor, scale: Tensor, stop: Stop) -> Tensor:
        """The residual each row must reach, (n,).

        It is relative to ‖f(z)‖, but at least to a share of ‖f(0)‖, the size of the problem itself. ‖f(0)‖ is
        known for an AffineMap, and if the start is zero; otherwise it costs one evaluation, which is made
        only when the residual has become small beside the image of the start. If f(0) = 0, as for z ↦ z/2,
        the size of the image of the start takes its place, or that of the start.
        """
        if k == 0 and stop.atol is None:
            image = size_at(z, scale) if self.begun is None else self.begun
            if f.affine is not None:
                self._measure(_size(f.affine, image), image)
            elif not bool(z.any()):
                self._measure(scale, image)
            else:
                self.start = image
        tolerance = stop.tolerance(scale, self.floor)
        if self.start is not None:
            assert stop.rtol is not None
            small = (residual > tolerance) & (residual <= SHARE * stop.rtol * self.start) & ~self.done
            if bool(small.any()):
                self._measure(row_norms(f(torch.zeros_like(z))), self.start)
                self.start = None
                tolerance = stop.tolerance(scale, self.floor)
        return tolerance

    def _measure(self, size: Tensor, start: Tensor) -> None:
        size = torch.where((size > 0) & torch.isfinite(size), size, start)
        self.floor = torch.maximum(self.floor, (SHARE * size).masked_fill(~torch.isfinite(size), 0.0))

    def judge(
        self,
        k: int,
        z: Tensor,
        fz: Tensor,
        residual: Tensor,
        tolerance: Tensor,
        stop: Stop,
        ahead: bool = False,
    ) -> Tensor | None:
        """The Status of each row, −1 if it has not ended; with `ahead`, that of its next step at this rate.

        Early in a solve it returns None if no row has ended, which takes a fraction of the time to see.
        """
        share = min(self.rate, 1.0) if ahead else 1.0
        if k < min(stop.patience, stop.max_steps):  # too early for a row to stall
            least, worst = map(float, torch.aminmax(residual / tolerance))
            # Both are NaN where one entry is, and then nothing below holds.
            early = share * least > 1 and worst < math.inf
            if early and (k == 0 or float(residual.max()) <= stop.growth * self.lowest):
                if k == 0:  # no residual is below its tolerance
                    self.first, self.asked, self.best = residual, tolerance, residual
                    self.lowest = float(residual.min())
                elif k >= self.noted + _NOTED:
                    self._note(k, residual)
                else:
                    self.recent = residual if self.recent is None else torch.minimum(self.recent, residual)
                self._pace(k, least, worst)
                return None
        there = residual * share <= tolerance
        if k == 0:
            self.first, self.asked = torch.maximum(residual, tolerance), tolerance
            self.lowest = float(self.first.min())
        self._note(k, residual)
        idle, last = self.best_at <= k - stop.patience, k == stop.max_steps
        far = residual > 10 * self.first
        diverged = (residual > stop.growth * self.first) | (far if last else far & idle)
        status = torch.where(idle, int(Status.stalled), int(Status.max_steps) if last else -1)
        status = torch.where(diverged, int(Status.diverged), status)
        if bool(there.any()):
            # A state that runs away meets a relative tolerance in the end although its residual never fell.
            runaway = (residual > 0.5 * self.first) & (tolerance > 2 * self.asked)
            reached = torch.where(runaway, int(Status.diverged), int(Status.converged))
            status = torch.where(there, reached, status)
        status = status.to(torch.int8)
        broken = ~torch.isfinite(residual + tolerance)
        if bool(broken.any()):
            bad = ~(torch.isfinite(z).all(dim=1) & torch.isfinite(fz).all(dim=1))
            # Finite values whose norm overflows have diverged, except at the start, before any growth.
            status[broken] = int(Status.diverged if k else Status.nonfinite)
            status[bad] = int(Status.nonfinite)

        working = (residual / tolerance)[(status < 0) & ~self.done]
        self._pace(k, *map(float, torch.aminmax(working)) if len(working) else (0.0, 0.0))
        return status

    def _note(self, k: int, residual: Tensor) -> None:
        """Keep what counts as progress: a fall by 1 %."""
        if self.recent is not None:
            residual, self.recent = torch.minimum(residual, self.recent), None
        better = residual < 0.99 * self.best
        self.best = torch.where(better, residual, self.best)
        self.best_at = torch.where(better, k, self.best_at)
        self.noted = k

    def _pace(self, k: int, least: float, worst: float) -> None:
        """Measure how fast the lowest and the worst excess of a residual over its tolerance fall."""
        steps = k - self.checked
        if worst > 0 and 0 < self.excess < math.inf and steps > 0:
            self.rate = (worst / self.excess) ** (1 / steps)
        if 0 < least < math.inf and 0 < self.least < math.inf and steps > 0:
            fall = (math.log(self.least) - math.log(least)) / steps
            self.fall = fall if self.fall == math.inf else max(fall, self.fall)
        self.excess, self.least, self.checked = worst, least, k

    def left(self) -> float:
        """Steps until the last row meets its tolerance at the measured rate; infinite if there is none."""
        if not (0 < self.rate < 1 and 1 < self.excess < math.inf):
            return math.inf
        return math.log(self.excess) / -math.log(self.rate)

    def wait(self, solver: Solver) -> int:
        """Steps until a check could pass; 1 if nothing is known of that.

        A solver whose rate is steady is checked when the last row could pass, and one whose checks take an
        evaluation of their own, when it should. Any other solver is checked at every other step while even
        the first row is further off than residuals fall in a step (`steepest`), or have fallen in two.
        """
        if not solver.smooth:
            known = 1 < self.least < math.inf
            return 2 if known and math.log(self.least) > max(math.log(solver.steepest), 2 * self.fall) else 1
        predicted = self.left()
        if predicted == math.inf:
            return 1
        steps = math.floor(predicted) if solver.uses_value else math.ceil(predicted)
        return max(1, min(_LONGEST_WAIT, steps))


def size_at(z: Tensor, scale: Tensor) -> Tensor:
    """‖f(z)‖ of each row, which is `scale`, or ‖z‖ where that is 0."""
    return scale if bool((scale > 0).all()) else torch.where(scale > 0, scale, row_norms(z))


def _size(affine: AffineMap, image: Tensor) -> Tensor:
    """‖σ(b)‖ of each row; where that is 0, the smaller of ‖b‖ and `image`."""
    size = row_norms(affine.start())
    if bool((size > 0).all()):
        return size
    return torch.where(size > 0, size, torch.minimum(row_norms(affine.bias), image))
