"""Z = σ(Z W(θ)ᵀ + u(X; θ)),  ŷ = readout(Z): what the affine families share.

Samples are rows: X is (N, d), Z is (N, m). A family gives its effective weight W(θ), its injection u(X; θ),
its readout, and two formulas: the pullback of a residual and the tangent kernel. Both are products of Z, X
and the adjoint V of the readout,

    V = D ∘ (1 aᵀ + V W),   D = σ'(Z Wᵀ + u)          V is (N, m), or (N, k, m) for k > 1 outputs,

which is one linear equation with the contraction factor of the forward one. No Jacobian is formed.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...differentiate import Gradient, Method, StructuredAdjoint
from ...differentiate.affine import AffineEquation, MaskedMap, by_sample, transposed
from ...differentiate.equation import needs_gradient, under_transform
from ...differentiate.gradient import SolvedGradient
from ...differentiate.method import Solvers
from ...solve import (
    RELU,
    Activation,
    AffineMap,
    EquilibriumError,
    PeacemanRachford,
    Picard,
    Solution,
    fixed_point,
)
from ...solve.autocast import unlowered
from ...solve.compilers import uncompiled
from ...solve.norms import row_norms
from ..base import EquilibriumModel, Start
from ..checks import check_rows, counts, given_start
from ..norms import norm_estimate, spectral_norm
from .ties import settled


class AffineFamily(EquilibriumModel):
    """Z = σ(Z W(θ)ᵀ + u(X; θ)),  ŷ = readout(Z).

    `forward` and `equilibrium` are differentiable in the parameters and in X, to every order. `start=` is any
    earlier Z. `rtol` of `stop=` holds for the forward and for the adjoint solve.
    """

    readout_name: ClassVar[str]  # the parameter of the last, linear layer; the others are the hidden ones
    readout_bias_name: ClassVar[str | None] = None  # the parameter that is added to the readout
    scaled_name: ClassVar[str | None] = None  # the parameter that W(θ) is a multiple of, if there is one
    structured = True
    direct: ClassVar[bool] = False  # whether ŷ is found without an iteration
    activation: Activation = RELU
    relu_at_zero: float = 0  # relu'(0), 0 or 1: the slope that masks take at a tie
    inputs: int  # d
    width: int  # m
    outputs: int  # k

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.inputs, self.width, self.outputs = counts(inputs=inputs, width=width, outputs=outputs)

    # -- what a family is --------------------------------------------------------------------------------

    @abstractmethod
    def weight(self) -> Tensor:
        """W(θ), the effective weight (m, m)."""

    @abstractmethod
    def injection(self, X: Tensor) -> Tensor:
        """u(X; θ), (N, m)."""

    @abstractmethod
    def pullback(self, V: Tensor, R: Tensor, Z: Tensor, X: Tensor) -> dict[str, Tensor]:
        """Σ_ip R_ip ∂ŷ_ip/∂θ for every parameter by name; with R = ∂L/∂ŷ (like ŷ) the gradient of L."""

    @abstractmethod
    def gram(self, V: Tensor, Z: Tensor, X: Tensor, V2: Tensor, Z2: Tensor, X2: Tensor) -> dict[str, Tensor]:
        """⟨∂ŷ_ip/∂θ, ∂ŷ_jq/∂θ⟩ for every parameter by name: (N, N2), or (N, k, N2, k) for k > 1."""

    @abstractmethod
    def check_wellposed(self) -> None:
        """Raise a ValueError unless the weights give every input one equilibrium; it says what to do."""

    def contraction(self) -> float | None:
        """q = ‖W(θ)‖ if it is below 1, so that plain iteration contracts; otherwise None."""
        q = spectral_norm(self.weight())
        return q if q < 1 else None

    def resolvent_bound(self) -> float:
        """R with ‖z(u) − z(u')‖ ≤ R‖u − u'‖: 1/(1 − q). A float64 number, not a proof."""
        q = self.contraction()
        return float("inf") if q is None else 1 / (1 - q)

    def default_solver(self, problem: AffineMap) -> Solvers:
        """The solver if none is named: plain iteration, then splitting on the rows on which that fails.

        If ‖W‖ > 1 but λ_max(sym W) < 1, each sample has one equilibrium, which plain iteration may not find.
        """
        return Picard() if problem.activation.prox is None else (Picard(), PeacemanRachford())

    @property
    def readout_weight(self) -> Tensor:
        """(m,), or (m, k) for k > 1 outputs."""
        return getattr(self, self.readout_name)

    @property
    def readout_bias(self) -> Tensor | None:
        """The bias that is added to Z a, (k,); None in a family that has none."""
        return None if self.readout_bias_name is None else getattr(self, self.readout_bias_name)

    @property
    def readout_shape(self) -> tuple[int, ...]:
        """The shape of a readout weight: (m,), or (m, k) for k > 1 outputs."""
        return (self.width,) if self.outputs == 1 else (self.width, self.outputs)

    def output_shape(self, N: int) -> tuple[int, ...]:
        """The shape of ŷ for N samples: (N,), or (N, k) for k > 1 outputs."""
        return (N,) if self.outputs == 1 else (N, self.outputs)

    def readout(self, Z: Tensor) -> Tensor:
        """ŷ = Z a, plus the bias of a family that has one: (N,), or (N, k) for k > 1 outputs."""
        scores = Z @ self.readout_weight
        return scores if self.readout_bias is None else scores + self.readout_bias

    @property
    def hidden_names(self) -> tuple[str, ...]:
        """Every parameter but the readout and its bias."""
        outside = (self.readout_name, self.readout_bias_name)
        return tuple(name for name, _ in self.named_parameters() if name not in outside)

    # -- equilibria --------------------------------------------------------------------------------------

    def equation(  # type: ignore[override]
        self, X: Tensor, *, start: Start = None, method: Method, problem: AffineMap | None = None
    ) -> AffineEquation:
        """Z = σ(Z Wᵀ + u). `problem` is `affine_map(X)`, without a gradient, if it is known already."""
        X = self._check_inputs(X)
        z0 = given_start(start, (len(X), self.width))
        if z0 is None and not isinstance(method.gradient, SolvedGradient):
            z0 = X.new_zeros(len(X), self.width)  # where recorded steps begin
        if problem is None and not (needs_gradient((X, *self.parameters())) or under_transform()):
            problem = self.affine_map(X)
        weight, u = (self.weight(), self.injection(X)) if problem is None else (problem.weight, problem.bias)
        equation = AffineEquation(u, weight, self.activation, method, self.default_solver, self._masks, z0)
        if problem is not None:
            equation.problem = problem
        return equation

    def default_gradient(self) -> Gradient:
        """One adjoint for every residual."""
        return StructuredAdjoint()

    @unlowered
    def forward(self, X: Tensor, **how: Any) -> Tensor:  # type: ignore[override]
        """ŷ = readout(Z), (N,) or (N, k)."""
        return super().forward(X, **how)

    @uncompiled
    @unlowered
    def equilibrium(self, X: Tensor, **how: Any) -> Tensor:  # type: ignore[override]
        """Z (N, m), differentiable."""
        return super().equilibrium(X, **how)

    @uncompiled
    @unlowered
    def solve(self, X: Tensor, **how: Any) -> Solution:  # type: ignore[override]
        """The Solution behind `equilibrium`; `problem=` is `affine_map(X)`, if it is known already."""
        return super().solve(X, **how)

    @torch.no_grad()
    @unlowered
    def affine_map(self, X: Tensor) -> AffineMap:
        """f(Z) = σ(Z Wᵀ + u), the problem that `solve` hands to the solvers."""
        return AffineMap(self.weight(), self.injection(X), self.activation)

    # -- the adjoint of the readout ----------------------------------------------------------------------

    def adjoint(self, Z: Tensor, X: Tensor, **options: Any) -> Tensor:
        """V = D ∘ (1 aᵀ + V W): (N, m), or (N, k, m) for k > 1. Options and failures as `solve_adjoint`'s."""
        solution = self.solve_adjoint(Z, X, **options)
        if solution.failed_rows:
            raise EquilibriumError(f"adjoint solve: {solution.explain_failure()}", solution)
        assert isinstance(solution.value, Tensor)
        return solution.value

    @torch.no_grad()
    @unlowered
    def solve_adjoint(
        self,
        Z: Tensor,
        X: Tensor,
        *,
        weights: Tensor | None = None,
        masks: Tensor | None = None,
        image: Tensor | None = None,
        start: Tensor | Solution | None = None,
        problem: AffineMap | None = None,
        **how: Any,
    ) -> Solution:
        """The Solution of V = D ∘ (1 aᵀ + V W): one solve serves every residual, and the tangent kernel.

        With `weights` R (N, k) it is that of L = D ∘ (R aᵀ + L W), (N, m), the adjoint of one weighted sum of
        the outputs, which takes a k-th of the work. `masks` are those of Z, `image` is f(Z) and `problem` is
        `affine_map(X)`, if they are known already; `start` is an earlier V. `stop=`, `solver=` and
        `precision=` hold for this solve.
        """
        N, k, m = len(self._check_inputs(X)), self.outputs, self.width
        given_start(Z, (N, m), "Z")
        shape = self.adjoint_shape(N) if weights is None else (N, m)
        v0 = given_start(start, shape)
        problem = problem or self.affine_map(X)
        D = self._masks(problem, Z, image) if masks is None else masks
        a = self.readout_weight.reshape(m, k).T  # (k, m)
        if weights is None:
            rows, D = a.expand(N, k, m).reshape(N * k, m), D.repeat_interleave(k, dim=0)  # 1 aᵀ
        else:
            rows = weights.reshape(N, k) @ a
        linear = MaskedMap(problem.weight.T, rows, D)
        linear.cache = transposed(problem.cache)
        method = self.method.changed(**{"precision": "auto", **how})
        solution = fixed_point(
            linear,
            None if v0 is None else v0.reshape(len(rows), m),
            solver=method.solver or self.default_solver(linear),
            stop=method.stop,
            precision=method.precision,
        )
        return solution if len(shape) == 2 else by_sample(solution, N, k, m)

    def adjoint_shape(self, N: int) -> tuple[int, ...]:
        """The shape of V for N samples: (N, m), or (N, k, m) for k > 1 outputs."""
        return (N, self.width) if self.outputs == 1 else (N, self.outputs, self.width)

    @torch.no_grad()
    def masks(self, Z: Tensor, X: Tensor) -> Tensor:
        """D = σ'(Z Wᵀ + u), (N, m), read at an approximate equilibrium Z.

        A tie is a pre-activation that is 0 up to the rounding of its own sum, with an injection of exactly 0.
        A coordinate that decays to a tie from above is recognised as one, whatever the start (see `ties`).
        The slope there is `relu_at_zero`: 0, or 1 if the family was asked for that. Every other mask is read
        from Z as it is.
        """
        given_start(Z, (len(self._check_inputs(X)), self.width), "Z")
        return self._masks(self.affine_map(X), Z)

    def _masks(self, problem: AffineMap, Z: Tensor, image: Tensor | None = None) -> Tensor:
        """`masks`, of a problem; `image` is relu(P), whose signs are enough unless a tie has slope 1."""
        known = image is not None and self.activation.name == "relu" and self.relu_at_zero == 0
        P = image if image is not None and known else problem.preactivation(Z)
        suspect = problem.bias == 0
        if bool(suspect.any()):
            error = 2 * self._error(problem, self.activation(P) - Z)  # (N,)
            near = suspect & (P.abs() <= error[:, None] * problem.weight.norm(dim=1))
            # Unless W has zeros, a unit without injection is 0 only if all others are.
            asked = near if bool((problem.weight == 0).any()) else near & (P != 0)
            rows = torch.nonzero(asked.any(dim=1)).flatten()
            at = problem.take(rows)
            P = P.index_copy(0, rows, settled(P[rows], at.weight, at.bias, self.activation, near[rows]))
        return self.slope(P)

    def slope(self, P: Tensor) -> Tensor:
        """σ'(P), (N, m), with the family's choice of relu'(0)."""
        return (P >= 0).to(P.dtype) if self.relu_at_zero == 1 else self.activation.slope(P)

    def _error(self, problem: AffineMap, change: Tensor) -> Tensor:
        """About ‖z − z*‖ of each row from f(z) − z: ‖f(z) − z‖ / (1 − ‖W‖), with ‖W‖ from a few products."""
        q = min(norm_estimate(problem.weight), 0.999)
        return row_norms(change) / (1 - q)

    # -- housekeeping ------------------------------------------------------------------------------------

    def _check_inputs(self, X: Tensor) -> Tensor:
        """X, checked and made contiguous, since the last bits of a product may depend on its layout."""
        check_rows(X, self.inputs, self.readout_weight)
        return X.contiguous()
