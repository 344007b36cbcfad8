"""Z = γ Z Sᵀ + φ(X),  S = softmax of each column of A,  ŷ = Z Bᵀ: the linear model of [kawaguchi2021].

With Umat = I − γS and M = B Umat⁻¹ (k, m) it predicts ŷ = φ(X) Mᵀ. One LU of Umat serves the forward and
the backward pass with k right-hand sides each; nothing is iterated, and training never forms Z.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn

from ...checks import within
from ...differentiate.equation import under_transform
from ...solve import IDENTITY, AffineMap, Counts, Solution, Status, Stop
from ...solve.autocast import full_precision, unlowered
from ...solve.compilers import uncompiled
from ...solve.error import Solved
from ...solve.norms import norm_dtype, row_norms
from ..base import Start
from ..checks import checked_map, features_of, finite_matrix, given_start, name_of
from ..draws import Draws
from ..norms import spectral_norm
from .blocks import readout_block, squeeze_blocks, weigh
from .family import AffineFamily


class LinearEquilibrium(AffineFamily):
    """Z = γ Z Sᵀ + φ(X),  S = softmax of each column of A,  ŷ = Z Bᵀ.    [kawaguchi2021]

    ‖γS‖₁ = γ < 1 for every A, so every input has exactly one equilibrium, whatever the parameters are. ŷ is
    (N, k), for k = 1 too.

    Args:
        features, outputs: m and k.
        gamma: γ ∈ (0, 1).
        feature_map: φ, from X to (N, m); if it is a module, its parameters are trained too.
            By default φ(x) = x.

    The start is A_ij, B_ij ~ N(0, 1/m). Equilibria are computed by a factorisation; `solver=` iterates
    instead, for comparison. Without it `start` and `stop` are not needed, though `solve` still compares the
    true residual with `stop`.
    """

    readout_name = "B"
    natural_loss = "square"
    direct = True
    activation = IDENTITY
    described = (
        "Z = γ Z Sᵀ + φ(X), S = softmax of each column of A, ŷ = Z Bᵀ; m={0.width}, k={0.outputs}, "
        "gamma={0.gamma:g}"
    )

    def __init__(
        self,
        features: int,
        outputs: int = 1,
        gamma: float = 0.8,
        feature_map: Callable[[Tensor], Tensor] | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(features, features, outputs)
        within("gamma", gamma, "(0, 1)")
        self.gamma = float(gamma)
        self.feature_map = checked_map(feature_map, features)
        make, m = Draws(dtype, device, generator), features
        self.A = nn.Parameter(make.normal(m, m) / m**0.5)
        self.B = nn.Parameter(make.normal(outputs, m) / m**0.5)

    def weight(self) -> Tensor:
        """γS, (m, m)."""
        return self.gamma * torch.softmax(self.A, dim=0)

    def injection(self, X: Tensor) -> Tensor:
        """Φ = φ(X), (N, m)."""
        return X if self.feature_map is None else features_of(self.feature_map, X, self.width)

    @property
    def readout_weight(self) -> Tensor:
        """Bᵀ, (m, k)."""
        return self.B.T

    def umat(self) -> Tensor:
        """Umat = I − γS, (m, m)."""
        return torch.eye(self.width, dtype=self.A.dtype, device=self.A.device) - self.weight()

    @uncompiled
    @unlowered
    def predictor(self) -> Tensor:
        """M = B Umat⁻¹, (k, m), with ŷ = Φ Mᵀ. Differentiable to every order."""
        wide = norm_dtype(self.A)  # torch factorises nothing in half precision
        if under_transform() or wide != self.A.dtype:
            return _predict(self.A.to(wide), self.B.to(wide), self.gamma).to(self.A.dtype)
        return _Predictor.apply(self.A, self.B, self.gamma)

    @unlowered
    def forward(self, X: Tensor, **how: Any) -> Tensor:  # type: ignore[override]
        """ŷ = Φ Mᵀ, (N, k)."""
        if self._iterates(how):
            return super().forward(X, **how)
        return self.injection(self._check_inputs(X)) @ self.predictor().T

    @unlowered
    def equilibrium(self, X: Tensor, **how: Any) -> Tensor:  # type: ignore[override]
        """Z = Φ Umat⁻ᵀ, (N, m), differentiable."""
        if self._iterates(how):
            return super().equilibrium(X, **how)
        Phi = self.injection(self._check_inputs(X))
        wide = norm_dtype(Phi)
        return torch.linalg.solve(self.umat().T.to(wide), Phi.to(wide), left=False).to(Phi.dtype)

    def _iterates(self, how: dict[str, Any]) -> bool:
        """Whether a call names a solver: without one nothing is iterated."""
        own = {name: value for name, value in how.items() if name != "start"}
        return self.method.changed(**own).solver is not None

    @torch.no_grad()
    def solve(  # type: ignore[override]
        self, X: Tensor, *, start: Start = None, problem: AffineMap | None = None, **how: Any
    ) -> Solution:
        """The Solution of Z = γ Z Sᵀ + Φ: its residuals are measured, though there is nothing to iterate."""
        if self._iterates(how):
            return super().solve(X, start=start, problem=problem, **how)
        given_start(start, (len(self._check_inputs(X)), self.width))
        Z = self.equilibrium(X)
        problem = problem or self.affine_map(X)
        return replace(_direct(Z, problem(Z), how.get("stop")), solved=Solved.of(problem))

    @torch.no_grad()
    @unlowered
    def solve_adjoint(
        self, Z: Tensor, X: Tensor, *, weights: Tensor | None = None, start: Start = None, **how: Any
    ) -> Solution:
        """The Solution of V = 1 B + V γS, (N, k, m): the same M for every sample, stored once."""
        if how.get("solver") is not None:
            return super().solve_adjoint(Z, X, weights=weights, start=start, **how)
        stop = how.get("stop")
        N, M = len(self._check_inputs(X)), self.predictor()
        again = self.B + M @ self.weight()
        if weights is not None:
            given_start(start, (N, self.width))
            R = weights.reshape(N, self.outputs)
            return _direct(R @ M, R @ again, stop)
        shape = self.adjoint_shape(N)
        given_start(start, shape)
        return _direct(M.expand(shape), again.expand(shape), stop)

    def output_shape(self, N: int) -> tuple[int, ...]:
        """(N, k), for one output too."""
        return N, self.outputs

    def adjoint_shape(self, N: int) -> tuple[int, ...]:
        """(N, k, m), for one output too."""
        return N, self.outputs, self.width

    def _masks(self, problem: AffineMap, Z: Tensor, image: Tensor | None = None) -> Tensor:
        return torch.ones_like(Z)

    @unlowered
    def pullback(self, V: Tensor, R: Tensor, Z: Tensor, X: Tensor) -> dict[str, Tensor]:
        """∇B = Rᵀ Z,  ∇A = γ (T − S diag(1ᵀ T)),  T = S ∘ (Vᵀ diag(r) Z).  Columns of ∇A sum to 0."""
        self._refuse_trained_features()
        S = torch.softmax(self.A, dim=0)
        T = S * (weigh(V, R).T @ Z)
        return {"A": self.gamma * (T - S * T.sum(dim=0)), "B": R.T @ Z}

    @unlowered
    def gram(self, V: Tensor, Z: Tensor, X: Tensor, V2: Tensor, Z2: Tensor, X2: Tensor) -> dict[str, Tensor]:
        """K_B = ZZᵀ,  K_A = γ² Z diag(⟨J_jᵀM_pᵀ, J_jᵀM_qᵀ⟩) Zᵀ,  J_j = diag(s_j) − s_j s_jᵀ.

        V holds M for every sample.
        """
        self._refuse_trained_features()
        M, M2 = (v[:1].sum(dim=0) for v in (V, V2))  # (k, m), zero of an empty batch
        C = couplings(M, M2, torch.softmax(self.A, dim=0))  # (k, k, m)
        return squeeze_blocks(
            {
                "A": self.gamma**2 * torch.einsum("ij,pqj,lj->iplq", Z, C, Z2),
                "B": readout_block(Z, Z2, self.outputs),
            }
        )

    def _refuse_trained_features(self) -> None:
        if isinstance(self.feature_map, nn.Module) and any(
            p.requires_grad for p in self.feature_map.parameters()
        ):
            raise ValueError(
                "the structured gradients and the tangent kernel are those of A and B: φ is not trained. "
                "Got a feature_map with trained parameters instead: freeze it with "
                "feature_map.requires_grad_(False), or train by loss.backward()."
            )

    def contraction(self) -> float:
        """γ = ‖γS‖₁, in the ℓ₁ norm."""
        return self.gamma

    def resolvent_bound(self) -> float:
        """√m/(1 − γ) ≥ ‖Umat⁻¹‖, for every A, since ‖Umat⁻¹‖₁ = 1/(1 − γ)."""
        return self.width**0.5 / (1 - self.gamma)

    def check_wellposed(self) -> None:
        """Raise a ValueError unless A is finite; with every finite A there is one equilibrium."""
        finite_matrix("A", self.A)

    def config(self) -> dict[str, Any]:
        """m, k and γ, and the name of the feature map."""
        settings: dict[str, Any] = {"features": self.width, "outputs": self.outputs, "gamma": self.gamma}
        if self.feature_map is not None:
            settings["feature_map"] = name_of(self.feature_map)
        return settings

    def _check_inputs(self, X: Tensor) -> Tensor:
        """A feature map takes X of any shape, (N, …)."""
        if self.feature_map is None or not isinstance(X, Tensor):
            return super()._check_inputs(X)
        if X.ndim < 1:
            raise ValueError("X must be batch-first, (N, …). Got a scalar instead.")
        return X


def _direct(Z: Tensor, fZ: Tensor, stop: Stop | None) -> Solution:
    """A solution by factorisation, with its residual measured as any other's."""
    limit = (stop or Stop()).resolve(Z.dtype)
    residual, scale = (row_norms(T.flatten(1) if len(T) else T.reshape(0, 1)) for T in (fZ - Z, fZ))
    good = residual <= limit.tolerance(scale)
    status = torch.where(good, int(Status.converged), int(Status.stalled)).to(torch.int8)
    status[~torch.isfinite(residual + scale)] = int(Status.nonfinite)
    steps = torch.zeros(len(Z), dtype=torch.int64, device=Z.device)
    return Solution(Z, status, residual, scale, steps, Counts(1, len(Z)), limit, "LU")


