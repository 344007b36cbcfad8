"""‖f(z) − z‖ of every row, and what its course says: on its way, there, stalled, diverged or not a number."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .solution import Status, Stop

# A solver with a steady rate is checked when a check could pass, but never less often than this.
_LONGEST_WAIT = 8
# Entries of a temporary that is better made in pieces: half a second-level cache.
_BLOCK = 2**16


@dataclass
class Progress:
    """What is known of each row's residuals so far: enough to tell stalled from diverged from on its way."""

    first: Tensor  # (n,) first residual, or the tolerance where that is larger
    asked: Tensor  # (n,) first tolerance
    best: Tensor  # (n,) lowest residual that counted as progress
    best_at: Tensor  # (n,) step of it
    done: Tensor  # (n,)
    excess: float = math.inf  # worst residual over tolerance at the last check
    checked: int = 0
    rate: float = 1.0  # measured fall of the excess, a step

    @classmethod
    def start(cls, z: Tensor, rate: float) -> Progress:
        inf = torch.full((z.shape[0],), math.inf, dtype=norm_dtype(z), device=z.device)
        zero = torch.zeros(z.shape[0], dtype=torch.int64, device=z.device)
        return cls(inf, inf.clone(), inf.clone(), zero, zero.bool(), rate=rate)

    def take(self, rows: Tensor) -> Progress:
        return replace(
            self,
            first=self.first[rows],
            asked=self.asked[rows],
            best=self.best[rows],
            best_at=self.best_at[rows],
            done=self.done[rows],
        )

    def judge(
        self,
        k: int,
        z: Tensor,
        fz: Tensor,
        residual: Tensor,
        tolerance: Tensor,
        stop: Stop,
        ahead: bool = False,
    ) -> Tensor:
        """The Status of each row, −1 where it is on its way; `ahead`, that of its next step at this rate."""
        there = residual * (min(self.rate, 1.0) if ahead else 1.0) <= tolerance
        if k == 0:
            self.first, self.asked = torch.maximum(residual, tolerance), tolerance
        better = residual < 0.99 * self.best
        self.best = torch.where(better, residual, self.best)
        self.best_at = torch.where(better, k, self.best_at)

        idle, last = self.best_at <= k - stop.patience, k == stop.max_steps
        far = residual > 10 * self.first
        diverged = (residual > stop.growth * self.first) | (far if last else far & idle)
        status = torch.where(idle, int(Status.stalled), int(Status.max_steps) if last else -1)
        status = torch.where(diverged, int(Status.diverged), status)
        status = torch.where(there, int(Status.converged), status).to(torch.int8)
        # A state that runs away meets a relative tolerance at last, its residual as large as ever.
        runaway = there & (residual > 0.5 * self.first) & (tolerance > 2 * self.asked)
        status = torch.where(runaway, int(Status.diverged), status).to(torch.int8)
        broken = ~torch.isfinite(residual)
        if bool(broken.any()):
            bad = ~(torch.isfinite(z).all(dim=1) & torch.isfinite(fz).all(dim=1))
            # Finite values whose norm overflows: at the start they have grown from nothing.
            status[broken] = int(Status.diverged if k else Status.nonfinite)
            status[bad] = int(Status.nonfinite)

        worst = float((residual / tolerance).masked_fill_((status >= 0) | self.done, 0.0).max())
        if worst > 0 and 0 < self.excess < math.inf and k > self.checked:
            self.rate = (worst / self.excess) ** (1 / (k - self.checked))
        self.excess, self.checked = worst, k
        return status

    def wait(self, costly: bool) -> int:
        """Steps until a check could pass at the measured rate; 1 while there is no rate to trust.

        A costly check, one that takes an evaluation of its own, waits until it should pass.
        """
        if not (0 < self.rate < 1 and 1 < self.excess < math.inf):
            return 1
        predicted = math.log(self.excess) / -math.log(self.rate)
        return max(1, min(_LONGEST_WAIT, math.ceil(predicted) if costly else math.floor(predicted)))


def norm_dtype(z: Tensor) -> torch.dtype:
    return torch.float32 if z.dtype in (torch.float16, torch.bfloat16) else z.dtype


def row_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖a − b‖ of each row, a few rows at a time: their difference then stays in the cache."""
    some = max(1, _BLOCK // a.shape[1])
    if some >= len(a):
        return row_norms(a - b)
    return torch.cat([row_norms(x - y) for x, y in zip(a.split(some), b.split(some), strict=True)])


def row_norms(z: Tensor) -> Tensor:
    return torch.linalg.vector_norm(z, dim=1, dtype=norm_dtype(z))
