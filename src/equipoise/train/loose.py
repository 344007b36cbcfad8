"""Z ← σ(Z Wᵀ + u) until a batch as a whole has settled, and Λ ← D ∘ (G + Λ W) likewise.

A step of training asks for less than a solver gives: here no row is judged alone, none is dropped, and
nothing is recorded of each. On a batch of a table all that takes most of the time of a step. What a
certificate says rests on solves at its checkpoints, and not on these. Ranks that share a batch look at all of
it together, so that they stop at the iteration at which one process would: a look sums two numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..solve import Stop, fixed_point
from ..theory.shards import ranks, total
from .warm_start import WarmStart

if TYPE_CHECKING:
    from .training_run import TrainingRun

_BETWEEN = 3  # iterations from one check of the residual to the next
_MOST = 120  # after which plain iteration is given up


class LooseSolves:
    """The outputs of an affine family, or of one of images, on batches of its training set.

    They are differentiable once. `rtol` is ‖ΔZ‖/‖Z‖ of the last iteration, over the batch. `steps` and `work`
    are those of the last batch: iterations forward and back (none where it did not settle), and evaluations
    of a row of this rank.
    """

    def __init__(self, model: Any, rtol: float, warm: WarmStart | None) -> None:
        self.model, self.rtol, self.warm = model, rtol, warm
        self.steps, self.work = {"forward": 0, "adjoint": 0}, 0

    @staticmethod
    def of(run: TrainingRun) -> LooseSolves | None:
        """The loose solves of a run whose trainer asks for them, if plain iteration is likely to settle.

        It does if W is scaled to ‖W‖ < 1, and mostly for the cells of images, which begin as contractions.
        """
        trainer, warm, model = run.trainer, run.warm, run.model
        known = _of_images(model) or getattr(model, "scaled_name", None) is not None
        asked = trainer.loose and known
        if not asked or trainer.stop is None or trainer.stop.rtol is None:
            return None
        return LooseSolves(run.model, trainer.stop.rtol, None if warm is None else warm.states["network"])

    def outputs(self, x: Tensor, rows: Tensor) -> Tensor | None:
        """ŷ; None if plain iteration does not settle, and a solver has to find out why.

        All ranks call it for the same batch, those too that have no row of it.
        """
        self.steps, self.work = {"forward": 0, "adjoint": 0}, 0
        found = (self._images if _of_images(self.model) else self._rows)(x, rows)
        if found is None:
            return None
        z, at = found
        if self.warm is not None:
            self.warm.put(rows, z)
        return self.model.readout(at)

    def _rows(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """Z of an affine family, and the same as a function of what it depends on."""
        model = self.model
        W, u = model.weight(), model.injection(x)
        with torch.no_grad():
            z = self._start(model.activation(u), rows)
            found = self._settled("forward", z, lambda z: model.activation(torch.addmm(u, z, W.T)))
        return None if found is None else (found, _Settled.apply(W, u, found, self))

    def _images(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """The same of images: one recorded step from z carries the gradient to all that the cell takes."""
        model = self.model
        f, c, shared = model.cell, model.injection(model._check_images(x)), model.shared()
        with torch.no_grad():
            z = self._start(c[0].new_zeros(len(x), *model.state), rows)
            found = self._settled("forward", z, lambda z: f(z, *c, *shared))
        if found is None:
            return None
        leaf = found.detach().requires_grad_()
        return found, _Stepped.apply(f(leaf, *c, *shared), leaf, self)

    def _start(self, cold: Tensor, rows: Tensor) -> Tensor:
        """The last state of each row; `cold` for a row that has none, whatever the others have."""
        return cold if self.warm is None else self.warm.or_cold(rows, cold)

    def adjoint(self, W: Tensor, mask: Tensor, g: Tensor) -> Tensor:
        """Λ, or NaN if it does not settle."""
        found = self._settled("adjoint", mask * g, lambda v: torch.addmm(g, v, W).mul_(mask))
        return torch.full_like(g, torch.nan) if found is None else found

    def pulled(self, image: Tensor, z: Tensor, g: Tensor) -> Tensor:
        """The v = g + v ∂f/∂z, as far as it settles; where it does not, by a solver."""

        def f(v: Tensor) -> Tensor:
            (moved,) = torch.autograd.grad(image, z, v, retain_graph=True)
            return g + moved

        found = self._settled("adjoint", g, f)
        if found is None and bool(torch.isfinite(g).all()):
            found = fixed_point(f, g, stop=Stop(rtol=self.rtol)).raise_if_failed().value  # type: ignore[assignment]
        return g if found is None else found

    def _settled(self, which: str, z: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor | None:
        for k in range(1, _MOST + 1):
            last, z = z, f(z)
            if k % _BETWEEN == 0:
                moved, size = _norms(z - last, z)
                if moved <= self.rtol * size < math.inf:
                    self.steps[which] = k
                    self.work += k * len(z)
                    return z
        return None


def _norms(*parts: Tensor) -> list[float]:
    """The norm of each over the rows of all ranks."""
    norms = [float(torch.linalg.vector_norm(part)) for part in parts]
    if ranks() == 1:
        return norms
    return [math.sqrt(s) for s in total(torch.tensor(norms, dtype=torch.float64).square())[0].tolist()]


def _of_images(model: Any) -> bool:
    return getattr(model, "plainly_iterated", False)


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


class _Stepped(torch.autograd.Function):
    """f(z) ↦ f(z), where z = f(z) is known: back through it go the v with v = g + v ∂f/∂z."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, z: Tensor, by: LooseSolves) -> Tensor:
        ctx.image, ctx.z, ctx.by = image, z, by
        return image.view_as(image)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return ctx.by.pulled(ctx.image, ctx.z, g), None, None
