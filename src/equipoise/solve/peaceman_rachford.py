"""h = 2z − q; ẑ = (I + α(I − W))⁻¹(h + αb); q ← 2ẑ − h; z ← prox_{αφ}(q)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .problem import AffineMap, Map
from .solver import SolverState, shared
from .splitting import Splitting, parts


@dataclass
class PeacemanRachfordState(SolverState):
    """The reflection of every row, what its bias adds, and the step that all rows share."""

    h: Tensor  # (n, m) = 2z − q, the reflection of q in z = prox_{αφ}(q)
    c: Tensor  # (n, m) = 2α (I + αM)⁻¹ b
    alpha: float = shared()


@dataclass(frozen=True)
class PeacemanRachford(Splitting):
    """h = 2z − q; ẑ = (I + αM)⁻¹(h + αb); q ← 2ẑ − h; z ← prox_{αφ}(q), with M = I − W [hieu2022].

    Written with the Cayley transform C = 2(I + αM)⁻¹ − I it is q ← C h + 2α(I + αM)⁻¹b: one product with a
    matrix that is computed once for each W and α, for any α > 0. The reflection h does not expand, and

        ‖C‖² = max (1 − 2αt + α²s)/(1 + 2αt + α²s) over ‖x‖ = 1, t = ⟨x, Mx⟩ ≥ μ, s = ‖Mx‖² ≤ λt,

    where λ is the least number with ‖Mx‖² ≤ λ⟨x, Mx⟩ (1/λ is how cocoercive M is). The quotient is largest
    at t = μ, s = λμ, and so least for α = 1/√(λμ), the default: q then contracts by √((√λ − √μ)/(√λ + √μ)).
    Always λ ≤ ℓ²/μ. If ℓ is given, λ = ℓ²/μ is used without computing anything from W: then α = 1/ℓ.

    I + αM has a condition number of at most 1 + √(λ/μ), so that an explicit inverse loses little.
    """

    def alpha(self, affine: AffineMap) -> float:
        """The step α: as given, or the one with the best bound on the rate."""
        if self.step_size is not None:
            return self.step_size
        return 1 / math.sqrt(math.prod(self.constants(affine)))

    def rate(self, affine: AffineMap) -> float:
        """√((1 − 2αμ + α²λμ)/(1 + 2αμ + α²λμ))."""
        alpha, (margin, curvature) = self.alpha(affine), self.constants(affine)
        s = 1 + alpha**2 * curvature * margin
        return math.sqrt(max(0.0, s - 2 * alpha * margin) / (s + 2 * alpha * margin))

    def constants(self, affine: AffineMap) -> tuple[float, float]:
        """μ and λ."""
        margin = self.margin_of(affine)
        if self.lipschitz is not None:
            return margin, self.lipschitz**2 / margin
        if "curvature" not in affine.cache:
            affine.cache["curvature"] = _curvature(affine.weight)
        if not affine.cache["curvature"] < math.inf:
            raise self.not_monotone("a sym(I − W) that is not positive definite")
        return margin, affine.cache["curvature"]

    def init(self, f: Map, z: Tensor) -> PeacemanRachfordState:
        """The reflection of z, with the Cayley transform computed once for each W and α."""
        affine = parts(f)
        self.margin_of(affine)  # raises if I − W is not strongly monotone
        prox, alpha = self.prox(affine), self.alpha(affine)
        bias = alpha * affine.bias
        c = torch.addmm(bias, bias, _cayley(affine, alpha).T)
        q = torch.lerp(z, affine.preactivation(z), alpha)  # z − α(Mz − b): at an equilibrium, its own q
        return PeacemanRachfordState(torch.lerp(q, prox(q, alpha), 2.0), c, alpha)

    def step(
        self, f: Map, z: Tensor, fz: Tensor, state: PeacemanRachfordState
    ) -> tuple[Tensor, PeacemanRachfordState]:
        """One reflection along I − W and one along ∂φ."""
        affine, alpha = parts(f), state.alpha
        q = torch.addmm(state.c, state.h, _cayley(affine, alpha).T)
        z = self.prox(affine)(q, alpha)
        state.h = torch.lerp(q, z, 2.0)  # 2z − q
        return z, state


def _curvature(weight: Tensor) -> float:
    """λ = max ‖Mx‖²/⟨x, Mx⟩ = ‖L⁻¹Mᵀ‖² with sym(M) = LLᵀ; infinite where M is not strongly monotone."""
    m = torch.eye(len(weight), dtype=torch.float64, device=weight.device) - weight.double()
    factor, info = torch.linalg.cholesky_ex((m + m.T) / 2)
    if int(info):
        return math.inf
    return (
        float(torch.linalg.matrix_norm(torch.linalg.solve_triangular(factor, m.T, upper=False), ord=2)) ** 2
    )


def _cayley(affine: AffineMap, alpha: float) -> Tensor:
    """C = 2(I + αM)⁻¹ − I, shared by every map with this W. It is computed in float64 and then rounded,
    because its error limits the accuracy of every solve with it."""
    weight = affine.weight
    key = ("cayley", alpha, weight.dtype)
    if key not in affine.cache:
        eye = torch.eye(len(weight), dtype=torch.float64, device=weight.device)
        inverse = torch.linalg.inv((1 + alpha) * eye - alpha * weight.double())
        affine.cache[key] = (2 * inverse - eye).to(weight.dtype)
    return affine.cache[key]
