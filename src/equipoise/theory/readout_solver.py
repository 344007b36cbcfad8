"""min over a of F(h, a) on features that are held, by Newton's method; no proof relies on it.

Steps are found by conjugate gradients. Each output is preconditioned by its own block of the Hessian,
Φᵀ diag(wℓ''_c)Φ + λI, computed from some of the rows, and near the end from all. For a square loss the block
is the Hessian itself, so that one step is the Cholesky solve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from tempfile import TemporaryFile

import numpy as np
import torch
from torch import Tensor

from ..linalg import Interval, frobenius, gamma
from .anchored_objective import Objective
from .convex_losses import HalfSquared
from .read_features import FeatureBlock

_HELD = 1 << 28  # bytes of features that are held in memory; more are in a file that the system maps
_NEWTON, _CONJUGATE = 40, 150  # steps at most
_POLISH = 5  # steps without a line search
_SAMPLE = 600  # about so many rows make a preconditioner
_FACTORS = 1 << 25  # the most numbers in all preconditioners together
_FINE = 1e-12  # the tolerance of features that the readout of a network of float64 is solved for on
_NEAR = 0.5  # below this gap, as a share of F, preconditioners from all rows pay


class HeldFeatures:
    """Features of all rows from one sweep, with their errors, so that readouts are tried without a solve.

    Each feature is the sum of two numbers of float32; the first alone serves where nothing is proved. The
    features of a network of float64 are found to _FINE at least, whatever `rtol` asks for. At a looser
    tolerance the rows beside a row decide at which iteration it ends, and the number of ranks decides which
    rows those are.
    """

    def __init__(self, objective: Objective, rtol: float, starts: Tensor | None = None) -> None:
        self.objective, self.slices = objective, objective.rows.slices()
        self.parts: list[tuple[float, int]] = []
        self.halves: list[Tensor] = []  # (N, p) each
        rtol = min(rtol, _FINE) if objective.readout.weight.dtype == torch.float64 else rtol
        for rows, block in objective.blocks(rtol, starts):
            Phi = block.Phi.cpu()
            if not self.halves:
                self.halves = [_room(len(objective.rows), Phi.shape[1]) for _ in range(2)]
            self.halves[0][rows] = Phi.float()
            self.halves[1][rows] = (Phi - self.halves[0][rows].double()).float()
            lost = frobenius(Phi - self._whole(rows)) * (1 + gamma(4))
            self.parts.append(((Interval(0.0, block.error) + lost).hi, block.work))

    def _whole(self, rows: slice) -> Tensor:
        high, low = (half[rows].double() for half in self.halves)
        return high.add_(low)

    def blocks(self) -> Iterator[tuple[slice, FeatureBlock]]:
        """As `Objective.blocks`."""
        for rows, (error, work) in zip(self.slices, self.parts, strict=True):
            Phi = self._whole(rows)
            yield rows, FeatureBlock(Phi, error, Phi, work)

    @property
    def error(self) -> float:
        """≥ ‖φ − φ*‖ of any row."""
        return max(error for error, _ in self.parts)


def _room(rows: int, width: int) -> Tensor:
    """(N, p) in float32: in memory, or in a nameless file that goes with the last reference to it."""
    if 8 * rows * width <= _HELD:
        return torch.empty(rows, width, dtype=torch.float32)
    with TemporaryFile() as file:
        return torch.from_numpy(np.memmap(file, np.float32, "w+", shape=(rows, width)))


def solve_readout(held: HeldFeatures, a: Tensor, tolerance: float, steps: int = _NEWTON) -> Tensor:
    """A readout with ‖∇_a F‖²/(2λ) about `tolerance` of F or less, found from the start a (p, k)."""
    newton, best, least = _Newton(held, a), a, math.inf
    for _ in range(steps):
        F, G = newton.value_and_gradient()
        if not F < least:  # only rounding is left
            break
        best, least = newton.a, F
        unit = 2 * newton.ridge * F  # which may underflow
        share = float(G.square().sum()) / unit if unit > 0 else 0.0
        if share <= tolerance or not newton.step(F, G, share):
            break
    return best if newton.dtype != torch.float64 else newton.polished(best)


class _Newton:
    def __init__(self, held: HeldFeatures, a: Tensor) -> None:
        self.a, terms, self.rows = a, held.objective.terms, held.objective.rows
        self.loss, self.ridge = terms.loss, terms.ridge
        targets = [held.objective.rows.targets(rows, torch.device("cpu")) for rows in held.slices]
        self.y, self.w = [y for y, _ in targets], [w for _, w in targets]
        self.high, self.low = ([half[rows] for rows in held.slices] for half in held.halves)
        precise = held.objective.readout.weight.dtype == torch.float64
        self.dtype = torch.float64 if precise else torch.float32  # of products with the Hessian
        self.Q: list[Tensor] = []
        self._near: Tensor | None = None  # factors from all rows, once the end is near

    def value_and_gradient(self) -> tuple[float, Tensor]:
        """F without the decay, and ∇_a F, in float64."""
        F, G = torch.zeros((), dtype=torch.float64), torch.zeros_like(self.a)
        self.Q = []
        for high, low, y, w in zip(self.high, self.low, self.y, self.w, strict=True):
            Phi = high.double().add_(low)
            q = _product(Phi, self.a)
            at = self.loss.rows(q, y)
            F = F + (w * at.value).sum()
            G = G + ((w[:, None] * at.slope).T @ Phi).T
            self.Q.append(q)
        F, G = self.rows.total(F, G)
        return float(F) + self.ridge / 2 * float(self.a.square().sum()), G + self.ridge * self.a

    def features(self) -> Iterator[Tensor]:
        """Φ of every block, to the precision of the network."""
        if self.dtype != torch.float64:
            return iter(self.high)
        return (high.double().add_(low) for high, low in zip(self.high, self.low, strict=True))

    def step(self, F: float, G: Tensor, share: float) -> bool:
        """One step with a line search; False where rounding leaves nothing to gain.

        `share`, about the gap divided by F, says how near the end is, and so how much precision pays.
        """
        D = self._direction(G, share)
        P = [_product(Phi, D.to(self.dtype)).double() for Phi in self.features()]
        slope, t = float((G * D).sum()), 1.0
        while t > 1e-6:
            if self._along(t, D, P) <= F + 1e-4 * t * slope + 1e-12 * abs(F):
                self.a = self.a + t * D
                return True
            t /= 2
        return False

    def polished(self, a: Tensor) -> Tensor:
        """The optimum near a, to rounding: whatever the order of sums, a network of float64 gets the same."""
        self.a = a
        F, G = self.value_and_gradient()
        for _ in range(_POLISH):
            size = 2 * self.ridge * F  # 0 of tiny weights and a tiny ridge
            share = float(G.square().sum()) / size if size > 0 else 0.0
            self.a = a + self._direction(G, share)
            F, new = self.value_and_gradient()
            if not float(new.norm()) < 0.1 * float(G.norm()):
                break
            a, G = self.a, new
        return a

    def _along(self, t: float, D: Tensor, P: list[Tensor]) -> float:
        F = torch.zeros((), dtype=torch.float64)
        for q, p, y, w in zip(self.Q, P, self.y, self.w, strict=True):
            F += (w * self.loss.rows(q + t * p, y).value).sum()
        return float(self.rows.total(F)[0]) + self.ridge / 2 * float((self.a + t * D).square().sum())

    def _direction(self, G: Tensor, share: float) -> Tensor:
        """About −H⁻¹G by preconditioned conjugate gradients, with products in float32."""
        bent = [self.loss.curvature(q, y).to(self.dtype) for q, y in zip(self.Q, self.y, strict=True)]
        factor = self._near if self._near is not None else self._factors(bent, share)
        if share < _NEAR:
            self._near = factor
        forcing = min(0.1, math.sqrt(share))

        def curved(D: Tensor) -> Tensor:
            d, H = D.to(self.dtype), torch.zeros_like(D)
            for Phi, w, at in zip(self.features(), self.w, bent, strict=True):
                H += ((w[:, None].to(d) * self.loss.curved(at, _product(Phi, d))).T @ Phi).T.double()
            return self.rows.total(H)[0] + self.ridge * D

        def precondition(r: Tensor) -> Tensor:
            if len(factor) == 1:
                return torch.cholesky_solve(r, factor[0])
            return torch.cholesky_solve(r.T[:, :, None], factor)[:, :, 0].T

        return conjugate_gradients(curved, -G, precondition, forcing, _CONJUGATE)

    def _factors(self, bent: list[Tensor], share: float) -> Tensor:
        """Cholesky factors of the outputs' Hessian blocks, (k, p, p); one for all if alike or too large."""
        p, k = self.a.shape
        same = isinstance(self.loss, HalfSquared)
        every = 1 if same or share < _NEAR else max(1, self.rows.whole // _SAMPLE)
        alike = same or k * p * p > _FACTORS
        G, done = torch.zeros(1 if alike else k, p, p, dtype=self.dtype), self.rows.first
        for Phi, w, at in zip(self.features(), self.w, bent, strict=True):
            on = slice(-done % every, None, every)  # the same rows of the whole on any number of ranks
            some, d = Phi[on], every * w[on, None].to(self.dtype) * self.loss.diagonal(at[on])
            done += len(Phi)
            for c in range(len(G)):
                G[c].addmm_(some.T, (d.amax(dim=1) if alike else d[:, c])[:, None] * some)
        G = self.rows.total(G.double())[0]
        G.diagonal(dim1=1, dim2=2).add_(self.ridge)
        factor, info = torch.linalg.cholesky_ex(G)
        return factor if not bool(info.any()) else torch.diag_embed(G.diagonal(dim1=1, dim2=2).sqrt())


def _product(Phi: Tensor, D: Tensor) -> Tensor:
    """Φ D, computed as (Dᵀ Φᵀ)ᵀ, which is several times as fast for few columns."""
    return (D.T @ Phi.T).T


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
