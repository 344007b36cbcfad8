"""Z ← σ(Z Wᵀ + u) until a batch as a whole has settled, and Λ ← D ∘ (G + Λ W) likewise.

A step of training asks for less than a solver gives: here no row is judged alone, none is dropped, and
nothing is recorded of each. On a batch of a table all that takes most of the time of a step. What a
certificate says rests on solves at its checkpoints, and not on these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .warm_start import WarmStart

if TYPE_CHECKING:
    from .training_run import TrainingRun

_BETWEEN = 3  # iterations from one check of the residual to the next
_MOST = 120  # after which plain iteration is given up


class LooseSolves:
    """The outputs of an affine family on batches of its training set, differentiable once.

    `rtol` is ‖ΔZ‖/‖Z‖ of the last iteration, over the batch. `steps` and `work` are those of the last batch:
    iterations forward and back, and evaluations of a row.
    """

    def __init__(self, model: Any, rtol: float, warm: WarmStart | None) -> None:
        self.model, self.rtol, self.warm = model, rtol, warm
        self.steps, self.work = {"forward": 0, "adjoint": 0}, 0

    @staticmethod
    def of(run: TrainingRun) -> LooseSolves | None:
        """The loose solves of a run whose trainer asks for them, if W can be scaled to ‖W‖ < 1; else None.

        With several ranks there are none: each would stop at another iteration, so that the result would
        depend on their number.
        """
        trainer, warm = run.trainer, run.warm
        asked = trainer.loose and run.ranks == 1 and getattr(run.model, "scaled_name", None) is not None
        if not asked or trainer.stop is None or trainer.stop.rtol is None:
            return None
        return LooseSolves(run.model, trainer.stop.rtol, None if warm is None else warm.states["network"])

    def outputs(self, x: Tensor, rows: Tensor) -> Tensor | None:
        """ŷ; None if plain iteration does not settle, and a solver has to find out why."""
        model = self.model
        self.steps, self.work = {"forward": 0, "adjoint": 0}, 0
        W, u = model.weight(), model.injection(x)
        start = None if self.warm is None else self.warm.start(rows)
        with torch.no_grad():
            z = start if isinstance(start, Tensor) else model.activation(u)
            found = self._settled("forward", z, lambda z: model.activation(torch.addmm(u, z, W.T)))
        if found is None:
            return None
        if self.warm is not None:
            self.warm.update(rows, found)
        return model.readout(_Settled.apply(W, u, found, self))

    def adjoint(self, W: Tensor, mask: Tensor, g: Tensor) -> Tensor:
        """Λ, or NaN if it does not settle."""
        found = self._settled("adjoint", mask * g, lambda v: torch.addmm(g, v, W).mul_(mask))
        return torch.full_like(g, torch.nan) if found is None else found

    def _settled(self, which: str, z: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor | None:
        for k in range(1, _MOST + 1):
            last, z = z, f(z)
            if k % _BETWEEN == 0 and float((z - last).norm()) <= self.rtol * float(z.norm()):
                self.steps[which] = k
                self.work += k * len(z)
                return z
        return None


class _Settled(torch.autograd.Function):
    """(W, u) ↦ Z, where Z is known."""

    @staticmethod
    def forward(ctx: Any, W: Tensor, u: Tensor, z: Tensor, by: LooseSolves) -> Tensor:
        ctx.save_for_backward(W, z, by.model.slope(torch.addmm(u, z, W.T)))
        ctx.by = by
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None]:
        W, z, mask = ctx.saved_tensors
        found = ctx.by.adjoint(W, mask, g)
        return found.T @ z, found, None, None
