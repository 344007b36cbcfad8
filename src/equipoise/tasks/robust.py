"""Training for answers that hold near every input, and what is then proved of them on rows of the test part.

ε is counted in the network's inputs: of images as a share of the brightest pixel, of tables in standard
deviations of each column. Training only makes margins wide; what is promised is what is proved afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..data.errors import DataError
from ..recipe import Recipe
from ..theory import certified_radius, verify_predictions
from ..train.objective import CrossEntropy
from ..train.robust import CertifiedBox, CertifiedMargin
from .arrays import evenly, rows_at
from .preparation import Preparation
from .raw import Rows
from .robust_sets import reach

if TYPE_CHECKING:
    from .fitted import Fitted

BEYOND = 1.4  # training is for this many times ε, so that most margins are wide enough for ε itself
BOXES, NODES = 100, 10  # test rows whose boxes are verified, and parts of each


@dataclass(frozen=True)
class Perturbation:
    """‖δ‖ ≤ ε in a norm; `far` is ε in raw pixels, which lie in [low, high], or in the inputs' units."""

    epsilon: float
    norm: str
    far: float
    image: bool
    low: float = 0.0
    high: float = 0.0

    @classmethod
    def of(cls, recipe: Recipe, data: Rows) -> Perturbation:
        """What a recipe asks for, in the units of these rows."""
        assert recipe.robust is not None
        if data.kind != "classification":
            raise DataError("robust training is for classes, and the targets are numbers: leave robust out.")
        norm = recipe.norm or "l2"
        if not data.image:
            return cls(recipe.robust, norm, recipe.robust, False)
        low, high = min(0.0, float(data.X.min())), float(data.X.max())
        return cls(recipe.robust, norm, recipe.robust * max(high, -low), True, low, high)

    def loss(self, model: Any, preparation: Preparation) -> CrossEntropy:
        """The loss of margins that hold within ε of a network's inputs, the last of which is 1 and stays."""
        scale = float(np.abs(preparation.scale).max()) if self.image else 1.0
        moved = BEYOND * self.far * scale
        if self.norm == "l2":
            return CertifiedMargin(model, moved)
        ends = self._ends(preparation)
        return CertifiedBox(
            model, torch.cat([torch.full_like(ends[0][:-1], moved), ends[0].new_zeros(1)]), ends
        )

    def _ends(self, preparation: Preparation) -> tuple[Tensor, Tensor]:
        """The least and the largest inputs, (d + 1,)."""
        d = len(preparation.mean)
        if not self.image:
            ends = torch.full((d + 1,), torch.inf, dtype=preparation.dtype)
            return -ends, ends
        low, high = (preparation.apply(np.full((1, d), end))[0] for end in (self.low, self.high))
        return low, high

    def proved(self, fitted: Fitted, X: Any, y: Any) -> dict[str, Any]:
        """The share of test rows answered right, and the share proved to stay right within ε.

        ℓ2 by Lipschitz constants, of all rows; ℓ∞ by `verify_predictions`, of some rows.
        """
        at = np.arange(len(y)) if self.norm == "l2" else evenly(len(y), BOXES)
        X, y = rows_at(X, at), np.asarray(rows_at(y, at))
        prepared, model = fitted.preparation, fitted.model
        assert prepared.classes is not None
        inputs = prepared.apply(X)
        own = torch.from_numpy(np.searchsorted(prepared.classes, y).clip(max=len(prepared.classes) - 1))
        known = prepared.classes[own.numpy()] == y  # a class that no row trained on has is never answered
        told = {"epsilon": self.epsilon, "norm": self.norm, "rows": len(at)}
        right = float((prepared.answers(fitted.decide(X)) == y).mean())
        if self.norm == "l2":
            far = reach(prepared, inputs, self.far, "l2") if self.image else np.full(len(at), self.far)
            held = certified_radius(model, inputs, own).radius.numpy() > far
            return {**told, "right": right, "proved": float((held & known).mean())}
        low, high = self._box(prepared, np.asarray(X, dtype=float).reshape(len(at), -1), inputs)
        found = verify_predictions(model, inputs, own, box=(low, high), nodes=NODES)
        proved = found.proved.numpy() & known
        refuted = found.refuted.numpy() | ~known
        return {**told, "right": right, "proved": float(proved.mean()), "refuted": float(refuted.mean())}

    def _box(self, preparation: Preparation, X: np.ndarray, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The ends of what the inputs of rows become when these are moved, rounded outward."""
        if not self.image:
            moved = torch.full_like(inputs.double(), self.far)
            moved[:, -1] = 0.0
            far = torch.full_like(moved, torch.inf)
            low, high = inputs.double() - moved, inputs.double() + moved
            return (
                torch.where(moved > 0, torch.nextafter(low, -far), low),
                torch.where(moved > 0, torch.nextafter(high, far), high),
            )
        least = np.nextafter(X - self.far, -np.inf).clip(min=self.low)
        most = np.nextafter(X + self.far, np.inf).clip(max=self.high)
        return preparation.apply(np.minimum(least, X)), preparation.apply(np.maximum(most, X))
