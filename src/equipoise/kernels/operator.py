"""H v = J (Jᵀ v): the tangent kernel as an operator, for data sets whose matrix H does not fit into memory.

A product costs two passes over the rows, O(N P) operations for P parameters, while H would take N² numbers.
Eigenvalues that are found from products alone are estimates, because Ritz values lie inside the spectrum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, cg
from torch import Tensor, nn

from ..checks import integer, positive
from ..linalg.estimates import Estimate, estimate_lambda_max, estimate_lambda_min
from ..solve import Stop
from .rows import rows_of
from .tiles import KernelRows, PairTiles, slices

ROWS = 4096  # that a product takes at a time


class NotConverged(RuntimeError):
    """Conjugate gradients have not reached the accuracy that was asked for."""


def tangent_operator(
    model: nn.Module, X: Tensor, X2: Tensor | None = None, *, stop: Stop | None = None
) -> TangentOperator:
    """The tangent kernel of a model between the rows of X and of X2 (by default X itself), as an operator.

    It holds the equilibria and adjoints, (N, m) and (N, k, m), and never a matrix of N² numbers. `model` and
    `stop` are those of `tangent_kernel`. It is a LinearOperator of scipy, (N k, N2 k).
    """
    return TangentOperator(rows_of(model, X, stop), None if X2 is None else rows_of(model, X2, stop), X.dtype)


class TangentOperator(LinearOperator):
    """v ↦ J (J2ᵀ v), with J of the rows `one` and J2 of the rows `two`, by default the same."""

    def __init__(self, one: KernelRows, two: KernelRows | None, dtype: torch.dtype) -> None:
        self.one, self.two = one, two
        self.outputs = one.outputs
        self.torch_dtype = dtype
        shape = tuple(len(rows) * self.outputs for rows in (one, two or one))
        super().__init__(torch.empty(0, dtype=dtype).numpy().dtype, shape)

    def _matvec(self, v: np.ndarray) -> np.ndarray:
        return self.product(torch.from_numpy(np.ascontiguousarray(v).reshape(-1))).numpy()

    def _adjoint(self) -> TangentOperator:
        return self if self.two is None else TangentOperator(self.two, self.one, self.torch_dtype)

    @torch.no_grad()
    def product(self, v: Tensor) -> Tensor:
        """J (J2ᵀ v), (N k,), of v (N2 k,)."""
        rows, backs = self.two or self.one, []
        R, G = v.to(self.torch_dtype).reshape(len(rows), self.outputs), None
        for at in slices(0, len(rows), ROWS):
            found, back, *_ = torch.func.vjp(rows.take(at).pull, R[at])
            G = found if G is None else {name: G[name] + found[name] for name in G}
            if self.two is None:
                backs.append(back)  # pull is R ↦ Jᵀ R, a linear map, so its own pullback is J
        assert G is not None
        if self.two is not None:
            zeros = R.new_zeros(len(self.one), self.outputs)
            parts = slices(0, len(self.one), ROWS)
            backs = [torch.func.vjp(self.one.take(at).pull, zeros[at])[1] for at in parts]
        return torch.cat([back(G)[0] for back in backs]).reshape(-1)

    def _square(self) -> None:
        if self.two is not None:
            raise ValueError(f"a square kernel is needed (X2 left out). Got shape {self.shape} instead.")

    def lambda_max(self, steps: int = 30, generator: torch.Generator | None = None) -> Estimate:
        """About λ_max, from below, by `steps` products (Lanczos)."""
        return self._extreme(estimate_lambda_max, steps, generator)

    def lambda_min(self, steps: int = 60, generator: torch.Generator | None = None) -> Estimate:
        """About λ_min, from above, by `steps` products (Lanczos); its residual says how far off it may be."""
        return self._extreme(estimate_lambda_min, steps, generator)

    def _extreme(self, estimate: Any, steps: int, generator: torch.Generator | None) -> Estimate:
        self._square()
        found: Estimate = estimate(
            self.product, torch.empty(self.shape[0], dtype=self.torch_dtype), steps, generator
        )
        return found

    @cached_property
    def diagonal(self) -> Tensor:
        """H_ii of every row and output, (N k,), exactly."""
        self._square()
        tile, found, side = PairTiles(self.one), [], max(1, 64 // self.outputs)
        for at in slices(0, len(self.one), side):
            blocks = tile(at, at).values()
            found += [sum(b.reshape((at.stop - at.start) * self.outputs, -1).diagonal() for b in blocks)]
        return torch.cat(found)  # type: ignore[arg-type]

    def nystrom(self, landmarks: int, generator: torch.Generator | None = None) -> Nystrom:
        """H ≈ F Fᵀ from the columns of `landmarks` random rows; F has (N k) × (landmarks k) numbers."""
        self._square()
        integer("landmarks", landmarks)
        N, k = len(self.one), self.outputs
        drawn = torch.randperm(N, generator=generator)[: min(landmarks, N)].sort().values
        few = self.one.take(drawn)  # type: ignore[arg-type]
        tile = PairTiles(self.one, few)
        every = slice(0, len(drawn))
        C = torch.cat([_matrix(tile(at, every), k) for at in slices(0, N, max(1, 1024 // k))])
        values, vectors = torch.linalg.eigh(_matrix(PairTiles(few)(every, every), k).double())
        seen = values > values[-1].clamp_min(0) * len(values) * torch.finfo(self.torch_dtype).eps
        F = C @ (vectors[:, seen] / values[seen].sqrt()).to(C)
        whole = float(self.diagonal.double().sum())
        return Nystrom(F, max(0.0, whole - float(F.double().square().sum())), whole)

    def regression(
        self,
        y: Tensor,
        ridge: float,
        *,
        landmarks: int = 0,
        rtol: float = 1e-8,
        steps: int = 1000,
        generator: torch.Generator | None = None,
    ) -> Regression:
        """α with (H + λ I) α = y by conjugate gradients, to ‖(H + λ I) α − y‖ ≤ rtol ‖y‖.

        `landmarks` rows precondition it by Nyström's approximation, which saves products where H has few
        large eigenvalues. `y` is (N,) or (N, k). Raises NotConverged after `steps` products.
        """
        self._square()
        positive("ridge", ridge)
        b = y.detach().to(self.torch_dtype).reshape(-1).numpy()
        if b.shape != (self.shape[0],):
            raise ValueError(f"y must have {self.shape[0]} numbers. Got shape {tuple(y.shape)} instead.")
        taken = [0]

        def shifted(v: np.ndarray) -> np.ndarray:
            taken[0] += 1
            return self._matvec(v) + ridge * v.reshape(-1)

        before = self.nystrom(landmarks, generator).preconditioner(ridge) if landmarks else None
        A = LinearOperator(self.shape, matvec=shifted, dtype=self.dtype)
        alpha, failed = cg(A, b, rtol=rtol, atol=0.0, maxiter=steps, M=before)
        left = float(np.linalg.norm(shifted(alpha) - b)) / (float(np.linalg.norm(b)) or 1.0)
        if failed or not left <= 10 * rtol:  # the residual that cg updates drifts away from the true one
            raise NotConverged(
                f"kernel regression must reach a relative residual of {rtol:g}. It is at {left:.2g} after "
                f"{taken[0]} products: allow more steps, or take a larger ridge, more landmarks or float64."
            )
        return Regression(torch.from_numpy(alpha), taken[0], left)


def _matrix(blocks: dict[str, Tensor], outputs: int) -> Tensor:
    first, *others = blocks.values()
    for block in others:
        first = first + block
    return first.reshape(len(first) * outputs, -1)


@dataclass(frozen=True, eq=False)
class Regression:
    """α = (H + λ I)⁻¹ y, the products it took, and the relative residual that is left, computed anew."""

    alpha: Tensor  # (N k,)
    products: int
    residual: float


@dataclass(frozen=True, eq=False)
class Nystrom:
    """H ≈ F Fᵀ. H − F Fᵀ is positive semidefinite, so its trace bounds its norm, up to rounding."""

    factor: Tensor  # F (N k, r)
    error: float  # tr(H − F Fᵀ) ≥ ‖H − F Fᵀ‖
    trace: float  # tr H

    def preconditioner(self, ridge: float) -> LinearOperator:
        """(F Fᵀ + λ I)⁻¹ = (I − F (FᵀF + λ I)⁻¹ Fᵀ)/λ."""
        F = self.factor
        L = torch.linalg.cholesky(
            F.double().T @ F.double() + ridge * torch.eye(F.shape[1], dtype=torch.float64)
        )

        def solve(v: np.ndarray) -> np.ndarray:
            x = torch.from_numpy(np.ascontiguousarray(v).reshape(-1)).to(F)
            inner = torch.cholesky_solve((F.T @ x).double()[:, None], L)[:, 0].to(F)
            return ((x - F @ inner) / ridge).numpy()

        return LinearOperator((len(F), len(F)), matvec=solve, dtype=F.numpy().dtype)