# -- M = B Umat⁻¹ and its gradient -----------------------------------------------------------------------


_WIDE = 256  # from here on a single-precision LU and its corrections cost less than a double-precision one
_CORRECTIONS = 8


def _predict(A: Tensor, B: Tensor, gamma: float) -> Tensor:
    eye = torch.eye(len(A), dtype=A.dtype, device=A.device)
    return torch.linalg.solve(eye - gamma * torch.softmax(A, dim=0), B, left=False)


class _Predictor(torch.autograd.Function):
    """(A, B) ↦ M = B Umat⁻¹, and back with the same LU: ∇B = Q, ∇A = γS ∘ (MᵀQ − 1c), where

    Q = G Umat⁻ᵀ and c_j = Σ_p (M S)_pj Q_pj, and γ M S = M − B: a product of inner dimension k + 1.
    """

    @staticmethod
    def forward(ctx: Any, A: Tensor, B: Tensor, gamma: float) -> Tensor:
        S = torch.softmax(A, dim=0)
        umat = -gamma * S
        umat.diagonal().add_(1)
        LU, pivots = torch.linalg.lu_factor(umat.float() if len(A) >= _WIDE else umat)
        M = _right_solve(B, umat, LU, pivots)
        ctx.gamma = gamma
        ctx.save_for_backward(A, B, S, umat, LU, pivots, M)
        return M

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, Tensor, None]:
        A, B, S, umat, LU, pivots, M = ctx.saved_tensors
        with full_precision(A):
            if torch.is_grad_enabled():  # differentiated again: the same formulas, as a graph
                dA, dB = torch.func.vjp(lambda A, B: _predict(A, B, ctx.gamma), A, B)[1](G)
                return dA, dB, None
            Q = _right_solve(G, umat, LU, pivots, adjoint=True)
            c = ((M - B) * Q).sum(dim=0, keepdim=True)  # γ c, (1, m)
            left = torch.cat([ctx.gamma * M, -torch.ones_like(c)])  # (k + 1, m)
            return (left.T @ torch.cat([Q, c])).mul_(S), Q, None


