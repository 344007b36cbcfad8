"""‖Z − f(Z)‖_F, ‖M‖, σ_min(M) with every product in ball arithmetic: the tier `rigorous` of a certificate.

The formulas are those of the tier float64, but nothing is assumed of the machine's products: W(θ), u(X; θ),
the residuals of the SVDs and of the equilibria, and the loss are enclosed by python-flint. SVDs and
equilibria themselves come from float64 and are not trusted, as in the other tier.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..linalg import (
    UNIT,
    Interval,
    SingularBounds,
    norm_upper_ball,
    sigma_min_lower_ball,
)
from ..linalg.ball import balls, defect, lower_end, python_flint, scalar_matrix, upper_end
from ..solve import IDENTITY, RELU
from .certificate import RIGOROUS_TIER
from .enclosure import Enclosure, Equilibria, widened
from .instance import Instance

_BITS = 128
METHOD = "residuals of an SVD in ball arithmetic"


class RigorousInstance(Instance):
    """(model, X, y) with every bound from ball arithmetic."""

    tier: ClassVar[str] = "rigorous"
    arithmetic: ClassVar[str] = RIGOROUS_TIER
    method: ClassVar[str] = METHOD

    def singular(self, M: Tensor) -> SingularBounds:
        """‖M‖ and σ_min(M), in balls."""
        return singular(M)

    def frobenius(self, M: Tensor) -> Interval:
        """‖M‖_F, in balls."""
        return frobenius(_rows(M))

    def one_norm(self, M: Tensor) -> Interval:
        """‖M‖₁, in balls."""
        with precision():
            sums = [sum(column, python_flint().arb(0)) for column in zip(*_absolute(M), strict=True)]
            return Interval(max(lower_end(s) for s in sums), max(upper_end(s) for s in sums))

    @cached_property
    def enclosure(self) -> Enclosure:
        """W and u in balls, and the reason for uniqueness."""
        with torch.no_grad():
            return self.facts.enclosure_in_balls(self.X)

    def equilibria_of(self, Z: Tensor) -> Equilibria:
        """Z (N, m), offered as the equilibria of X, with its error in balls."""
        return RigorousEquilibria(self.model, self.enclosure, Z)

    def _residual_of(self, Z: Tensor) -> Interval:
        if self.y is None:
            raise ValueError("y is required: this theorem is about a loss.")
        a = self.model.readout_weight.reshape(self.model.width, -1)
        with precision():
            return frobenius((balls(Z) * balls(a) - balls(self.y.reshape(self.N, -1))).tolist())


class RigorousEquilibria(Equilibria):
    """Z* within e(1 + ‖W‖R) of Z, with e from balls."""

    @cached_property
    def residual(self) -> Interval:
        """‖Z − f(Z)‖_F, in balls."""
        at = self.enclosure
        assert isinstance(at, BallEnclosure)
        with precision():
            P = balls(self.Z) * at.W.transpose() + at.u  # (N, m)
            return frobenius((balls(self.Z) - self._activated(P)).tolist())

    def _activated(self, P: Any) -> Any:
        """σ of balls, of the two activations that are known in them."""
        activation = self.model.activation
        if activation not in (RELU, IDENTITY):
            raise TypeError(
                f"the tier 'rigorous' knows relu and the identity. Got {activation.name} instead."
            )
        return relu_of_balls(P) if activation == RELU else P

    @cached_property
    def spectrum(self) -> SingularBounds:
        """‖Z*‖ and σ_min(Z*), by an SVD whose residuals are in balls."""
        return widened(singular(self.Z), self.error)

    @cached_property
    def frobenius(self) -> Interval:
        """‖Z*‖_F, in balls."""
        found = frobenius(_rows(self.Z)) + Interval.within(self.error)
        return Interval(max(found.lo, 0.0), found.hi)


# -- W and u in balls ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BallEnclosure(Enclosure):
    """W (m, m) and u (N, m) of the exact parameters, as matrices of balls."""

    W: Any = field(default=None, repr=False)
    u: Any = field(default=None, repr=False)


def ball_enclosure(model: Any, X: Tensor, W: Any, u: Any, norm: Interval, **more: Any) -> BallEnclosure:
    """The balls, with the float64 weight and injection and their distances from the balls."""
    weight, injection = model.weight(), model.injection(X)
    with precision():
        weight_error = frobenius((W - balls(weight)).tolist()).hi
        injection_error = frobenius((u - balls(injection)).tolist()).hi
    return BallEnclosure(
        weight=weight,
        weight_error=weight_error,
        weight_norm=norm,
        injection=injection,
        injection_error=injection_error,
        W=W,
        u=u,
        **more,
    )


# -- norms ---------------------------------------------------------------------------------------------------


def singular(M: Tensor) -> SingularBounds:
    """‖M‖ and σ_min(M): outer ends from the SVD's residuals, inner ends ‖Mᵀx‖/‖x‖ for two vectors x."""
    M = M if M.shape[0] <= M.shape[1] else M.T
    svd = U, _, _ = torch.linalg.svd(M, full_matrices=False)
    with precision():
        top, low = (
            frobenius((balls(M.T) * balls(x)).tolist()) / frobenius(_rows(x)) for x in (U[:, :1], U[:, -1:])
        )
    upper, lower = norm_upper_ball(M, svd), sigma_min_lower_ball(M, svd)
    return SingularBounds(
        norm=Interval(min(max(top.lo, 0.0), upper), upper), sigma_min=Interval(lower, max(low.hi, lower))
    )


def margin_in_balls(W: Any, weight: Tensor) -> float:
    """≤ λ_min(sym(I − W)) of W in balls, by a Cholesky factor of the float64 weight, which is not trusted."""
    n, eye = len(weight), torch.eye(len(weight), dtype=torch.float64, device=weight.device)
    S = (weight + weight.T) / 2
    values = torch.linalg.eigvalsh(S) if bool(torch.isfinite(S).all()) else S.new_full((1,), math.nan)
    tau = float(values[-1] + 4 * n * UNIT * values.abs().amax())  # just above λ_max
    L, info = torch.linalg.cholesky_ex(tau * eye - S)
    if int(info) or not bool(torch.isfinite(L).all()):
        return -math.inf
    with precision():
        factor, shift = balls(L), python_flint().arb(tau)
        shifted = scalar_matrix(n, shift) - (W + W.transpose()) / 2
        return lower_end(1 - shift - defect(factor, factor.transpose(), shifted))


def frobenius(entries: list[list[Any]]) -> Interval:
    """‖M‖_F of balls, or of exact numbers."""
    arb = python_flint().arb
    with precision():
        square = sum((x * x for x in chain.from_iterable(entries)), arb(0))
        if square.is_zero():
            return Interval(0.0)
        low, high = arb(square.lower()).max(arb(0)).sqrt(), arb(square.upper()).sqrt()
        return Interval(max(lower_end(low), 0.0), upper_end(high))


def _rows(M: Tensor) -> list[list[Any]]:
    return balls(M.reshape(len(M), -1)).tolist()


def _absolute(M: Tensor) -> Iterable[list[Any]]:
    return balls(M.abs()).tolist()


def relu_of_balls(P: Any) -> Any:
    """max(P, 0) of a matrix of balls."""
    zero = python_flint().arb(0)
    return python_flint().arb_mat([[x.max(zero) for x in row] for row in P.tolist()])


def precision() -> Any:
    """A context in which python-flint computes with enough bits."""
    return python_flint().ctx.workprec(_BITS)
