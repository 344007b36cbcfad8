"""φ = ψ* − ½‖·‖²,  ψ(y) = μ⁻¹ 1ᵀσ̃(W y + c): the convex function behind a layer, f = ∇ψ = prox_φ.

Everything follows from one equation in y, solved by Newton's method on a strongly convex function:

    t y + (1 − t) f(y) = x    gives    prox_{tφ}(x) = f(y),    φ(f(y)) = ⟨y, f(y)⟩ − ψ(y) − ½‖f(y)‖²,

the second by Fenchel's equality. No fixed point of the network is used: it is another way to the same point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import null_space
from scipy.optimize import lsq_linear, nnls
from torch import Tensor

from ...solve import Activation
from ...solve.norms import row_norms
from .activations import potential

_NEWTON_STEPS = 200
_FEASIBLE = 1e-9  # relative: how far z may lie outside the domain of φ and count as in it
_TINY = 1e-300
_SLACKS = (1e-14, 1e-13, 1e-12, 1e-11, 1e-10, _FEASIBLE)


@dataclass(frozen=True)
class Phi:
    """φ with prox_φ(y) = f(y) = μ⁻¹ Wᵀσ(W y + c), for every row of c    [xie2021, Theorem 1].

    Convex where L_σ‖W‖² ≤ μ. Rows in, rows or one number for each row out; float64, without gradients.
    """

    W: Tensor  # (n, m)
    c: Tensor  # (N, n)
    mu: float
    activation: Activation

    def row(self, i: int) -> Phi:
        """φ of one sample."""
        return Phi(self.W, self.c[i : i + 1], self.mu, self.activation)

    def map(self, y: Tensor) -> Tensor:
        """f(y) = ∇ψ(y) = prox_φ(y), (N, m)."""
        return self.activation(y @ self.W.T + self.c) @ self.W / self.mu

    def psi(self, y: Tensor) -> Tensor:
        """ψ(y) = μ⁻¹ 1ᵀσ̃(W y + c), (N,)."""
        return potential(self.activation, y @ self.W.T + self.c).sum(dim=1) / self.mu

    def at_image(self, y: Tensor) -> Tensor:
        """φ(f(y)), (N,), by Fenchel's equality."""
        p = self.map(y)
        return (y * p).sum(dim=1) - self.psi(y) - p.square().sum(dim=1) / 2

    def value(self, z: Tensor, tolerance: float = 0.0) -> Tensor:
        """φ(z), (N,); ∞ where z is not in the image of f (within 1e-9, relative to z and c).

        ReLU: min{μ⁻¹(½‖v‖² − cᵀv) : v ≥ 0, Wᵀv = μz} − ½‖z‖², a least-distance problem, solved exactly.
        Otherwise by the y with f(y) = z; ∞ too where σ is saturated (c ≫ 1) and Newton's method fails.

        A z that is known up to t = `tolerance`, relative to z and c, is seldom in the image itself. If
        p = prox_{tφ}(z), which is in the image, lies within 4t of z, the value is φ(p).
        """
        if self.activation.name == "relu":
            value = self._relu_value(z)
        else:
            y, residual = self._solve(0.0, z)
            inside = residual <= _FEASIBLE * (row_norms(z) + self.size)
            value = (y * z).sum(dim=1) - self.psi(y) - z.square().sum(dim=1) / 2
            value = torch.where(inside, value, math.inf)
        outside = value.isinf()
        if tolerance > 0 and bool(outside.any()):
            some = Phi(self.W, self.c[outside], self.mu, self.activation)
            value[outside] = some._value_nearby(tolerance, z[outside])
        return value

    def _value_nearby(self, t: float, z: Tensor) -> Tensor:
        """φ(p), p = prox_{tφ}(z); ∞ where ‖z − p‖ > 4t, relative to z and c."""
        y, residual = self._solve(t, z)
        scale = row_norms(z) + self.size
        near = (residual <= _FEASIBLE * scale) & (row_norms(z - self.map(y)) <= 4 * t * scale)
        return torch.where(near, self.at_image(y), math.inf)

    @property
    def size(self) -> Tensor:
        """μ⁻¹‖W‖‖σ(c)‖ ≥ ‖f(0)‖, (N,): the size to which, with ‖x‖, errors and tolerances are relative."""
        return torch.linalg.norm(self.W) * row_norms(self.activation(self.c)) / self.mu

    def prox(self, t: float, x: Tensor) -> Tensor:
        """prox_{tφ}(x), (N, m), 0 < t ≤ 1."""
        return self.map(self._anchor(t, x))

    def envelope(self, t: float, x: Tensor) -> Tensor:
        """M_φ^t(x) = min_p φ(p) + ‖x − p‖²/(2t), (N,), 0 < t ≤ 1."""
        y = self._anchor(t, x)
        return self.at_image(y) + (x - self.map(y)).square().sum(dim=1) / (2 * t)

    def envelope_gradient(self, t: float, x: Tensor) -> Tensor:
        """∇M_φ^t(x) = (x − prox_{tφ}(x))/t, (N, m)."""
        return (x - self.prox(t, x)) / t

    def envelope_hessian(self, t: float, x: Tensor) -> Tensor:
        """∇²M_φ^t(x) = (I − J)(tI + (1 − t)J)⁻¹, J = f'(y), (N, m, m); at a kink of σ, a one-sided one."""
        J = self._jacobian(self._anchor(t, x))
        eye = torch.eye(self.W.shape[1], dtype=x.dtype, device=x.device)
        return torch.linalg.solve(t * eye + (1 - t) * J, eye - J)  # they commute

    def _anchor(self, t: float, x: Tensor) -> Tensor:
        """y with t y + (1 − t) f(y) = x."""
        if not 0 < t <= 1:
            raise ValueError(f"t must lie in (0, 1]. Got {t} instead.")
        y, residual = self._solve(t, x)
        far = residual > 1e-9 * (row_norms(x) + self.size)
        if bool(far.any()):
            row = int(torch.nonzero(far)[0])
            raise RuntimeError(
                f"the proximal map of row {row} was not found: residual {float(residual[row]):.1e}. "
                f"φ must be convex, L_σ‖W‖² ≤ μ."
            )
        return y

    def _solve(self, t: float, x: Tensor) -> tuple[Tensor, Tensor]:
        """Newton's method with step halving on t/2‖y‖² + (1 − t)ψ(y) − ⟨x, y⟩; y and ‖gradient‖."""
        eye = torch.eye(self.W.shape[1], dtype=x.dtype, device=x.device)
        y = x.clone()
        gap = self._gradient(t, y, x)
        size = row_norms(gap)
        scale = row_norms(x) + self.size
        goal = 4 * torch.finfo(x.dtype).eps * scale
        for _ in range(_NEWTON_STEPS):
            open_rows = size > goal
            if not bool(open_rows.any()):
                break
            H = t * eye + (1 - t) * self._jacobian(y)
            damping = (1e-10 if t > 0 else 1e-3) * (size / scale.clamp_min(_TINY)).clamp_max(1.0) + 1e-14
            step = torch.linalg.solve(H + damping[:, None, None] * eye, gap)
            best, found = y, size
            merit = self._merit(t, y, x)
            waiting = open_rows.clone()
            for halving in range(30):
                trial = y - 0.5**halving * step
                rest = row_norms(self._gradient(t, trial, x))
                lower = self._merit(t, trial, x) < merit - 1e-4 * 0.5**halving * (step * gap).sum(dim=1)
                good = waiting & ((rest < 0.5 * size) | (lower & (rest < 10 * size)) | (rest <= goal))
                best = torch.where(good[:, None], trial, best)
                found = torch.where(good, rest, found)
                waiting &= ~good
                if not bool(waiting.any()):
                    break
            if bool(waiting[open_rows].all()):
                break  # at the level of rounding, or without a solution
            y, size = best, found
            gap = self._gradient(t, y, x)
        return y, size

    def _jacobian(self, y: Tensor) -> Tensor:
        """f'(y) = μ⁻¹ WᵀDW, D = diag σ'(W y + c), (N, m, m)."""
        D = self.activation.slope(y @ self.W.T + self.c)  # (N, n)
        return torch.einsum("nm,in,nk->imk", self.W, D, self.W) / self.mu

    def _gradient(self, t: float, y: Tensor, x: Tensor) -> Tensor:
        return t * y + (1 - t) * self.map(y) - x

    def _merit(self, t: float, y: Tensor, x: Tensor) -> Tensor:
        return t / 2 * y.square().sum(dim=1) + (1 - t) * self.psi(y) - (x * y).sum(dim=1)

    def _relu_value(self, z: Tensor) -> Tensor:
        W, mu = self.W.cpu().double().numpy(), self.mu
        N = null_space(W.T)  # (n, n − rank)
        inverse = np.linalg.pinv(W.T)
        values = [
            _least(c, inverse @ (mu * row), N, W, mu, row)
            for c, row in zip(self.c.cpu().double().numpy(), z.cpu().double().numpy(), strict=True)
        ]
        return torch.tensor(values, dtype=z.dtype, device=z.device)


