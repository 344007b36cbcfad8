"""z = T_R∘f_L∘…∘f_1(z),  f_l(z) = (α/μ) W_lᵀσ(W_l z + U_l x + b_l) + (1 − α) z: what the OptEq models share.

Samples are rows: X is (N, d), Z is (N, m), c_l = X U_lᵀ + b_l is (N, n_l). Each f_l is a proximal map where
L_σ‖W_l‖² ≤ μ [xie2021, Theorem 1], so T is nonexpansive, and a contraction where one ‖W_l‖ is smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...differentiate import Method
from ...differentiate.equation import under_transform
from ...differentiate.gradient import SolvedGradient
from ...differentiate.method import Solvers
from ...solve import Activation, Anderson, Picard
from ..base import EquilibriumModel, Start
from ..cell import Equilibrium
from ..checks import check_rows, checked_map, counts, features_of, given_start, name_of, same_place
from ..kept import Kept
from ..methods import check_sam, method_config, selects
from .bounds import Bounded
from .pieces import Cell, ProximalEquation, tightened
from .properties import Property

FeatureMap = Callable[[Tensor], Tensor]


class ProximalFamily(Bounded, EquilibriumModel):
    """z = T_R∘f_L∘…∘f_1(z),  f_l(z) = (α/μ) W_lᵀσ(W_l z + U_l x + b_l) + (1 − α) z,  ŷ = Vᵀz.

    `forward` and `equilibrium` are differentiable by `gradient`, with the failure policy `on_failure`;
    `solve` returns the Solution as it is. `last` records the last call and is neither copied nor saved.

    relu'(0) = 0. If 0 is the one equilibrium of an input, with pre-activations of exactly 0, it is found
    exactly, whatever the start, and the gradient is that of the tie.
    """

    readout_name: ClassVar[str] = "V"
    kernel_formula: ClassVar[bool] = False  # whether its tangent kernel is known in closed form
    V: nn.Parameter  # (m,), or (m, k) for k > 1 outputs

    def __init__(
        self,
        inputs: int,
        state: int,
        outputs: int,
        alpha: float,
        activation: str | Activation,
        *,
        regulariser: Property | Mapping[str, Any] | None = None,
        bound: float | None = None,
        feature_map: FeatureMap | None = None,
        **how: Any,
    ) -> None:
        super().__init__(**how)
        self.inputs, self.state, self.outputs = counts(inputs=inputs, state=state, outputs=outputs)
        self.feature_map = checked_map(feature_map, inputs)
        self.alpha, self.mu, self.bound, self._kept = alpha, 1.0, bound, Kept()
        self.set_activation(activation)
        self.regulariser = regulariser

    # -- what a family is ----------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """m, the size of the state."""
        return self.state

    @property
    def state_size(self) -> int:
        """The number of entries that are solved for in each sample."""
        return self.state

    @property
    def readout_weight(self) -> Tensor:
        """V, (m,) or (m, k)."""
        return self.V

    @property
    def hidden_names(self) -> tuple[str, ...]:
        """Every parameter but the readout."""
        return tuple(name for name, _ in self.named_parameters() if name != self.readout_name)

    def output_shape(self, N: int) -> tuple[int, ...]:
        """The shape of ŷ for N samples: (N,), or (N, k) for k > 1 outputs."""
        return (N,) if self.outputs == 1 else (N, self.outputs)

    def features(self, X: Tensor) -> Tensor:
        """x = g(x₀), (N, d): X itself without an extractor."""
        if self.feature_map is None:
            return X.contiguous()  # one layout, so that rows are summed in one order
        return features_of(self.feature_map, X, self.inputs)

    def injections(self, X: Tensor) -> list[Tensor]:
        """c_l = g(X) U_lᵀ + b_l, (N, n_l)."""
        x = self.features(X)
        return [x @ layer.U.T + layer.b for layer in self.blocks]

    def layer_map(self, z: Tensor, c: Tensor, W: Tensor) -> Tensor:
        """f_l(z) = (α/μ) σ(z W_lᵀ + c_l) W_l + (1 − α) z, (N, m)."""
        out = (self.alpha / self.mu) * (self.activation(z @ W.T + c) @ W)
        return out if self.alpha == 1 else out + (1 - self.alpha) * z

    def T(self, z: Tensor, injections: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
        """T_R∘f_L∘…∘f_1(z), (N, m)."""
        for c, W in zip(injections, weights, strict=True):
            z = self.layer_map(z, c, W)
        return z if self.regulariser is None else self.regulariser(z)

    def whole_step(self, z: Tensor, injections: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
        """z + (T(z) − z)/s, (N, m): the equilibria of T, with a residual that says how near they are.

        T moves z by a share α only, so ‖T(z) − z‖ is small for small α wherever z is. This map is what is
        solved; it is T itself for α = 1, averaged as T is [xie2021, §2.3], and the wide form for α → 0.
        """
        if self.alpha == 1:
            return self.T(z, injections, weights)
        at, moved = z, torch.zeros_like(z)
        for c, W in zip(injections, weights, strict=True):
            move = self.activation(at @ W.T + c) @ W / self.mu - at
            at, moved = at + self.alpha * move, moved + move
        return z + (self.alpha / self.pace) * moved

    def readout(self, Z: Tensor) -> Tensor:
        """ŷ = Z V: (N,), or (N, k) for k > 1 outputs."""
        return Z @ self.V

    # -- equilibria ----------------------------------------------------------------------------------------

    def equation(  # type: ignore[override]
        self, X: Tensor, *, start: Start = None, method: Method
    ) -> ProximalEquation:
        """z = T(z, c_1, …, c_L, W_1, …, W_L), or its whole steps where the equilibrium alone counts."""
        self._check_inputs(X)
        # With recorded steps, and for SAM, each step of T counts and not the equilibrium alone.
        stepwise = not isinstance(method.gradient, SolvedGradient) or selects(method.solver)
        injections, weights = self.injections(X), self.weights()
        z0 = given_start(start, (len(X), self.state_size))
        if z0 is None:
            z0 = torch.zeros(len(X), self.state_size, dtype=self.V.dtype, device=self.V.device)
        same_place("start", z0, self.V)
        check_sam(method.solver, z0[:1])
        if start is not None and not stepwise:
            z0 = self._untied(z0, injections)
        f = self.T
        if not stepwise and self.alpha < 1:
            kind, known = type(self), ProximalFamily
            if kind.T is known.T and kind.layer_map is known.layer_map and self.regulariser is None:
                f = self.whole_step
            else:
                method = replace(method, stop=tightened(method.stop, self.alpha, self.pace, self.V))
        return ProximalEquation(f, injections, weights, method, z0)

    def default_solver_chain(self) -> Solvers:
        """Anderson, then plain iteration; the other way round where a property follows the layers.

        T is averaged, so that plain iteration gets there in the end. It ends on a value of T, in which the
        zeros and bounds of a property are exact.
        """
        return (Anderson(), Picard()) if self.regulariser is None else (Picard(), Anderson())

    def _untied(self, z0: Tensor, injections: Sequence[Tensor]) -> Tensor:
        """z⁰, set to 0 in each row with ties whose one equilibrium is 0, as σ(c_l) = 0 in every layer.

        From another start the iterates come near 0 but never reach it: rounding would decide on which side of
        the kink each pre-activation is, and the gradient would follow it.
        """
        tied = torch.stack([(c == 0).any(dim=1) for c in injections]).any(dim=0)
        if under_transform() or not bool(tied.any()):
            return z0
        still = torch.stack([(self.activation(c) == 0).all(dim=1) for c in injections]).all(dim=0) & tied
        if not bool(still.any()) or self.contraction() is None:
            return z0
        zero = torch.zeros_like(z0)
        if self.regulariser is not None:
            still &= (self.regulariser(zero) == 0).all(dim=1)
        return torch.where(still[:, None], zero, z0)

    def _check_inputs(self, X: Tensor) -> None:
        if self.V.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"an equilibrium is solved for in float32 or float64. Got parameters of {self.V.dtype} "
                f"instead: model.float() or model.double() changes them."
            )
        if self.feature_map is None:
            check_rows(X, self.inputs, self.V)
        elif not isinstance(X, Tensor):
            raise TypeError(f"X must be a tensor, (N, …). Got {type(X).__name__} instead.")
        elif X.ndim < 1:
            raise ValueError("X must be batch-first, (N, …). Got a scalar instead.")

    @property
    def cell(self) -> nn.Module:
        """(z, x) ↦ T(z, x), sharing the parameters."""
        return Cell(self)

    def as_equilibrium(self) -> Equilibrium:
        """The same map as an `Equilibrium` of a cell, without the readout: what `diagnose`, `unroll` take."""
        method = self.method
        return Equilibrium(
            self.cell,
            solver=method.solver or self.default_solver_chain(),
            gradient=method.gradient,
            stop=tightened(method.stop, self.alpha, self.pace, self.V),
            on_failure=method.on_failure,
            state=(self.state_size,),
        )

    # -- housekeeping --------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """Sizes, α, the activation, and every other setting that is not the default."""
        settings: dict[str, Any] = {
            "inputs": self.inputs,
            "state": self.state,
            "outputs": self.outputs,
            **self.skip_config(),
        }
        if self.bound is not None:
            settings["bound"] = self.bound
        if self.feature_map is not None:
            settings["feature_map"] = name_of(self.feature_map)
        return settings | method_config(self.method)
