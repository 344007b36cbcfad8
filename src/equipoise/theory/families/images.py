"""What the certificates of ConvOptEq and ConvMonotone share: checks of images, classes and batch norms.

Norms are those of convolutions as linear maps of images, bounded by their symbols on an FFT grid.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..certificate import FLOAT64_TIER, Certificate, fingerprint
from ..common import declared, not_finite
from ..facts import Facts
from ..register import has_own_facts


class ImageFacts(Facts):
    """What is known of an equilibrium model of images, (N, C, H, W)."""

    @torch.no_grad()
    def wellposed(self, X: Tensor, tier: str) -> Certificate:
        """The certificate that every image has one equilibrium, with R and the rate of an iteration."""
        model = self.model
        if tier == "rigorous":
            raise ValueError("the tier 'rigorous' forms dense products in balls, and knows no convolution.")
        if tuple(X.shape[1:]) != model.inputs:
            shape = ", ".join(map(str, model.inputs))
            raise ValueError(f"X must be images, (N, {shape}). Got shape {tuple(X.shape)} instead.")
        if not len(X):
            raise ValueError("X must have at least one image: a certificate is about data. Got none.")
        frame: dict[str, Any] = {
            "theorem": "wellposed",
            "hypotheses": (FLOAT64_TIER, *declared(model), *self._in_training()),
            "tier": tier,
            "fingerprint": fingerprint(model, X),
        }
        if obstacle := self._obstacle(X):
            return Certificate(claims=(), obstacle=obstacle, **frame)
        return self.reason(frame)

    @abstractmethod
    def reason(self, frame: dict[str, Any]) -> Certificate:
        """The certificate of a model without an obstacle, in the frame that is given."""

    def parts_obstacle(self) -> str:
        """What in the parts of the family keeps a certificate from speaking of it; empty if nothing does."""
        return ""

    def _in_training(self) -> list[str]:
        if not any(norm.training for norm in _batch_norms(self.model).values()):
            return []
        return [
            "batch norms are in training: the equilibrium of an image is that in its batch, and another "
            "beside other images; model.eval() gives each its own"
        ]

    def _obstacle(self, X: Tensor) -> str:
        """Why nothing can be said at all; empty if something can."""
        model = self.model
        if not has_own_facts(model):
            return (
                f"{type(model).__name__} may compute otherwise than {self.family}, which is known. Certify a "
                f"{self.family} with its parameters (load_state_dict): modules of your own can be its "
                f"extractor and its head, or stand around it."
            )
        for name, norm in _batch_norms(model).items():
            if norm.running_var is not None and bool((norm.running_var < 0).any()):
                least = norm.running_var.min()
                return f"{name}.running_var must be ≥ 0, as variances are, and holds {least:g}."
        return self.parts_obstacle() or not_finite(model, X)


def _batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """The batch norms that an equilibrium depends on: all but the ones that read it."""
    return {
        name: m
        for name, m in model.named_modules()
        if isinstance(m, _BatchNorm) and name.partition(".")[0] not in ("last_norm", "head")
    }
