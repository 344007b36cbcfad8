"""Z = relu(Z Wᵀ + X Uᵀ),  ŷ = Z a: the ReLU equilibrium network with a Gaussian start of [ling2023]."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...checks import one_of
from ...solve.autocast import unlowered
from ..checks import slope_at_zero
from ..draws import Draws
from ..norms import wellposed_norms
from .blocks import pairs, readout_block, squeeze_blocks, weigh
from .family import AffineFamily

STARTS = ("assumption1", "zero_readout")


class GaussianReLU(AffineFamily):
    """Z = relu(Z Wᵀ + X Uᵀ),  ŷ = Z a.    [ling2023, (2)]

    Every input has exactly one equilibrium if ‖W‖ < 1 or λ_max(sym W) < 1.

    Args:
        inputs, width, outputs: d, m and k.
        sigma_w2: σ_w² of the start, below 1/8, so that ‖W(0)‖ ≈ 2√2 σ_w < 1.
        start: "assumption1" draws W_ij ~ N(0, 2σ_w²/m), U_ij ~ N(0, 2/d), a_i ~ N(0, 1/m);
            "zero_readout" is the same with a = 0, the only start for which Condition 1 can hold.
        relu_at_zero: relu'(0). 0 as in torch; [ling2023] prints 1{x ≥ 0}, which is 1.
    """

    readout_name = "a"
    scaled_name = "W"
    settings = ("inputs", "width", "outputs", "sigma_w2", "start", "relu_at_zero")
    described = (
        "Z = relu(Z Wᵀ + X Uᵀ), ŷ = Z a; d={0.inputs}, m={0.width}, k={0.outputs}, sigma_w2={0.sigma_w2:g}"
    )

    def __init__(
        self,
        inputs: int,
        width: int,
        sigma_w2: float = 0.08,
        outputs: int = 1,
        *,
        start: str = "assumption1",
        relu_at_zero: float = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(inputs, width, outputs)
        if not 0 < sigma_w2 < 1 / 8:
            raise ValueError(
                f"sigma_w2 must lie in (0, 1/8): ‖W(0)‖ is about 2√2 σ_w, which reaches 1 at 1/8 "
                f"[ling2023, Assumption 1]. Got {sigma_w2} instead."
            )
        self.sigma_w2 = float(sigma_w2)
        one_of("start", start, STARTS)
        self.start = start
        self.relu_at_zero = slope_at_zero(relu_at_zero)
        make, d, m = Draws(dtype, device, generator), inputs, width
        self.W = nn.Parameter(make.normal(m, m, std=(2 * self.sigma_w2 / m) ** 0.5))
        self.U = nn.Parameter(make.normal(m, d, std=(2 / d) ** 0.5))
        self.a = nn.Parameter(make.normal(*self.readout_shape, std=(1 / m) ** 0.5))
        if start == "zero_readout":
            nn.init.zeros_(self.a)

    def weight(self) -> Tensor:
        """W itself, (m, m)."""
        return self.W

    def injection(self, X: Tensor) -> Tensor:
        """u = X Uᵀ, (N, m)."""
        return X @ self.U.T

    @unlowered
    def pullback(self, V: Tensor, R: Tensor, Z: Tensor, X: Tensor) -> dict[str, Tensor]:
        """∇W = Vᵀ diag(r) Z,  ∇U = Vᵀ diag(r) X,  ∇a = Zᵀ r.    [ling2023, (3)]"""
        L = weigh(V, R)  # (N, m)
        return {"W": L.T @ Z, "U": L.T @ X, "a": Z.T @ R}

    @unlowered
    def gram(self, V: Tensor, Z: Tensor, X: Tensor, V2: Tensor, Z2: Tensor, X2: Tensor) -> dict[str, Tensor]:
        """H_W = ZZᵀ ∘ VVᵀ,  H_U = XXᵀ ∘ VVᵀ,  H_a = ZZᵀ."""
        VV = pairs(V, V2)
        return squeeze_blocks(
            {
                "W": pairs(Z, Z2) * VV,
                "U": pairs(X, X2) * VV,
                "a": readout_block(Z, Z2, self.outputs),
            }
        )

    def check_wellposed(self) -> None:
        """Raise a ValueError unless ‖W‖ < 1 or λ_max(sym W) < 1."""
        q, top = wellposed_norms(self.W)
        if not (q < 1 or top < 1):
            raise ValueError(
                f"λ_max(sym W) or ‖W‖ must be < 1 for every input to have one equilibrium. Got {top:.6g}, "
                f"which is {top - 1:.2g} too much: multiply W by less than {1 / top:.4g}, or train with "
                f"smaller steps. (‖W‖ is {q:.6g}.)"
            )