def _right_solve(B: Tensor, umat: Tensor, LU: Tensor, pivots: Tensor, adjoint: bool = False) -> Tensor:
    """B Umat⁻¹ (or Umat⁻ᵀ) by an LU of Umat, refined to a residual of double precision if that is single.

    Factoring is most of the work, and twice as fast in single; a correction costs products of k rows.
    """

    def solve(rows: Tensor) -> Tensor:
        rows = rows.to(LU.dtype)
        return torch.linalg.lu_solve(LU, pivots, rows, left=False, adjoint=adjoint).to(umat.dtype)

    M = solve(B)
    if LU.dtype == umat.dtype:
        return M
    matrix, limit = umat.T if adjoint else umat, 16 * torch.finfo(umat.dtype).eps
    for _ in range(_CORRECTIONS):
        rest = B - M @ matrix
        if bool((row_norms(rest) <= limit * (row_norms(B) + row_norms(M))).all()):
            return M
        M = M + solve(rest)
    return torch.linalg.solve(matrix, B, left=False)


# -- the operator of Theorem 1 ---------------------------------------------------------------------------


def couplings(M: Tensor, M2: Tensor, S: Tensor) -> Tensor:
    """⟨J_jᵀM_pᵀ, J_jᵀM2_qᵀ⟩ for every column j, (k, k, m), with J_j = diag(s_j) − s_j s_jᵀ."""
    Y, Y2 = (S * (m[:, :, None] - (m @ S)[:, None, :]) for m in (M, M2))  # (k, m, m): J_jᵀM_pᵀ in column j
    return torch.einsum("plj,qlj->pqj", Y, Y2)


