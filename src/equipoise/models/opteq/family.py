"""z = T_R∘f_L∘…∘f_1(z),  f_l(z) = (α/μ) W_lᵀσ(W_l z + U_l x + b_l) + (1 − α) z: what the OptEq models share.

Samples are rows: X is (N, d), Z is (N, m), c_l = X U_lᵀ + b_l is (N, n_l). Each f_l is a proximal map where
L_σ‖W_l‖² ≤ μ [xie2021, Theorem 1], so T is nonexpansive, and a contraction where one ‖W_l‖ is smaller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...differentiate import Gradient, Implicit, Method, Record
from ...differentiate.equation import under_transform
from ...differentiate.gradient import SolvedGradient
from ...solve import Activation, Anderson, EquilibriumError, Picard, Solution, Solver, Stop
from ...solve.compilers import uncompiled
from ...solve.driver import Precision, checked_chain
from ...solve.failure import OnFailure, Policy
from ...solve.problem import Layout
from ..affine import refuse_nonfinite
from ..equilibrium import Equilibrium, _shaped
from ..properties import Property, as_sam, as_stop, method_config, selects
from ..saving import Saved
from .activations import KNOWN, monotone_activation
from .bounds import Bounded
from .pieces import (
    Cell,
    Gradients,
    ProximalEquation,
    as_gradient,
    check_sam,
    positive,
    tightened,
    trained_by,
)
from .rows import check_rows, checked_start

Solvers = Solver | Sequence[Solver]
FeatureMap = Callable[[Tensor], Tensor]


class ProximalFamily(Bounded, Saved, ABC):
    """z = T_R∘f_L∘…∘f_1(z),  f_l(z) = (α/μ) W_lᵀσ(W_l z + U_l x + b_l) + (1 − α) z,  ŷ = Vᵀz.

    `forward` and `equilibrium` are differentiable by `gradient`, with the failure policy `on_failure`;
    `solve` returns the Solution as it is. `last` records the last call and is neither copied nor saved.

    relu'(0) = 0. Where 0 is the one equilibrium of an input, with pre-activations of exactly 0, it is found
    exactly, from whatever start: the gradient is that of the tie.
    """

    readout_name: ClassVar[str] = "V"
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
        solver: Solvers | Mapping[str, Any] | str | None = None,
        gradient: Gradients | None = None,
        stop: Stop | None = None,
        on_failure: Policy | OnFailure = "raise",
    ) -> None:
        super().__init__()
        self.inputs, self.state = positive("inputs", inputs), positive("state", state)
        self.outputs = positive("outputs", outputs)
        if feature_map is not None and not callable(feature_map):
            raise TypeError(
                f"feature_map must be a function from X to (N, {inputs}). Got {feature_map!r} instead; a "
                f"file holds its name alone, so pass it to load(path, feature_map=…)."
            )
        self.alpha, self.mu, self.bound = alpha, 1.0, bound
        chosen = monotone_activation(activation)
        self._activation: str | Activation = next((n for n, a in KNOWN.items() if a == chosen), chosen)
        self.regulariser = regulariser
        self.feature_map = feature_map
        self.gradient = as_gradient(gradient)
        self.method = Method(as_sam(solver), as_stop(stop) or Stop(), "native", OnFailure.of(on_failure))
        checked_chain(self.method.solver)
        self._last = Record()

    # -- what a family is ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def blocks(self) -> Sequence[Any]:
        """The layers, each with W (n_l, m), U (n_l, d) and b (n_l,)."""

    @property
    def width(self) -> int:
        """m, the size of the state."""
        return self.state

    @property
    def state_size(self) -> int:
        """Entries of what is solved for, a sample."""
        return self.state

    @property
    def activation(self) -> Activation:
        """σ."""
        return KNOWN[self._activation] if isinstance(self._activation, str) else self._activation

    @property
    def readout_weight(self) -> Tensor:
        return self.V

    @property
    def hidden_names(self) -> tuple[str, ...]:
        """Every parameter but the readout."""
        return tuple(name for name, _ in self.named_parameters() if name != self.readout_name)

    def features(self, X: Tensor) -> Tensor:
        """x = g(x₀), (N, d): X itself without an extractor."""
        if self.feature_map is None:
            return X.contiguous()  # one layout, so that rows are summed in one order
        features = self.feature_map(X)
        if tuple(features.shape) != (len(X), self.inputs):
            raise ValueError(
                f"feature_map must return {(len(X), self.inputs)}, a row a sample. "
                f"Got shape {tuple(features.shape)} instead."
            )
        refuse_nonfinite("feature_map(X)", features)
        return features

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

    def forward(self, X: Tensor, **how: Any) -> Tensor:
        """ŷ = Z V, (N,) or (N, k). Options as of `equilibrium`."""
        return self.readout(self.equilibrium(X, **how))

    @uncompiled
    def equilibrium(
        self,
        X: Tensor,
        *,
        stop: Stop | None = None,
        start: Tensor | Solution | None = None,
        solver: Solvers | None = None,
        gradient: Gradients | None = None,
        precision: Precision = "native",
        on_failure: Policy | OnFailure | None = None,
    ) -> Tensor:
        """Z (N, m), differentiable by `gradient`: Implicit() by default, or Unrolled(K) for K recorded steps.

        `solver=SAM(…)` chooses among many equilibria and is trained unrolled: with Unrolled(K), Z is its K-th
        iterate, whatever its residual (which `last.forward` tells).
        """
        if on_failure is not None:
            on_failure = OnFailure.of(on_failure)
        self._check_inputs(X)
        method = self._method(stop, solver, precision, on_failure)
        how = self._gradient(X, gradient, method, stop, solver is not None)
        equation, z0 = self._equation(X, start, method, stepwise=not isinstance(how, SolvedGradient))
        record = self._last = Record()
        try:
            Z = how.equilibrium(equation, z0, equation.tensors, record)
        except EquilibriumError as error:
            record.forward = _shaped(error.solution, Layout.of(z0))
            raise EquilibriumError(f"{error}\n{self._diagnosis()}", record.forward) from None
        if record.forward is not None:
            record.forward = _shaped(record.forward, Layout.of(z0))
        return self.state_of(Z)

    @uncompiled
    @torch.no_grad()
    def solve(
        self,
        X: Tensor,
        *,
        stop: Stop | None = None,
        start: Tensor | Solution | None = None,
        solver: Solvers | None = None,
        precision: Precision = "native",
    ) -> Solution:
        """The Solution behind `equilibrium`, whatever became of each sample, without a gradient."""
        self._check_inputs(X)
        method = self._method(stop, solver, precision, None)
        equation, z0 = self._equation(X, start, method, stepwise=selects(method.solver))
        return equation.solve(z0, equation.tensors)

    def state_of(self, solved: Tensor) -> Tensor:
        """Z (N, m) from what was solved for."""
        return solved

    def _method(
        self, stop: Stop | None, solver: Solvers | None, precision: Precision, on_failure: OnFailure | None
    ) -> Method:
        chosen = solver if solver is not None else self.method.solver
        # T is averaged: plain iteration gets there in the end. It ends on a value of T, in which the zeros
        # and bounds of a property are exact.
        default: Solvers = (Anderson(), Picard()) if self.regulariser is None else (Picard(), Anderson())
        return Method(
            default if chosen is None else chosen,
            stop or self.method.stop,
            precision,
            on_failure or self.method.on_failure,
        )

    def _gradient(
        self, X: Tensor, gradient: Gradients | None, method: Method, stop: Stop | None, named: bool
    ) -> Gradient:
        """How to differentiate; `named`: this call has a solver of its own."""
        how = self.gradient if gradient is None else as_gradient(gradient)
        if stop is not None and how == Implicit():
            how = Implicit(stop=stop)  # one tolerance for the forward and the adjoint solve
        return trained_by(how, method.solver, named, (X, *self.parameters()))

    def _equation(
        self, X: Tensor, start: Tensor | Solution | None, method: Method, stepwise: bool
    ) -> tuple[ProximalEquation, Tensor]:
        """The equation and where to start; `stepwise`: each step of T counts, not the equilibrium alone."""
        injections, weights = self.injections(X), self.weights()
        z0 = checked_start(start, (len(X), self.state_size), self.V)
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
        return ProximalEquation(f, injections, weights, method), z0

    def _untied(self, z0: Tensor, injections: Sequence[Tensor]) -> Tensor:
        """z⁰, but 0 in a row with ties of which 0 is the one equilibrium: σ(c_l) = 0 in every layer.

        From elsewhere the iterate comes near 0 and is never there: rounding would decide on which side of the
        kink each pre-activation is, and the gradient would follow it.
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

    def _diagnosis(self) -> str:
        try:
            self.check_wellposed()
        except ValueError as error:
            return str(error)
        return "The weights are well-posed: each of these samples has exactly one equilibrium."

    def _check_inputs(self, X: Tensor) -> None:
        if not isinstance(X, Tensor):
            raise TypeError(f"X must be a tensor, (N, {self.inputs}). Got {type(X).__name__} instead.")
        if self.V.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"an equilibrium is solved for in float32 or float64. Got parameters of {self.V.dtype} "
                f"instead: model.float() or model.double() changes them."
            )
        if self.feature_map is None:
            check_rows(X, self.inputs, self.V)
        elif X.ndim < 1:
            raise ValueError("X must be batch-first, (N, …). Got a scalar instead.")

    @property
    def cell(self) -> nn.Module:
        """(z, x) ↦ T(z, x), sharing the parameters."""
        return Cell(self)

    def as_equilibrium(self) -> Equilibrium:
        """The same map as an `Equilibrium` of a cell, without the readout: what `diagnose`, `unroll` take."""
        method = self._method(None, None, "native", None)
        return Equilibrium(
            self.cell,
            solver=method.solver,
            gradient=self.gradient,
            stop=tightened(method.stop, self.alpha, self.pace, self.V),
            on_failure=method.on_failure,
            state=(self.state_size,),
        )

    # -- housekeeping --------------------------------------------------------------------------------------

    @property
    def last(self) -> Record:
        """The forward and adjoint Solution of the last call."""
        return self._last

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": Record()}

    def config(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "inputs": self.inputs,
            "state": self.state,
            "outputs": self.outputs,
            "alpha": self.alpha,
            "activation": self._activation if isinstance(self._activation, str) else self._activation.name,
        }
        if self.bound is not None:
            settings["bound"] = self.bound
        if self.regulariser is not None:
            settings["regulariser"] = self.regulariser.config()
        if self.feature_map is not None:
            settings["feature_map"] = getattr(self.feature_map, "__name__", type(self.feature_map).__name__)
        return settings | method_config(self.gradient, self.method.solver, self.method.stop)