def _least(c: np.ndarray, v: np.ndarray, N: np.ndarray, W: np.ndarray, mu: float, z: np.ndarray) -> float:
    """min μ⁻¹(½‖v‖² − cᵀv) − ½‖z‖² over v ≥ 0, Wᵀv = μz, from one v with Wᵀv = μz and the null space of Wᵀ.

    Over v + N u that is a least-distance problem, min ‖w‖ with N w ≥ h, and a nonnegative least-squares one:
    r = (Nᵀ; hᵀ)s − e has w = −r/r_last [Lawson and Hanson, Solving Least Squares Problems, chapter 23].
    """
    size = np.abs(v).max(initial=0.0)
    both = max(size, np.abs(c).max(initial=0.0))
    if np.abs(W.T @ v - mu * z).max(initial=0.0) > _FEASIBLE * np.linalg.norm(W) * both:
        return math.inf
    nearest = v + N @ (N.T @ (c - v))  # the minimiser without v ≥ 0
    # A z on the boundary, as equilibria are, is off it by rounding: that of z, or of a sum with c
    for slack in (of * s for of in (size, both) for s in _SLACKS):
        v = nearest if (nearest >= -slack).all() else nearest + _least_distance(N, -nearest - slack)
        if np.isfinite(v).all() and (v >= -8 * slack).all():
            break
    else:
        return math.inf
    return float((v @ v / 2 - c @ v) / mu - z @ z / 2)


