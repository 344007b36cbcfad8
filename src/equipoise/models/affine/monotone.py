"""Z = relu(Z Wᵀ + X Uᵀ),  W = (1−μ)I − AᵀA + B − Bᵀ,  ŷ = Z u: the monotone network of [hieu2022]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...differentiate.method import Solvers
from ...linalg import estimate_norm
from ...solve import AffineMap, Newton, PeacemanRachford
from ...solve.autocast import unlowered
from ...solve.norms import norm_dtype, row_norms
from ..checks import finite_matrix, slope_at_zero
from ..draws import Draws
from ..kept import Kept
from .blocks import pairs, readout_block, squeeze_blocks, weigh
from .family import AffineFamily


class Monotone(AffineFamily):
    """Z = relu(Z Wᵀ + X Uᵀ),  W = (1−μ)I − AᵀA + B − Bᵀ,  ŷ = Z u.    [hieu2022, Definition 3.2.1]

    sym(I − W) = μI + AᵀA ⪰ μI, so every input has exactly one equilibrium, whatever A and B are. ‖W‖ may
    exceed 1, and then plain iteration cycles, but operator splitting finds the equilibrium.

    Args:
        inputs, width, outputs: d, n and k.
        margin: μ > 0 (the thesis writes m).
        bias: whether a trained bias (n,), zero at the start, is added to X Uᵀ.
        output_bias: whether a trained c (k,), zero at the start, is added to Z u. The theorems about training
            are about ŷ = Z u, and refuse a model that has such a c.
        relu_at_zero: relu'(0), 0 or 1.

    The start is A_ij, B_ij, u_i ~ N(0, 1/n), U_ij ~ N(0, 1/d); the thesis gives none, but see
    `theory.hieu2022.certified_start`.
    """

    readout_name = "u"
    readout_bias_name = "c"
    settings = ("inputs", "width", "outputs", "margin", "relu_at_zero")
    described = (
        "Z = relu(Z Wᵀ + X Uᵀ{1}), W = (1−μ)I − AᵀA + B − Bᵀ, ŷ = Z u{2}; "
        "d={0.inputs}, n={0.width}, k={0.outputs}, margin={0.margin:g}"
    )

    def __init__(
        self,
        inputs: int,
        width: int,
        margin: float = 0.5,
        outputs: int = 1,
        *,
        bias: bool = False,
        output_bias: bool = False,
        relu_at_zero: float = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(inputs, width, outputs)
        if not 0 < margin < float("inf"):
            raise ValueError(
                f"margin must be a finite number > 0: it is the μ of sym(I − W) ⪰ μI. Got {margin} instead."
            )
        self.margin = float(margin)
        self.relu_at_zero = slope_at_zero(relu_at_zero)
        make, d, n = Draws(dtype, device, generator), inputs, width
        self.A = nn.Parameter(make.normal(n, n, std=(1 / n) ** 0.5))
        self.B = nn.Parameter(make.normal(n, n, std=(1 / n) ** 0.5))
        self.U = nn.Parameter(make.normal(n, d, std=(1 / d) ** 0.5))
        self.u = nn.Parameter(make.normal(*self.readout_shape, std=(1 / n) ** 0.5))
        self.bias = nn.Parameter(make.zeros(n)) if bias else None
        self.c = nn.Parameter(make.zeros(outputs)) if output_bias else None
        self._kept = Kept()

    def weight(self) -> Tensor:
        """W = (1−μ)I − AᵀA + B − Bᵀ, (n, n)."""
        eye = torch.eye(self.width, dtype=self.A.dtype, device=self.A.device)
        return (1 - self.margin) * eye - self.A.T @ self.A + self.B - self.B.T

    def injection(self, X: Tensor) -> Tensor:
        """u = X Uᵀ, plus the bias where there is one, (N, n)."""
        u = X @ self.U.T
        return u if self.bias is None else u + self.bias

    @unlowered
    def pullback(self, V: Tensor, R: Tensor, Z: Tensor, X: Tensor) -> dict[str, Tensor]:
        """G = Pᵀ diag(r) Z,  ∇A = −A(G + Gᵀ),  ∇B = G − Gᵀ,  ∇U = Pᵀ diag(r) X,  ∇u = Zᵀ r;  P is V here."""
        L = weigh(V, R)  # (N, n)
        G = L.T @ Z
        gradients = {"A": -self.A @ (G + G.T), "B": G - G.T, "U": L.T @ X, "u": Z.T @ R}
        more = {"bias": (self.bias, L), "c": (self.c, R)}
        return gradients | {
            n: rows.sum(dim=0).reshape(-1) for n, (own, rows) in more.items() if own is not None
        }

    @unlowered
    def gram(self, V: Tensor, Z: Tensor, X: Tensor, V2: Tensor, Z2: Tensor, X2: Tensor) -> dict[str, Tensor]:
        """K_B = 2 PPᵀ∘ZZᵀ − 2 C∘Cᵀ,  K_U = PPᵀ∘XXᵀ,  K_u = ZZᵀ,  with C = PZᵀ, Pa = PAᵀ, Za = ZAᵀ, and

        K_A = PaPaᵀ∘ZZᵀ + (PaZaᵀ)∘Cᵀ + (ZaPaᵀ)∘C + ZaZaᵀ∘PPᵀ.
        """
        Va, Za, Va2, Za2 = (T @ self.A.T for T in (V, Z, V2, Z2))
        VV, ZZ, VZ, ZV = pairs(V, V2), pairs(Z, Z2), pairs(V, Z2), pairs(Z, V2)
        blocks = {
            "A": pairs(Va, Va2) * ZZ + pairs(Va, Za2) * ZV + pairs(Za, Va2) * VZ + pairs(Za, Za2) * VV,
            "B": 2 * VV * ZZ - 2 * VZ * ZV,
            "U": VV * pairs(X, X2),
            "u": readout_block(Z, Z2, self.outputs),
        }
        if self.bias is not None:
            blocks["bias"] = VV
        if self.c is not None:
            blocks["c"] = readout_block(Z.new_ones(len(Z), 1), Z2.new_ones(len(Z2), 1), self.outputs)
        return squeeze_blocks(blocks)

    # -- the equilibrium by splitting ----------------------------------------------------------------------

    def default_solver(self, problem: AffineMap) -> Solvers:
        """Peaceman-Rachford with α = 1/√ℓ, ℓ ≈ ‖I − W‖, then semismooth Newton on the rows on which it fails.

        It converges for every α > 0. The bound on the rate is best for 1/ℓ. In practice the slow modes are
        not the worst ones, and 1/√ℓ, half way to 1 on a logarithmic scale, needs a half to a third of the
        steps.
        """
        key = "about ‖I − W‖"
        if key not in problem.cache:
            W = problem.weight.to(norm_dtype(problem.weight))
            eye = torch.eye(len(W), dtype=W.dtype, device=W.device)
            about = estimate_norm(eye - W, steps=8, generator=torch.Generator(W.device).manual_seed(0)).value
            problem.cache[key] = max(1.05 * about, self.margin)
        lipschitz = problem.cache[key]
        splitting = PeacemanRachford(margin=self.margin, lipschitz=lipschitz, step_size=lipschitz**-0.5)
        return splitting, Newton()

    @torch.no_grad()
    @unlowered
    def affine_map(self, X: Tensor) -> AffineMap:
        """f(Z) = relu(Z Wᵀ + X Uᵀ), which reuses what was computed from the same A and B before."""
        empty = lambda: AffineMap(self.weight(), self.A.new_empty(0, self.width), self.activation)
        return self._kept.of((self.A, self.B), empty, self.margin).with_bias(self.injection(X))

    def _error(self, problem: AffineMap, change: Tensor) -> Tensor:
        """‖z − z*‖ ≤ ‖f(z) − z‖ + ‖W(f(z) − z)‖/μ, valid where ‖W‖ > 1 too."""
        return row_norms(change) + row_norms(change @ problem.weight.T) / self.margin

    def resolvent_bound(self) -> float:
        """1/μ."""
        return 1 / self.margin

    def check_wellposed(self) -> None:
        """Raise a ValueError unless A and B are finite; with finite ones there is one equilibrium."""
        finite_matrix("A", self.A)
        finite_matrix("B", self.B)

    # -- housekeeping --------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """The settings, and which biases there are."""
        settings = super().config() | {"bias": self.bias is not None}
        # Left out where there is none, so that older certificates and files still describe such a model.
        return settings if self.c is None else settings | {"output_bias": True}

    def extra_repr(self) -> str:
        """The equation with the biases there are, and the sizes."""
        shift = "" if self.bias is None else " + bias"
        behind = "" if self.c is None else " + c"
        return self.described.format(self, shift, behind)
