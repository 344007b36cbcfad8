"""z^[0], z^[1], … → z*: the path of a solver, in a plane of principal components    [hieu2022, §4.1]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import svds
from torch import Tensor

from ..solve import Anderson, Solution, Solver, Stop, fixed_point
from ..tasks import Fitted

_LARGE = 200  # with more points and dimensions, computing all singular values would take too long
_MANY = 10**7  # with more numbers, such as the weights of a path, all singular vectors would be too large


@dataclass(frozen=True)
class Plane:
    """mean + s a₁ + t a₂: the plane of the first two principal components of some points."""

    mean: np.ndarray  # (D,)
    axes: np.ndarray  # (2, D), orthonormal
    shares: tuple[float, float]  # of the variance, by component

    def coordinates(self, points: np.ndarray | Tensor) -> np.ndarray:
        """(…, 2) of points (…, D)."""
        return (_array(points) - self.mean) @ self.axes.T

    def lift(self, coordinates: np.ndarray) -> np.ndarray:
        """(…, D) of points of the plane (…, 2)."""
        return self.mean + np.asarray(coordinates) @ self.axes


@dataclass(frozen=True)
class Paths:
    """The iterates of some samples: `states[i]` is (K_i, D), `residuals[i]` is ‖f(z) − z‖/‖z‖, (K_i,).

    Where z = 0 the residual is that relative to f(z): 1, or 0 if 0 is the equilibrium.
    """

    states: tuple[np.ndarray, ...]
    residuals: tuple[np.ndarray, ...]
    solution: Solution

    def plane(self) -> Plane:
        """The plane of all iterates together."""
        return equilibria_plane(np.concatenate(self.states))

    def mean_residual(self, steps: int) -> np.ndarray:
        """Mean over samples at steps 0 … `steps`; a sample that has ended keeps its last residual."""
        rows = [np.pad(r, (0, max(0, steps + 1 - len(r))), mode="edge")[: steps + 1] for r in self.residuals]
        return np.mean(rows, axis=0)


def equilibria_plane(points: np.ndarray | Tensor) -> Plane:
    """The plane of the first two principal components of points (N, D); axes point where they are largest."""
    flat = _array(points)
    if flat.ndim != 2 or flat.shape[0] < 1 or flat.shape[1] < 2:
        raise ValueError(f"points must be (N, D) with N ≥ 1 and D ≥ 2. Got shape {flat.shape} instead.")
    if len(wrong := np.argwhere(~np.isfinite(flat))):
        i, j = wrong[0]
        raise ValueError(f"points must be finite. Got {flat[i, j]} in row {i}, coordinate {j} instead.")
    mean = flat.mean(axis=0)
    centred = flat - mean  # the weights of a path are large: one copy is enough
    sizes, V = _leading(centred)
    axes = np.zeros((2, flat.shape[1]))
    axes[: len(V)] = V
    largest = axes[np.arange(2), np.abs(axes).argmax(axis=1)]
    variance = np.zeros(2)
    variance[: len(sizes)] = sizes**2 / max(float(np.vdot(centred, centred)), 1e-300)
    signs = np.where(largest < 0, -1.0, 1.0)
    return Plane(mean, axes * signs[:, None], (float(variance[0]), float(variance[1])))


def _leading(centred: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two largest singular values and their right vectors; of a large matrix by Lanczos."""
    if min(centred.shape) <= _LARGE and centred.size <= _MANY:
        _, sizes, V = np.linalg.svd(centred, full_matrices=False)
        return sizes[:2], V[:2]
    start = np.arange(1.0, min(centred.shape) + 1)  # equal numbers would be orthogonal to centred rows
    _, sizes, V = svds(centred, k=2, v0=start)
    order = np.argsort(-sizes)
    return sizes[order], V[order]


def solver_paths(
    f: Callable[..., Any],
    start: Tensor,
    args: Sequence[Any] = (),
    *,
    solver: Solver | Sequence[Solver] | None = None,
    stop: Stop | None = None,
) -> Paths:
    """Every iterate of every sample of z = f(z, *args), by Anderson unless another solver is given."""
    solution = fixed_point(f, start, args, solver=solver or Anderson(), stop=stop, trace=True)
    assert solution.trace is not None
    states: list[list[np.ndarray]] = [[] for _ in range(len(start))]
    residuals: list[list[float]] = [[] for _ in range(len(start))]
    for point in solution.trace.points:
        sizes = point.value.flatten(1).norm(dim=1).clamp_min(torch.finfo(point.value.dtype).tiny)
        for row, value, residual, size in zip(
            point.rows.tolist(), point.value, point.residual, sizes, strict=True
        ):
            states[row].append(_array(value.flatten()))
            residuals[row].append(float(residual / size) if states[row][-1].any() else float(residual > 0))
    return Paths(tuple(map(np.stack, states)), tuple(map(np.array, residuals)), solution)


@torch.no_grad()
def phase_portrait(
    f: Callable[..., Any],
    plane: Plane,
    like: Tensor,
    args: Sequence[Any],
    s: np.ndarray,
    t: np.ndarray,
) -> np.ndarray:
    """f(z) − z on the plane, in its coordinates, (len(t), len(s), 2); `like` is (1, …), and so are args."""
    S, T = np.meshgrid(s, t)
    grid = np.stack([S, T], axis=-1).reshape(-1, 2)
    z = torch.from_numpy(plane.lift(grid)).to(like).reshape(len(grid), *like.shape[1:])
    repeated = [a.expand(len(grid), *a.shape[1:]) if isinstance(a, Tensor) else a for a in args]
    move = (f(z, *repeated) - z).flatten(1)
    return (_array(move) @ plane.axes.T).reshape(len(t), len(s), 2)


def _array(points: np.ndarray | Tensor) -> np.ndarray:
    flat = points.detach().cpu().numpy() if isinstance(points, Tensor) else np.asarray(points)
    return flat.astype(float, copy=False)


# -- of a trained network ------------------------------------------------------------------------------------


_MARGIN = 0.12  # room around the paths, as a share of their extent
_FLATTEST = 0.1  # the shorter side of the plane is at least this share of the longer


def follow(fitted: Fitted, X: Any, grid: int) -> tuple[dict[str, Any], Paths]:
    """The paths of raw rows X from 0 in their principal plane, with arrows f(z) − z of the first row."""
    model: Any = fitted.model
    if not model.structured:
        raise ValueError(
            f"only the steps of an affine family, z = σ(Wz + u), can be followed. Got a "
            f"{type(model).__name__} instead: equipoise diagnose measures its solves."
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
