"""min over a of F(h, a) on features that are held: Newton's method by conjugate gradients, trusted for nothing.

The factor of βΦᵀwΦ + λI preconditions; for a square loss it is the Hessian, so that one step is the Cholesky
solve. The line search moves along outputs that are known, and needs no product with the features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from tempfile import TemporaryFile

import numpy as np
import torch
from torch import Tensor

from .anchored_objective import Objective
from .read_features import FeatureBlock

_HELD = 1 << 28  # bytes of features that are held in memory; more are in a file that the system maps
_NEWTON, _CONJUGATE = 40, 60  # steps at most
_FORCING = 0.1  # how well a Newton step is solved for, relative to the gradient


class HeldFeatures:
    """Features of all rows from one sweep, with their errors, so that readouts are tried without a solve."""

    def __init__(self, objective: Objective, rtol: float, starts: Tensor | None = None) -> None:
        self.objective, self.slices = objective, objective.rows.slices()
        self.parts: list[tuple[float, int]] = []
        self.Phi: Tensor | None = None
        for rows, block in objective.blocks(rtol, starts):
            if self.Phi is None:
                self.Phi = _room(len(objective.rows), block.Phi.shape[1])
            self.Phi[rows] = block.Phi.cpu()
            self.parts.append((block.error, block.work))

    def blocks(self) -> Iterator[tuple[slice, FeatureBlock]]:
        """As `Objective.blocks`."""
        assert self.Phi is not None
        for rows, (error, work) in zip(self.slices, self.parts, strict=True):
            part = self.Phi[rows]
            yield rows, FeatureBlock(part, error, part, work)

    @property
    def error(self) -> float:
        """≥ ‖φ − φ*‖ of any row."""
        return max(error for error, _ in self.parts)


def _room(rows: int, width: int) -> Tensor:
    """(N, p) in float64: in memory, or in a nameless file that goes with the last reference to it."""
    if 8 * rows * width <= _HELD:
        return torch.empty(rows, width, dtype=torch.float64)
    with TemporaryFile() as file:
        return torch.from_numpy(np.memmap(file, np.float64, "w+", shape=(rows, width)))


def solve_readout(held: HeldFeatures, a: Tensor, tolerance: float, steps: int = _NEWTON) -> Tensor:
    """A readout with ‖∇_a F‖²/(2λ) about `tolerance` of F or less, from a (p, k)."""
    newton = _Newton(held, a.clone())
    for _ in range(steps):
        F, G = newton.value_and_gradient()
        if not math.isfinite(F):
            return a
        if float(G.square().sum()) / (2 * newton.ridge) <= tolerance * F:
            break
        if not newton.step(F, G):
            break
    return newton.a


class _Newton:
    def __init__(self, held: HeldFeatures, a: Tensor) -> None:
        self.held, self.a, self.terms = held, a, held.objective.terms
        self.loss, self.ridge = self.terms.loss, self.terms.ridge
        self.data = [
            (block.Phi, *held.objective.rows.targets(rows, block.Phi.device)) for rows, block in held.blocks()
        ]
        self.Q = [Phi @ a for Phi, _, _ in self.data]
        self.factor = self._preconditioner()

    def _preconditioner(self) -> Tensor:
        p = len(self.a)
        G = torch.zeros(p, p, dtype=torch.float64)
        for Phi, _, w in self.data:
            G.addmm_(Phi.T, w[:, None] * Phi)
        G.mul_(self.loss.smoothness)
        G.diagonal().add_(self.ridge)
        factor, info = torch.linalg.cholesky_ex(G)
        return factor if int(info) == 0 else torch.diag(G.diagonal().clamp_min(self.ridge).sqrt())

    def value_and_gradient(self) -> tuple[float, Tensor]:
        """F without the decay, and ∇_a F."""
        F, G = self.ridge / 2 * float(self.a.square().sum()), self.ridge * self.a
        for (Phi, y, w), q in zip(self.data, self.Q, strict=True):
            at = self.loss.rows(q, y)
            F += float((w * at.value).sum())
            G = G + Phi.T @ (w[:, None] * at.slope)
        return F, G

    def step(self, F: float, G: Tensor) -> bool:
        """One step with a line search; False where rounding leaves nothing to gain."""
        D = self._direction(G)
        P = [Phi @ D for Phi, _, _ in self.data]
        slope = float((G * D).sum())
        t = 1.0
        while t > 1e-6:
            if self._along(t, D, P) <= F + 1e-4 * t * slope + 1e-13 * abs(F):
                self.a = self.a + t * D
                self.Q = [q + t * p for q, p in zip(self.Q, P, strict=True)]
                return True
            t /= 2
        return False

    def _along(self, t: float, D: Tensor, P: list[Tensor]) -> float:
        F = self.ridge / 2 * float((self.a + t * D).square().sum())
        for (_, y, w), q, p in zip(self.data, self.Q, P, strict=True):
            F += float((w * self.loss.rows(q + t * p, y).value).sum())
        return F

    def _direction(self, G: Tensor) -> Tensor:
        """About −H⁻¹G by preconditioned conjugate gradients."""
        return conjugate_gradients(
            self._curved, -G, lambda r: torch.cholesky_solve(r, self.factor), _FORCING, _CONJUGATE
        )

    def _curved(self, D: Tensor) -> Tensor:
        H = self.ridge * D
        for (Phi, y, w), q in zip(self.data, self.Q, strict=True):
            H = H + Phi.T @ (w[:, None] * self.loss.curved(q, y, Phi @ D))
        return H


def conjugate_gradients(
    H: Callable[[Tensor], Tensor],
    b: Tensor,
    precondition: Callable[[Tensor], Tensor],
    tolerance: float,
    steps: int,
) -> Tensor:
    """x with ‖H x − b‖ about `tolerance` of ‖b‖, for a positive definite H."""
    x, r = torch.zeros_like(b), b
    z = precondition(r)
    d, rho, first = z, float((r * z).sum()), float(b.norm())
    for _ in range(steps):
        Hd = H(d)
        curvature = float((d * Hd).sum())
        if not curvature > 0:
            break
        alpha = rho / curvature
        x, r = x + alpha * d, r - alpha * Hd
        if float(r.norm()) <= tolerance * first:
            break
        z = precondition(r)
        new = float((r * z).sum())
        d, rho = z + (new / rho) * d, new
    return x


