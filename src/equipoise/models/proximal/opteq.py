"""z = μ⁻¹ Wᵀσ(W z + U x + b),  ŷ = Vᵀz: one layer, whose equilibrium minimises a convex φ.    [xie2021]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...solve import Activation
from ..checks import count
from ..draws import Draws
from .objective import LayerObjective
from .pieces import draw_layer, draw_readout
from .properties import Property


class OptEq(LayerObjective):
    """z = (α/μ) Wᵀσ(W z + U x + b) + (1 − α) z,  ŷ = Vᵀz.    [xie2021, (3), Theorem 1]

    If L_σ‖W‖² ≤ μ, the layer is a proximal map; if L_σ‖W‖² < μ, it has exactly one equilibrium, the minimiser
    of φ. The skip α changes the iteration, but not the equilibrium.

    Args:
        inputs, state, hidden, outputs: d, m, n and k.
        mu: μ > 0. The start has ‖W‖ = 0.9 √(μ/L_σ), U_ij ~ N(0, 1/d), b = 0, V_ij ~ N(0, 1/m).
        alpha: α ∈ (0, 1] of the skip connection.
        activation: monotone with slopes in [0, L_σ]: a name, or an `Activation` that declares `lipschitz`.
        regulariser: a property of the state, such as `L1(0.1)`, appended as a layer.
        bound: None for free weights, which `project_()` can bound; or β ≤ 1, and W is scaled to
            ‖W‖ ≤ β√(μ/L_σ).
        solver, gradient, stop, on_failure: how equilibria are found and differentiated, unless a call says
            otherwise. `gradient` is Implicit() by default; solver=SAM(…) needs Unrolled(K).
    """

    def __init__(
        self,
        inputs: int,
        state: int,
        hidden: int,
        mu: float = 1.0,
        alpha: float = 1.0,
        outputs: int = 1,
        activation: str | Activation = "relu",
        *,
        regulariser: Property | Mapping[str, Any] | None = None,
        bound: float | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
        **how: Any,
    ) -> None:
        super().__init__(
            inputs, state, outputs, alpha, activation, regulariser=regulariser, bound=bound, **how
        )
        self.mu, self.hidden = mu, count("hidden", hidden)
        make, size = Draws(dtype, device, generator), 0.9 * self.proximal_norm
        self.W, self.U, self.b = draw_layer(self.hidden, self.state, self.inputs, size, make)
        self.V = draw_readout(self.state, self.outputs, make)

    kernel_formula = True
    W: nn.Parameter  # (n, m)
    U: nn.Parameter  # (n, d)
    b: nn.Parameter  # (n,)
    described = (
        "z = (α/μ) Wᵀσ(W z + U x + b) + (1 − α) z, ŷ = Vᵀz; d={0.inputs}, m={0.state}, n={0.hidden}, "
        "k={0.outputs}, mu={0.mu:g}, alpha={0.alpha:g}, activation={0.activation.name}"
    )

    @property
    def blocks(self) -> tuple[OptEq]:
        """The one layer, which the model itself is."""
        return (self,)

    def weight(self) -> Tensor:
        """The effective W, (n, m)."""
        return self.weights()[0]

    def injection(self, X: Tensor) -> Tensor:
        """c = X Uᵀ + b, (N, n)."""
        return self.injections(X)[0]

    def config(self) -> dict[str, Any]:
        """As for every OptEq, with n and μ."""
        return {**super().config(), "hidden": self.hidden, "mu": self.mu}

    def extra_repr(self) -> str:
        """The equation, the sizes, and the property where there is one."""
        return self.described.format(self) + ("" if self.regulariser is None else f", {self.regulariser}")