def _least_distance(N: np.ndarray, h: np.ndarray) -> np.ndarray:
    """N w for the shortest w with N w ≥ h, an h with a positive entry; NaN if there is no such w."""
    scale = np.abs(h).max()
    E = np.vstack([N.T, h / scale])  # w is homogeneous in h
    unit = np.zeros(len(E))
    unit[-1] = 1.0
    s, rest = nnls(E, unit, maxiter=50 * len(h))
    if rest < _FEASIBLE:
        return np.full(len(h), math.nan)
    r = E @ s - unit
    return -scale * (N @ (r[:-1] / r[-1]))


@dataclass(frozen=True)
class QuadraticProgramme:
    """min ½vᵀHv − gᵀv over v with v_i ≥ 0 for i < `signed`, for every row of g."""

    H: Tensor  # (p, p), positive definite
    g: Tensor  # (N, p)
    signed: int

    def value(self, v: Tensor) -> Tensor:
        """½vᵀHv − gᵀv, (N,)."""
        return (v * (v @ self.H / 2 - self.g)).sum(dim=1)

    def solve(self) -> Tensor:
        """v (N, p), by scipy's active-set least squares (`nnls`, or `lsq_linear` with free variables).

        Their tolerances are absolute and v is homogeneous in g: each row is solved in units of its largest.
        """
        H = self.H.detach().cpu().double()
        try:
            L = torch.linalg.cholesky(H)
        except RuntimeError:  # torch.linalg.LinAlgError, by its public base
            raise ValueError(
                "the quadratic programme must be strictly convex: L_σ‖W‖² < μ (of one layer at least); at "
                "equality there may be no minimiser, or many. project_(0.99) makes it so."
            ) from None
        B = torch.linalg.solve_triangular(L, self.g.detach().cpu().double().T, upper=False).T.numpy()
        A, p = L.T.numpy(), len(H)
        scale = np.abs(B).max(axis=1, initial=0.0, keepdims=True)  # (N, 1)
        B = B / np.where(scale > 0, scale, 1.0)
        if self.signed == p:
            rows = [nnls(A, b, maxiter=50 * p)[0] for b in B]
        else:
            low = np.r_[np.zeros(self.signed), np.full(p - self.signed, -np.inf)]
            rows = [lsq_linear(A, b, (low, np.inf), method="bvls", tol=1e-15, max_iter=50 * p).x for b in B]
        return torch.as_tensor(scale * np.array(rows).reshape(len(B), p)).to(self.g)
