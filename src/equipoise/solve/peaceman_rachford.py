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
    h: Tensor  # (n, m) = 2z − q, the reflection of q in z = prox_{αφ}(q)
    c: Tensor  # (n, m) = 2α (I + αM)⁻¹ b
    alpha: float = shared()


@dataclass(frozen=True)
class PeacemanRachford(Splitting):
    """h = 2z − q; ẑ = (I + αM)⁻¹(h + αb); q ← 2ẑ − h; z ← prox_{αφ}(q), with M = I − W [hieu2022].

    Written with the Cayley transform C = 2(I + αM)⁻¹ − I it is q ← C h + 2α(I + αM)⁻¹b: one product with a
    matrix that is computed once for each W and α. The reflection h does not expand, and
    ‖C‖² = max (1 − 2αt + α²s)/(1 + 2αt + α²s) over t = ⟨x, Mx⟩ ≥ μ, s = ‖Mx‖² ≤ ℓ², ‖x‖ = 1, falls in t and
    grows in s. So q contracts, for every α > 0, by √((1 − 2αμ + α²ℓ²)/(1 + 2αμ + α²ℓ²)), which is least at
    α = 1/ℓ, the default: √((ℓ − μ)/(ℓ + μ)).

    There I + αM has a condition number of at most 2, so that an explicit inverse loses nothing.
    """

    def alpha(self, affine: AffineMap) -> float:
        return 1 / self.constants(affine)[1] if self.step_size is None else self.step_size

    def rate(self, affine: AffineMap) -> float:
        """√((1 − 2αμ + α²ℓ²)/(1 + 2αμ + α²ℓ²))."""
        alpha, (margin, lipschitz) = self.alpha(affine), self.constants(affine)
        s = 1 + (alpha * lipschitz) ** 2
        return math.sqrt(max(0.0, s - 2 * alpha * margin) / (s + 2 * alpha * margin))

    def init(self, f: Map, z: Tensor) -> PeacemanRachfordState:
        affine = parts(f)
        self.constants(affine)  # refuses a W without a margin
        prox, alpha = self.prox(affine), self.alpha(affine)
        bias = alpha * affine.bias
        c = torch.addmm(bias, bias, _cayley(affine, alpha).T)
        q = torch.lerp(z, affine.preactivation(z), alpha)  # z − α(Mz − b): at an equilibrium, its own q
        return PeacemanRachfordState(torch.lerp(q, prox(q, alpha), 2.0), c, alpha)

    def step(
        self, f: Map, z: Tensor, fz: Tensor, state: PeacemanRachfordState
    ) -> tuple[Tensor, PeacemanRachfordState]:
        affine, alpha = parts(f), state.alpha
        q = torch.addmm(state.c, state.h, _cayley(affine, alpha).T)
        z = self.prox(affine)(q, alpha)
        state.h = torch.lerp(q, z, 2.0)  # 2z − q
        return z, state


def _cayley(affine: AffineMap, alpha: float) -> Tensor:
    """C = 2(I + αM)⁻¹ − I, shared by every map with this W."""
    dtype = affine.weight.dtype
    key = ("cayley", alpha, dtype)
    if key not in affine.cache:
        eye = torch.eye(len(affine.weight), dtype=dtype, device=affine.weight.device)
        affine.cache[key] = 2 * torch.linalg.inv((1 + alpha) * eye - alpha * affine.weight) - eye
    return affine.cache[key]
