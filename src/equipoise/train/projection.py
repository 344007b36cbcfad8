"""W ← W·min(1, bound/‖W‖) after each step of an optimiser: weights stay those of a well-posed network.

The protocol is one method. A module that must be kept well-posed defines

    def project_(self) -> Any: …        # in place, under no_grad; may take `bound=`

and `Projection` calls it on every module that has it, wherever it stands in a network. The affine families
need none: those that name a parameter to be scaled (`scaled_name`) are projected here, the others are
well-posed for every value of their parameters.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ..checks import integer, within
from ..linalg import estimate_norm, frobenius_upper, norm_upper, proves_norm_below


@runtime_checkable
class Projectable(Protocol):
    """A module that keeps itself well-posed: `project_()` changes its weights in place where it must."""

    def project_(self) -> Any:
        """Change the weights in place so that the module is well-posed."""


@dataclass(frozen=True)
class Projection:
    """Keep ‖W(θ)‖ ≤ bound, for certain, in every module that is not well-posed by itself.

    `bound` < 1 is the contraction factor that remains; it is passed to `project_` if that takes it. A Trainer
    projects after every step, or after every `every` steps. Between projections the weights are not known to
    be well-posed, and a smaller bound leaves them room. With `proved=False` a Trainer projects by an
    estimate of ‖W‖ from below, which proves nothing: it is meant for runs that prove it at checkpoints.
    """

    bound: float = 0.99
    every: int = 1
    proved: bool = True

    def __repr__(self) -> str:
        each = "" if self.every == 1 else f", every={self.every}"
        return f"Projection(bound={self.bound!r}{each}{'' if self.proved else ', proved=False'})"

    def __post_init__(self) -> None:
        integer("every", self.every)
        within("bound", self.bound, "(0, 1)", ", where the map contracts")

    def after(self, step: int, network: nn.Module) -> int:
        """Project after this step of a run, if that is due; returns how many modules had to change."""
        if (step + 1) % self.every:
            return 0
        if self.proved:
            return self(network)
        return sum(self._scale_about(m) if getattr(m, "scaled_name", None) else 0 for m in network.modules())

    @torch.no_grad()
    def _scale_about(self, module: Any) -> bool:
        """W ← W·bound/‖W‖ if ‖W‖, estimated by a few products with a few vectors, exceeds the bound."""
        W = module.weight()
        X = torch.randn(len(W), _VECTORS, generator=_seeded(W), dtype=W.dtype, device=W.device)
        for _ in range(_PRODUCTS):
            X = W.T @ (W @ X)
            X = X / X.norm().clamp_min(torch.finfo(W.dtype).tiny)
        V = X / X.norm(dim=0).clamp_min(torch.finfo(W.dtype).tiny)
        about = float((W @ V).norm(dim=0).max())
        if not about > self.bound:
            return False
        module.get_parameter(module.scaled_name).mul_(self.bound / about)
        return True

    @torch.no_grad()
    def __call__(self, network: nn.Module) -> int:
        """Project every module of the network; returns how many of them had to change."""
        return sum(self._project(module) for module in network.modules())

    def _project(self, module: nn.Module) -> bool:
        name = getattr(module, "scaled_name", None)
        if name is not None:
            return self._scale(module, module.get_parameter(name))
        if not isinstance(module, Projectable):
            return False
        before = [p.detach().clone() for p in module.parameters()]
        takes = inspect.signature(module.project_).parameters
        if "bound" in takes:
            module.project_(bound=self.bound)  # type: ignore[call-arg]
        else:
            module.project_()
        return not all(torch.equal(p, q) for p, q in zip(module.parameters(), before, strict=True))

    def _scale(self, module: Any, parameter: Tensor) -> bool:
        if not bool(torch.isfinite(parameter).all()):
            raise ValueError(
                f"{type(module).__name__} has weights that are not finite, and nothing to project them to: "
                f"use a smaller learning rate, or clip."
            )
        if self._holds(module.weight()):
            return False
        about = estimate_norm(module.weight(), steps=_LANCZOS, generator=_seeded(parameter)).value
        parameter.mul_(self.bound / max(about, self.bound) * (1 - _ROOM))
        while not self._holds(module.weight()):  # the estimate was too low
            parameter.mul_(min(1.0, self.bound / norm_upper(module.weight())) * (1 - _ROOM))
        return True

    def _holds(self, W: Tensor) -> bool:
        """Whether ‖W‖ ≤ bound is proved, by the Frobenius norm or, if it may be true, a Cholesky factor."""
        if frobenius_upper(W) <= self.bound:
            return True
        about = estimate_norm(W, steps=_LANCZOS, generator=_seeded(W)).value  # from below
        return about < self.bound and proves_norm_below(W, self.bound)


_LANCZOS = 12  # steps of an estimate, which costs two products with a vector each
_VECTORS, _PRODUCTS = 4, 5  # of an estimate that no proof uses
_ROOM = 1e-4  # left below the bound, for the error of the estimate


def _seeded(like: Tensor) -> torch.Generator:
    return torch.Generator(like.device).manual_seed(0)
