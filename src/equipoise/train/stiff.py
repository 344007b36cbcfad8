"""(I + c JᵀCJ)⁻¹ b = b − c JᵀC^½ (I + c C^½KC^½)⁻¹ C^½ J b: Newton steps of a stiff method on θ' = −∇L(θ).

J = ∂ŷ/∂θ (Nk × parameters), C = diag ∂²ℓ/∂ŷ² ≥ 0 and K = JJᵀ, the tangent kernel. The field −∇L is
differentiated as Gauss and Newton do, by −JᵀCJ: all that is stiff lies in it. Jᵀ is the family's pullback, K
its gram, J the transpose of the pullback by autograd; only the dense methods form a Jacobian.

scipy's BDF chooses orders and steps well, and takes Jacobians as matrices only. Here a Jacobian has a row
for each parameter, and solving with it needs no more than the kernel, N × N for one output. So GaussNewton
offers the few operations by which BDF forms and solves its Newton systems, 1 − c·J and `solve`, instead of
the entries of a matrix.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.integrate import BDF
from scipy.sparse import csc_matrix
from torch import Tensor

from ..models.affine import AffineFamily


class GaussNewton:
    """−JᵀCJ at the model's weights, Z, and V; the curvature C (like ŷ) is that of a convex loss."""

    __array_ufunc__ = None  # so that c * self, with c of numpy, is a call of __rmul__

    def __init__(self, model: AffineFamily, X: Tensor, Z: Tensor, V: Tensor, C: Tensor) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)  # a solver holds it while the weights go on
        self.X, self.Z, self.V = X, Z, V
        self.root = C.clamp_min(0.0).sqrt()  # C^½, like ŷ
        with torch.no_grad():
            blocks = model.gram(V, Z, X, V, Z, X)
            K = torch.stack(list(blocks.values())).sum(dim=0).reshape(C.numel(), C.numel())
        s = self.root.flatten()
        self.kernel = s[:, None] * K * s  # C^½KC^½, (Nk, Nk)

    @property
    def fastest(self) -> float:
        """λ_max(JᵀCJ), the rate of the fastest mode."""
        return max(float(torch.linalg.eigvalsh(self.kernel)[-1]), 0.0) if self.kernel.numel() else 0.0

    def pull(self, R: Tensor) -> Tensor:
        """Jᵀ R, a vector of all parameters, from R like ŷ."""
        return flatten(self.model.pullback(self.V, R, self.Z, self.X))

    def push(self, b: Tensor) -> Tensor:
        """J b, like ŷ: Jᵀ is linear, so that J b is the gradient of ⟨Jᵀ R, b⟩ in R."""
        with torch.enable_grad():
            R = torch.zeros_like(self.root, requires_grad=True)
            (found,) = torch.autograd.grad((self.pull(R) * b).sum(), R)
        return found

    def dense(self) -> np.ndarray:
        """−JᵀCJ as a matrix, for the methods that know no other."""
        with torch.no_grad():
            rows = torch.diag(self.root.flatten()).reshape(-1, *self.root.shape)
            J = torch.func.vmap(self.pull)(rows)  # C^½J, (Nk, parameters)
            return -(J.T @ J).cpu().numpy()

    def __rmul__(self, c: float) -> _Scaled:
        return _Scaled(self, float(c))


class _Scaled:
    """c·(−JᵀCJ); taken from 1, the identity, it leaves the Newton matrix I + c JᵀCJ, factored."""

    def __init__(self, of: GaussNewton, c: float) -> None:
        self.of, self.c = of, c

    def __rsub__(self, identity: float) -> _Factored:
        S = self.c * self.of.kernel
        S.diagonal().add_(identity)
        return _Factored(self.of, self.c, torch.linalg.cholesky(S))


class _Factored:
    def __init__(self, of: GaussNewton, c: float, L: Tensor) -> None:
        self.of, self.c, self.L = of, c, L

    def solve(self, b: np.ndarray) -> np.ndarray:
        at, right = self.of, torch.from_numpy(b).to(self.L.device)
        v = (at.root * at.push(right)).reshape(-1, 1)
        w = torch.cholesky_solve(v, self.L).reshape(at.root.shape)
        with torch.no_grad():
            return (right - self.c * at.pull(at.root * w)).cpu().numpy()


class GaussNewtonBDF(BDF):
    """scipy's BDF (orders 1 to 5, variable step) with `curvature(t, θ)`, a GaussNewton, for its Jacobian."""

    def __init__(
        self,
        fun: Callable[[float, np.ndarray], np.ndarray],
        t0: float,
        y0: np.ndarray,
        t_bound: float,
        curvature: Callable[[float, np.ndarray], GaussNewton],
        **options: Any,
    ) -> None:
        nothing = csc_matrix((len(y0), len(y0)))  # in place of a dense matrix of that size
        super().__init__(fun, t0, y0, t_bound, jac=nothing, **options)
        self.D[2:] = 0.0  # scipy leaves the higher differences unset, and subtracts them once

        def counted(t: float, theta: np.ndarray) -> GaussNewton:
            self.njev += 1
            return curvature(t, theta)

        self.jac, self.J, self.I = counted, counted(t0, y0), 1.0
        self.lu = self._factored
        self.solve_lu = lambda factored, b: factored.solve(b)

    def _factored(self, matrix: _Factored) -> _Factored:
        self.nlu += 1
        return matrix


def flatten(tensors: dict[str, Tensor]) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([t.reshape(-1) for t in tensors.values()])