@dataclass(frozen=True)
class DOperator:
    """D[V] = Y Umat⁻¹,  Y_·j = Q_j (V Umat⁻ᵀ)_·j,  Q_j = I + γ² M J_j J_jᵀ Mᵀ.    [kawaguchi2021, Theorem 1]

    Gradient flow moves M by −D[∇L₀(M)]. D is km × km and is never formed.
    """

    umat: Tensor  # (m, m)
    Q: Tensor  # (m, k, k)

    def __call__(self, V: Tensor) -> Tensor:
        """D[V], (k, m)."""
        Y = torch.einsum("jpq,qj->pj", self.Q, torch.linalg.solve(self.umat.T, V, left=False))
        return torch.linalg.solve(self.umat, Y, left=False)

    def solve(self, V: Tensor) -> Tensor:
        """D⁻¹[V] = Y Umatᵀ,  Y_·j = Q_j⁻¹ (V Umat)_·j."""
        return torch.linalg.solve(self.Q, (V @ self.umat).T[:, :, None])[:, :, 0].T @ self.umat.T

    def lambda_min(self) -> float:
        """λ_min(D) ≥ 1/(m(1+γ)²): 1/‖Umat diag(s)^(−½)‖² for k = 1, else by Lanczos on D⁻¹."""
        m, k = self.Q.shape[:2]
        if k == 1:
            return spectral_norm(self.umat / self.Q[:, 0, 0].sqrt()) ** -2

        def product(v: Any) -> Any:
            return self.solve(torch.as_tensor(v).reshape(k, m)).flatten().numpy()

        inverse = LinearOperator((k * m, k * m), matvec=product, dtype=float)
        start = torch.ones(k * m, dtype=torch.float64).numpy()
        return 1 / float(eigsh(inverse, k=1, which="LA", v0=start, return_eigenvectors=False)[0])


@torch.no_grad()
def d_operator(model: LinearEquilibrium) -> DOperator:
    """D at the model's parameters, in float64."""
    A, B = model.A.double(), model.B.double()
    S, M = torch.softmax(A, dim=0), _predict(A, B, model.gamma)
    eye = torch.eye(model.width, dtype=A.dtype, device=A.device)
    one = torch.eye(model.outputs, dtype=A.dtype, device=A.device)
    Q = one + model.gamma**2 * couplings(M, M, S).permute(2, 0, 1)  # (m, k, k)
    return DOperator(eye - model.gamma * S, Q)
