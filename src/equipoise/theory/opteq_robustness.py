"""‖z(x) − z(x')‖ ≤ s/(1 − q) ‖x − x'‖: how the equilibria of an OptEq follow their inputs.

With g_l = 1 − α + α L_σ‖W_l‖²/μ, T contracts by q = ∏ g_l in z, and when x moves by one it moves by at most
s = Σ_l (α/μ) L_σ‖W_l‖‖U_l‖ ∏_{j>l} g_j. A nonexpansive property behind the layers changes neither.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..linalg import Interval, gamma, norm_upper, row_norms_upper, singular_bounds
from .families import SVD
from .opteq import contraction_claim, double, effective_norm, equilibria_error, obstacle_of, tight


class OptEqNetwork:
    """The weights of an OptEq in float64, as the bounds of `robustness` need them."""

    linear = False

    def __init__(self, model: Any) -> None:
        if model.feature_map is not None:
            raise ValueError(
                "a Lipschitz bound in x needs g(x) = x: nothing is known of a feature_map. "
                "Give the features themselves as inputs to a model without one."
            )
        self.model = double(model)
        self.obstacle = obstacle_of(model, self.model, self.model.V.new_zeros(1, model.inputs))
        self.a = self.model.V.reshape(self.model.width, self.model.outputs)  # (m, k)
        self.q = Interval(math.inf)
        if not self.obstacle:
            claim, self.q = contraction_claim(self.model, lambda W: singular_bounds(W).norm, SVD)
            if not claim.holds:
                self.obstacle = f"uniqueness of the equilibrium is not proved: {claim}"

    @torch.no_grad()
    def state_bound(self) -> float:
        """≥ the Lipschitz constant of x ↦ z(x)."""
        if self.obstacle:
            return math.inf
        model, moved = self.model, Interval(0.0)
        alpha, slope = Interval(model.alpha), Interval(float(model.activation.lipschitz)) / model.mu
        for layer, W in zip(model.blocks, model.weights(), strict=True):
            size = effective_norm(model, singular_bounds(W).norm)
            moved = (1 - alpha + alpha * slope * size**2) * moved
            moved = moved + alpha * slope * size * Interval(norm_upper(layer.U))
        return (moved / (1 - self.q)).hi

    def checked(self, X: Tensor) -> Tensor:
        """X (N, d) in float64."""
        X = X.detach().to(self.a) if isinstance(X, Tensor) else X
        self.model._check_inputs(X)
        return X

    @torch.no_grad()
    def scores(self, X: Tensor) -> tuple[Tensor, float]:
        """ŷ (N, k) of a checked X, and ≥ the error of a difference of two of a row's."""
        Z = self.model.solve(X, stop=tight(self.model)).value
        assert isinstance(Z, Tensor)
        largest, columns = (Interval(row_norms_upper(M).amax().item()) for M in (Z, self.a.T))
        error = Interval(0.0, equilibria_error(self.model, X, Z, self.q))
        one = columns * error + gamma(self.model.width + 4) * largest * columns
        return Z @ self.a, (2 * one + 2.0**-1000).hi
