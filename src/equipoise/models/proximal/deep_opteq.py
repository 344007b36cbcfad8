"""z = f_L∘…∘f_1(z),  f_l(z) = α W_lᵀσ(W_l z + U_l x + b_l) + (1 − α) z: deep OptEq, and its other two forms.

| form | equation | state |
| --- | --- | --- |
| deep | z = f_L∘…∘f_1(z) | (N, m) |
| multi-block [xie2021, Lemma 3] | z_l = f_l(z_{l−1}), z_0 = z_L | (N, L·m), blocks z_1, …, z_L |
| wide [xie2021, Theorem 3] | y = L⁻¹ Σ W_lᵀσ(W_l y + U_l x + b_l), the limit of both as α → 0 | (N, m) |
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...solve import Activation
from ..checks import count
from ..draws import Draws
from .family import FeatureMap, ProximalFamily
from .objective import JointObjective
from .opteq import OptEq
from .pieces import draw_layer, draw_readout
from .properties import Property


class OptEqLayer(nn.Module):
    """f(z) = α Wᵀσ(W z + U x + b) + (1 − α) z: the parameters of one layer."""

    def __init__(self, W: nn.Parameter, U: nn.Parameter, b: nn.Parameter) -> None:
        super().__init__()
        self.W, self.U, self.b = W, U, b  # (n, m), (n, d), (n,)

    def extra_repr(self) -> str:
        """The map of the layer, and its width."""
        return f"f(z) = α Wᵀσ(W z + U x + b) + (1 − α) z; n={len(self.b)}"


class LayeredOptEq(ProximalFamily):
    """What the deep and the multi-block form share: layers with W, U, b, and a readout V."""

    def __init__(
        self,
        inputs: int,
        state: int,
        hidden: Sequence[int],
        alpha: float = 1.0,
        outputs: int = 1,
        activation: str | Activation = "relu",
        *,
        feature_map: FeatureMap | None = None,
        regulariser: Property | Mapping[str, Any] | None = None,
        bound: float | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
        **how: Any,
    ) -> None:
        given: dict[str, Any] = {"feature_map": feature_map, "regulariser": regulariser, "bound": bound}
        super().__init__(inputs, state, outputs, alpha, activation, **given, **how)
        if isinstance(hidden, int) or not isinstance(hidden, Sequence) or not hidden:
            raise ValueError(f"hidden must list the widths of the layers, such as [64, 32]. Got {hidden!r}.")
        self.hidden = [count(f"hidden[{i}]", n) for i, n in enumerate(hidden)]
        make, size = Draws(dtype, device, generator), 0.9 * self.proximal_norm
        self.layers = nn.ModuleList(
            OptEqLayer(*draw_layer(n, self.state, self.inputs, size, make)) for n in self.hidden
        )
        self.V = draw_readout(self.state, self.outputs, make)

    @property
    def blocks(self) -> Sequence[Any]:
        """The layers, the first of which is applied first."""
        return tuple(self.layers)

    @property
    def mu(self) -> float:
        """1: there is no μ in the equation."""
        return 1.0

    @mu.setter
    def mu(self, mu: float) -> None:
        if mu != 1:
            raise ValueError(f"the equation of {type(self).__name__} has no μ. Got {mu!r}: an OptEq has one.")

    def config(self) -> dict[str, Any]:
        """As for every OptEq, with the widths of the layers."""
        return {**super().config(), "hidden": self.hidden}

    def extra_repr(self) -> str:
        """The equation, the sizes, and the property where there is one."""
        return (
            f"{self._equation_repr}; d={self.inputs}, m={self.state}, n={self.hidden}, k={self.outputs}, "
            f"alpha={self.alpha:g}, activation={self.activation.name}"
            + ("" if self.regulariser is None else f", {self.regulariser}")
        )

    _equation_repr: str

    def _like_me(self, kind: type[Any]) -> Any:
        """The other form with copies of the same parameters."""
        kept = {
            "feature_map": copy.deepcopy(self.feature_map),
            "activation": self.activation,
            "regulariser": self.regulariser,
        }
        options = {**self.config(), **kept}
        for assigned in ("solver", "gradient"):
            options.pop(assigned, None)
        other = kind(**options, dtype=self.V.dtype, device=self.V.device)
        other.method = self.method
        other.load_state_dict(self.state_dict())
        return other


class DeepOptEq(JointObjective, LayeredOptEq):
    """z = f_L∘…∘f_1(z),  f_l(z) = α W_lᵀσ(W_l z + U_l x + b_l) + (1 − α) z,  x = g(x₀),  ŷ = Vᵀz.

    [xie2021, (4)-(5)]. If ‖W_l‖² L_σ ≤ 1, each f_l is α/2-averaged and T is nonexpansive; if one inequality
    is strict, T is a contraction with one equilibrium. The equilibrium of two layers minimises a convex
    function (Corollary 1), that of more layers solves a monotone inclusion (Theorem 2).

    Args:
        inputs, state, hidden, outputs: d, m, [n_1, …, n_L] and k.
        alpha: α ∈ (0, 1]. Unlike with one layer, it changes the equilibrium.
        feature_map: the extractor g, from X of any shape (N, …) to (N, d); a module is trained too.
        activation, regulariser, bound, solver, gradient, stop, on_failure: as for OptEq.

    `layers[l]` has W (n_l, m), U (n_l, d) and b (n_l,). The start is that of OptEq, ‖W_l‖ = 0.9/√L_σ.
    """

    _equation_repr = "z = f_L∘…∘f_1(z), f_l(z) = α W_lᵀσ(W_l z + U_l x + b_l) + (1 − α) z, ŷ = Vᵀz"

    def multi_block(self) -> MultiBlockOptEq:
        """The same network over the stacked state (z_1, …, z_L), with copies of the parameters."""
        if self.regulariser is not None:
            raise ValueError(f"the multi-block form has no place for {self.regulariser}: use the deep form.")
        return self._like_me(MultiBlockOptEq)

    def wide(self) -> OptEq:
        """y = L⁻¹ Σ W_lᵀσ(W_l y + U_l x + b_l): the limit α → 0, an OptEq with μ = L and the layers stacked.

        The extractor, if there is one, is left to the caller: `wide()(model.features(X))`.
        """
        if self.regulariser is not None:
            raise ValueError(f"the wide form is the limit of a network without {self.regulariser}.")
        how = {"dtype": self.V.dtype, "device": self.V.device}
        wide = OptEq(
            self.inputs,
            self.state,
            sum(self.hidden),
            mu=float(len(self.hidden)),
            outputs=self.outputs,
            activation=self.activation,
            **how,  # type: ignore[arg-type]
        )
        with torch.no_grad():
            wide.W.copy_(torch.cat(self.weights()))
            wide.U.copy_(torch.cat([layer.U for layer in self.blocks]))
            wide.b.copy_(torch.cat([layer.b for layer in self.blocks]))
            wide.V.copy_(self.V)
        return wide

    def block_states(self, Z: Tensor, X: Tensor) -> list[Tensor]:
        """z_1 = f_1(z), …, z_L = f_L(z_{L−1}) from z = Z, (N, m) each."""
        states, z = [], Z
        for c, W in zip(self.injections(X), self.weights(), strict=True):
            z = self.layer_map(z, c, W)
            states.append(z)
        return states


class MultiBlockOptEq(LayeredOptEq):
    """z_l = f_l(z_{l−1}), z_0 = z_L: z̃ = α W̃ᵀσ(W̃ P z̃ + Ũ x + b̃) + (1 − α) P z̃,  ŷ = Vᵀz_L.

    [xie2021, Lemma 3]. The state is (z_1, …, z_L), (N, L·m), P moves each block on by one place.
    `equilibrium` gives the last block, the deep network's equilibrium, and `solve` all of them.
    """

    _equation_repr = (
        "z_l = f_l(z_{l−1}), z_0 = z_L, f_l(z) = α W_lᵀσ(W_l z + U_l x + b_l) + (1 − α) z, ŷ = Vᵀz_L"
    )

    @property
    def regulariser(self) -> Property | None:
        """None: a property can follow the last layer only."""
        return None

    @regulariser.setter
    def regulariser(self, regulariser: Property | Mapping[str, Any] | None) -> None:
        if regulariser is not None:
            raise ValueError(f"the multi-block form has no place for {regulariser}.")

    @property
    def state_size(self) -> int:
        """L·m: all blocks are solved for."""
        return self.state * len(self.hidden)

    def T(self, z: Tensor, injections: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
        """(f_1(z_L), f_2(z_1), …, f_L(z_{L−1})), (N, L·m)."""
        parts = z.split(self.state, dim=1)
        before = (parts[-1], *parts[:-1])  # P z̃
        new = [self.layer_map(p, c, W) for p, c, W in zip(before, injections, weights, strict=True)]
        return torch.cat(new, dim=1)

    def contraction(self) -> float | None:
        """q = max_l(1 − α + α L_σ‖W_l‖²) of one step, where it is below 1; else None. Not a proof.

        L steps contract by the product of the factors: that being below 1 makes the equilibrium unique.
        """
        q = max(self.factors())
        return q if q < 1 else None

    @property
    def averagedness(self) -> float:
        """A ValueError: P moves the blocks, and no constant is known for z̃ ↦ f(P z̃)."""
        raise ValueError("averagedness is known for the deep form alone: deep().averagedness.")

    @property
    def share(self) -> float:
        """α: what is solved is T itself."""
        return self.alpha

    def state_of(self, solved: Tensor) -> Tensor:
        """The last block, which is the equilibrium of the deep form."""
        return solved[:, -self.state :]

    def deep(self) -> DeepOptEq:
        """The same network as a composition of its layers, with copies of the parameters."""
        return self._like_me(DeepOptEq)
