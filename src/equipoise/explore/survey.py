"""The loss around a trained network: on random directions, on a line to another, on its training's plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..linalg import Estimate
from ..models.base import EquilibriumModel
from .landscape import (
    Direction,
    Landscape,
    Reading,
    affine_loss,
    between,
    landscape,
    path_plane,
    random_directions,
)
from .measured import Measured
from .path import TrainingPath
from .sharpness import hessian_lambda_max

_MARGIN = 0.15  # room around the path, as a share of its length on an axis
_FLATTEST = 0.1  # the shorter side of the plane is at least this share of the longer
_BLANK = 0.25  # the share of a coarse slice that may have no loss
_SHORTEST = 2**-10


@dataclass(frozen=True)
class Way:
    """A training's path in the plane of its first two principal components, which ends in (0, 0)."""

    moments: list[int]
    coordinates: np.ndarray  # (K, 2)
    shares: tuple[float, ...]  # of the path's variance, by component
    departure: float
    certified: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON of the path: its moments, its coordinates and what the plane holds of it."""
        return {
            "unit": "step" if self.certified else "epoch",
            "moments": self.moments,
            "coordinates": self.coordinates.tolist(),
            "shares": list(self.shares),
            "share": sum(self.shares),
            "departure": self.departure,
        }


@dataclass(frozen=True)
class Survey:
    """The loss on a slice of weights, at the trained ones, and how sharply it curves there."""

    slice: Landscape
    loss: Measured
    centre: Reading
    sharpness: Estimate  # λ_max of the Hessian
    seed: int
    way: Way | None = None

    @property
    def share_below_twice(self) -> float | None:
        """The share of the slice on which the loss is at most twice that of the trained weights."""
        return None if self.centre.reason else self.slice.share_below(2 * self.centre.loss)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON of the slice, the loss at the trained weights and the sharpness there."""
        return {
            **self.slice.to_dict(),
            **self.loss.to_dict(),
            "centre": None if self.centre.reason else self.centre.loss,
            "share_below_twice": self.share_below_twice,
            "hessian_lambda_max": self.sharpness.value,
            "hessian_residual": self.sharpness.residual,
            "seed": self.seed,
        } | ({} if self.way is None else {"path": self.way.to_dict()})


def survey_around(
    model: EquilibriumModel,
    loss: Measured,
    points: int,
    *,
    radius: float | None = None,
    line: bool = False,
    seed: int = 0,
) -> Survey:
    """The loss along one random direction (`line`) or two, up to `radius` times the norms of the filters.

    By default that is 1, halved until the slice has a loss at three quarters of its points.
    """
    generator = torch.Generator().manual_seed(seed)
    directions = random_directions(model, 1 if line else 2, generator)
    radius = _reach(model, loss, directions) if radius is None else radius
    axis = np.linspace(-radius, radius, points)
    return _survey(model, loss, directions, axis, None if line else axis, generator, seed)


def _reach(model: EquilibriumModel, loss: Measured, directions: Sequence[Direction]) -> float:
    """The largest of 1, ½, ¼, … at which a coarse slice has a loss at three quarters of its points."""
    evaluate, radius = affine_loss(loss.X, loss.y, loss), 1.0
    while radius > _SHORTEST:
        axis = np.linspace(-radius, radius, 3)
        coarse = landscape(model, evaluate, directions, axis, axis if len(directions) > 1 else None)
        if coarse.masked.mean() <= _BLANK:
            break
        radius /= 2
    return radius


def survey_between(model: EquilibriumModel, other: EquilibriumModel, loss: Measured, points: int) -> Survey:
    """The loss on the line from a network (0) to another (1), and beyond; both are points of the grid."""
    axis = np.linspace(-0.5, 1.5, 4 * (points // 2) + 1)
    return _survey(model, loss, [between(model, other)], axis, None)


def survey_path(model: EquilibriumModel, path: TrainingPath, loss: Measured, points: int) -> Survey:
    """The loss on the plane of a training's path, through the network that it led to."""
    directions, coordinates, shares = path_plane(list(path.weights.values()))
    certified = path.fitted.recipe.unit == "step"
    way = Way(list(path.weights), coordinates, shares, path.departure, certified)
    s, t = axes_around(coordinates, points)
    return _survey(model, loss, directions, s, t, way=way)


def _survey(
    model: EquilibriumModel,
    loss: Measured,
    directions: Sequence[Direction],
    s: np.ndarray,
    t: np.ndarray | None,
    generator: torch.Generator | None = None,
    seed: int = 0,
    way: Way | None = None,
) -> Survey:
    evaluate = affine_loss(loss.X, loss.y, loss)
    generator = generator or torch.Generator().manual_seed(seed)
    found = landscape(model, evaluate, directions, s, t)
    sharpness = hessian_lambda_max(lambda: loss(model(loss.X), loss.y), model, generator=generator)
    return Survey(found, loss, evaluate(model, None), sharpness, seed, way)


def axes_around(way: np.ndarray, points: int) -> list[np.ndarray]:
    """The two axes around a path (K, 2) that ends in (0, 0), which is a point of the grid."""
    low, high = way.min(axis=0), way.max(axis=0)
    room = np.maximum(_MARGIN * (high - low), (_FLATTEST * (high - low).max() - (high - low)) / 2)
    axes, cells = [], points - 1
    for a, b in zip(room - low, room + high, strict=True):  # how far to go to each side of 0
        width, left = min((max(a / n, b / (cells - n)), n) for n in range(1, cells))
        axes.append(width * np.arange(-left, cells - left + 1))
    return axes
