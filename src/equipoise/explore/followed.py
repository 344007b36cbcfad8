"""The way of the solver to the equilibria of a trained network, as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..tasks import Fitted
from .trajectory import Paths, phase_portrait, solver_paths

_MARGIN = 0.12  # around the paths, of their extent
_FLATTEST = 0.1  # of the longer side of the plane, for the shorter


def follow(fitted: Fitted, X: Any, grid: int) -> tuple[dict[str, Any], Paths]:
    """The paths of raw rows X from 0 in their principal plane, with arrows f(z) − z of the first row."""
    model: Any = fitted.model
    if not model.structured:
        raise ValueError(
            f"what is followed are the steps of z = σ(Wz + u), of an affine family. Got a "
            f"{type(model).__name__} instead: equipoise diagnose tells of its solves."
        )
    f = model.affine_map(fitted.preparation.apply(X))
    found = solver_paths(f, torch.zeros_like(f.bias), solver=model.default_solver(f))
    plane = found.plane()
    paths = [plane.coordinates(z) for z in found.states]
    s, t = _around(paths, grid)
    step = lambda z, b: model.activation(z @ f.weight.T + b)
    arrows = phase_portrait(step, plane, f.bias[:1], (f.bias[:1],), s, t)
    content = {
        "paths": [p.tolist() for p in paths],
        "residuals": [r.tolist() for r in found.residuals],
        "shares": list(plane.shares),
        "steps": [len(r) - 1 for r in found.residuals],
        "s": s.tolist(),
        "t": t.tolist(),
        "arrows": arrows.tolist(),
        "unit": fitted.recipe.unit,
        "forward_steps": fitted.history.forward_steps.tolist(),
        "converged": found.solution.converged.tolist(),
    }
    return content, found


def _around(paths: Sequence[np.ndarray], points: int) -> list[np.ndarray]:
    """The two axes of the part of the plane in which the paths (K, 2) are."""
    every = np.concatenate(paths)
    low, high = every.min(axis=0), every.max(axis=0)
    longest = float((high - low).max()) or 1.0
    middle, half = (low + high) / 2, np.maximum(high - low, _FLATTEST * longest) * (0.5 + _MARGIN)
    return [np.linspace(m - h, m + h, points) for m, h in zip(middle, half, strict=True)]
