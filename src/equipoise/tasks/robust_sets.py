"""Sets and intervals that hold the truth although the row that is seen was moved by up to ε.

A new row x is like those that calibrate; what is seen is x' with ‖x' − x‖ ≤ ε. The least score that x can
have follows from the outputs at x' and from how far they move within the ball, so that a class stays in the
set, and a number in the interval, wherever x would have kept it. Scores are those of the exact network:
computed outputs come with a bound of their error, on both sides.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..checks import one_of
from ..theory.robustness import certified_outputs, lipschitz_bound, pairwise_lipschitz
from .arrays import Array
from .conformal import threshold
from .preparation import Preparation

if TYPE_CHECKING:
    from .fitted import Fitted

_UP = 1 + 2.0**-40  # more than the rounding of what follows the proved bounds
_ROUNDED = 1 + 2.0**-36  # more than the rounding of exp, of its rounded argument, and of sums
NORMS = "l2", "linf"


def robust_sets(fitted: Fitted, X: Any, epsilon: float, norm: str) -> Array:
    """(N, C): classes that the set of some row within ε of the one seen would hold."""
    kept, coverage = _kept(fitted)
    classes = fitted.preparation.classes
    assert classes is not None
    at = np.searchsorted(classes, kept.y).clip(max=len(classes) - 1)
    sharp = fitted.preparation.sharpness
    ahead, error, _ = _differences(fitted, kept.X)
    least = _shares(sharp * (ahead + error))[np.arange(len(at)), at] / _ROUNDED
    scores = 1 - least + 2.0**-50  # ≥ the exact ones
    limit = threshold(np.where(classes[at] == kept.y, scores, np.inf), coverage)
    ahead, error, rows = _differences(fitted, X)
    far = reach(fitted.preparation, rows, epsilon, norm)[:, None, None]
    moved = far * _pair_bounds(fitted)
    most = _shares(sharp * (ahead - error - moved * _UP)) * _ROUNDED
    return ~(1 - most - 2.0**-50 > limit)  # NaN rules out no class


def robust_intervals(fitted: Fitted, X: Any, epsilon: float, norm: str) -> Array:
    """(N, 2), or (N, k, 2): intervals that hold those of every row within ε of the one seen."""
    kept, coverage = _kept(fitted)
    prepared = fitted.preparation
    said, error = certified_outputs(fitted.model, prepared.apply(kept.X))
    off = np.abs(prepared.answers(said).reshape(len(kept.y), -1) - kept.y.reshape(len(kept.y), -1))
    off = off + (error.numpy()[:, None] * prepared.target_scale + 1e-12 * np.abs(kept.y).max()) * _UP
    radius = np.array([threshold(column, coverage) for column in off.T])
    rows = prepared.apply(X)
    said, error = certified_outputs(fitted.model, rows)
    far = reach(prepared, rows, epsilon, norm)[:, None] * lipschitz_bound(fitted.model)
    wide = radius + (far + error.numpy()[:, None]) * prepared.target_scale * _UP
    middle = prepared.answers(said).reshape(wide.shape)
    wide = wide + 1e-12 * (np.abs(middle) + np.abs(prepared.target_mean))
    ends = np.stack([middle - wide, middle + wide], axis=-1)
    ends = np.where(np.isnan(ends), [-np.inf, np.inf], ends)
    return ends[:, 0] if prepared.flat else ends


def reach(preparation: Preparation, rows: Tensor, epsilon: float, norm: str) -> Array:
    """(N,): ≥ ‖x̃ − x̃'‖₂ for raw rows within ε of each other, of which the inputs of one are given.

    A raw row becomes an input by (x − mean)·scale, rounded to the network's dtype; both roundings count.
    """
    one_of("norm", norm, NORMS)
    if not isinstance(epsilon, int | float) or not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be a finite number ≥ 0. Got {epsilon!r} instead.")
    encoding = preparation.encoding
    if encoding is not None and [c.type for c in encoding.columns] != ["number"] * len(encoding.names):
        raise ValueError(
            "a perturbation of ε needs columns that are all numbers, without missing values in training."
        )
    scale = np.abs(preparation.scale)
    steep = float(scale.max(initial=0.0)) if norm == "l2" else float(np.linalg.norm(scale))
    far = epsilon * steep * _UP
    size = rows.double().flatten(1).norm(dim=1).numpy() + 1.0
    mean = float(np.linalg.norm(preparation.mean * scale))
    return far + 4 * torch.finfo(preparation.dtype).eps * (size + far) + 2.0**-49 * mean


def _kept(fitted: Fitted) -> tuple[Any, float]:
    if fitted.kept is None or fitted.recipe.coverage is None:
        raise ValueError(
            "robust sets and intervals need the rows that calibrate: fit with coverage=0.9, in this process."
        )
    return fitted.kept, fitted.recipe.coverage


def _differences(fitted: Fitted, X: Any) -> tuple[Array, Array, Tensor]:
    """ŷ_j − ŷ_c as (N, C, C) by c and j, ≥ the error of each, and the inputs of the network.

    If there is one output ŷ, the outputs of its two classes are 0 and ŷ.
    """
    rows = fitted.preparation.apply(X)
    said, error = certified_outputs(fitted.model, rows)
    outputs = said.double().cpu().numpy().reshape(len(rows), -1)
    if outputs.shape[1] == 1:
        outputs = np.column_stack([np.zeros(len(outputs)), outputs])
    C = outputs.shape[1]
    off = (error.numpy() + 2.0**-49 * np.abs(outputs).max(axis=1, initial=0.0)) * _UP
    return outputs[:, None] - outputs[:, :, None], np.where(np.eye(C), 0.0, off[:, None, None]), rows


def _pair_bounds(fitted: Fitted) -> Array:
    """(C, C): Lipschitz constants of the differences of outputs."""
    if fitted.preparation.outputs > 1:
        return pairwise_lipschitz(fitted.model).cpu().numpy()
    return lipschitz_bound(fitted.model) * (1 - np.eye(2))


def _shares(ahead: Array) -> Array:
    """p_c = 1/Σ_j exp(ahead_cj), (N, C)."""
    with np.errstate(over="ignore"):
        return 1 / np.exp(ahead).sum(axis=2)
