"""‖Z − f(Z)‖_F, ‖M‖, σ_min(M) with every product in ball arithmetic: the tier `rigorous` of a certificate.

The same formulas as in float64, but nothing is assumed of the machine's products: W(θ), u(X; θ), the
residuals of the SVDs and of the equilibria, and the loss are enclosed by python-flint. SVDs and equilibria
themselves come from float64 and are not trusted, as in the other tier.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, singledispatch
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..linalg import (
    UNIT,
    Interval,
    SingularBounds,
    minimum,
    norm_upper_ball,
    sigma_min_lower_ball,
)
from ..linalg.ball import _balls, _defect, _down, _flint, _scalar, _up
from ..models.gaussian_relu import GaussianReLU
from ..models.linear import LinearEquilibrium
from ..models.monotone import Monotone
from ..models.scaled_relu import ScaledReLU
from .certificate import RIGOROUS_TIER
from .enclosure import Enclosure, Equilibria, widened
from .families import contracts, is_monotone, is_stochastic, reasons, stochastic_bounds
from .instance import Instance

_BITS = 128
_METHOD = "residuals of an SVD in ball arithmetic"


class RigorousInstance(Instance):
    """(model, X, y) with every bound from ball arithmetic."""

    tier: ClassVar[str] = "rigorous"
    arithmetic: ClassVar[str] = RIGOROUS_TIER
    method: ClassVar[str] = _METHOD

    def singular(self, M: Tensor) -> SingularBounds:
        return singular(M)

    def frobenius(self, M: Tensor) -> Interval:
        return frobenius(_rows(M))

    def one_norm(self, M: Tensor) -> Interval:
        with _precision():
            sums = [sum(column, _flint().arb(0)) for column in zip(*_absolute(M), strict=True)]
            return Interval(max(_down(s) for s in sums), max(_up(s) for s in sums))

    @cached_property
    def enclosure(self) -> Enclosure:
        with torch.no_grad():
            return enclose_in_balls(self.model, self.X)

    def equilibria_of(self, Z: Tensor) -> Equilibria:
        return RigorousEquilibria(self.model, self.enclosure, Z)

    def _residual_of(self, Z: Tensor) -> Interval:
        if self.y is None:
            raise ValueError("y is required: this theorem is about a loss.")
        a = self.model.readout_weight.reshape(self.model.width, -1)
        with _precision():
            return frobenius((_balls(Z) * _balls(a) - _balls(self.y.reshape(self.N, -1))).tolist())


class RigorousEquilibria(Equilibria):
    """Z* within e(1 + ‖W‖R) of Z, with e from balls."""

    @cached_property
    def residual(self) -> Interval:
        at = self.enclosure
        assert isinstance(at, BallEnclosure)
        with _precision():
            P = _balls(self.Z) * at.W.transpose() + at.u  # (N, m)
            f = P if isinstance(self.model, LinearEquilibrium) else _relu(P)
            return frobenius((_balls(self.Z) - f).tolist())

    @cached_property
    def spectrum(self) -> SingularBounds:
        return widened(singular(self.Z), self.error)

    @cached_property
    def frobenius(self) -> Interval:
        found = frobenius(_rows(self.Z)) + Interval.within(self.error)
        return Interval(max(found.lo, 0.0), found.hi)


# -- the families in balls -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class BallEnclosure(Enclosure):
    """W (m, m) and u (N, m) of the exact parameters, as matrices of balls."""

    W: Any = field(default=None, repr=False)
    u: Any = field(default=None, repr=False)


@singledispatch
def enclose_in_balls(model: Any, X: Tensor) -> BallEnclosure:
    raise TypeError(f"the tier 'rigorous' does not know {type(model).__name__}.")


@enclose_in_balls.register
def _(model: GaussianReLU, X: Tensor) -> BallEnclosure:
    norm = singular(model.W).norm
    reason = contracts(model, norm, _METHOD)
    with _precision():
        W, u = _balls(model.W), _balls(X) * _balls(model.U.T)
    return _enclosure(model, X, W, u, norm, norms={"W": norm}, **reasons(reason, _margin(W, model.weight())))


@enclose_in_balls.register
def _(model: ScaledReLU, X: Tensor) -> BallEnclosure:
    size = singular(model.A).norm
    norm = abs(Interval(float(model.gamma))) * size
    reason = contracts(model, norm, _METHOD)
    with _precision():
        W = _balls(model.A.T) * _flint().arb(model.gamma)
        u = _relu(_balls(X) * _balls(model.W))
    return _enclosure(model, X, W, u, norm, norms={"A": size}, **reasons(reason, _margin(W, model.weight())))


@enclose_in_balls.register
def _(model: Monotone, X: Tensor) -> BallEnclosure:
    reason, flint = is_monotone(model), _flint()
    with _precision():
        A, B = _balls(model.A), _balls(model.B)
        keep = 1 - flint.arb(model.margin)
        eye = flint.arb_mat([[int(i == j) for j in range(model.width)] for i in range(model.width)])
        W = eye * keep - A.transpose() * A + B - B.transpose()
        u = _balls(X) * _balls(model.U.T)
        if model.bias is not None:
            u = u + _balls(model.bias.expand(len(X), -1))
    resolvent = 1 / reason.left if reason.holds else Interval(0.0, math.inf)
    more = {"unique": (reason,), "resolvent": resolvent, "reason": "the monotone margin μ"}
    return _enclosure(model, X, W, u, Interval(0.0, frobenius(W.tolist()).hi), **more)


@enclose_in_balls.register
def _(model: LinearEquilibrium, X: Tensor) -> BallEnclosure:
    reason, flint = is_stochastic(model), _flint()
    with _precision():
        columns = []
        for column in _balls(model.A.T).tolist():
            powers = [(x - max(column, key=float)).exp() for x in column]
            total = sum(powers, flint.arb(0))
            columns.append([flint.arb(model.gamma) * p / total for p in powers])
        W, u = flint.arb_mat(columns).transpose(), _balls(model.injection(X))
    norm, inverse = stochastic_bounds(model)
    size = minimum(frobenius(W.tolist()), norm)
    resolvent = Interval(0.0, inverse.hi if reason.holds else math.inf)
    more = {"unique": (reason,), "resolvent": resolvent, "reason": "‖γS‖₁ = γ < 1"}
    return _enclosure(model, X, W, u, Interval(0.0, size.hi), **more)


def _enclosure(model: Any, X: Tensor, W: Any, u: Any, norm: Interval, **more: Any) -> BallEnclosure:
    """With the float64 weight and injection beside the balls, and how far they are from them."""
    weight, injection = model.weight(), model.injection(X)
    with _precision():
        weight_error = frobenius((W - _balls(weight)).tolist()).hi
        injection_error = frobenius((u - _balls(injection)).tolist()).hi
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
    with _precision():
        top, low = (
            frobenius((_balls(M.T) * _balls(x)).tolist()) / frobenius(_rows(x)) for x in (U[:, :1], U[:, -1:])
        )
    upper, lower = norm_upper_ball(M, svd), sigma_min_lower_ball(M, svd)
    return SingularBounds(
        norm=Interval(min(max(top.lo, 0.0), upper), upper), sigma_min=Interval(lower, max(low.hi, lower))
    )


def _margin(W: Any, weight: Tensor) -> float:
    """≤ λ_min(sym(I − W)) of W in balls, by a Cholesky factor of the float64 weight, which is not trusted."""
    n, eye = len(weight), torch.eye(len(weight), dtype=torch.float64, device=weight.device)
    S = (weight + weight.T) / 2
    values = torch.linalg.eigvalsh(S) if bool(torch.isfinite(S).all()) else S.new_full((1,), math.nan)
    tau = float(values[-1] + 4 * n * UNIT * values.abs().amax())  # just above λ_max
    L, info = torch.linalg.cholesky_ex(tau * eye - S)
    if int(info) or not bool(torch.isfinite(L).all()):
        return -math.inf
    with _precision():
        factor, shift = _balls(L), _flint().arb(tau)
        shifted = _scalar(n, shift) - (W + W.transpose()) / 2
        return _down(1 - shift - _defect(factor, factor.transpose(), shifted))


def frobenius(entries: list[list[Any]]) -> Interval:
    """‖M‖_F of balls, or of exact numbers."""
    arb = _flint().arb
    with _precision():
        square = sum((x * x for x in chain.from_iterable(entries)), arb(0))
        if square.is_zero():
            return Interval(0.0)
        low, high = arb(square.lower()).max(arb(0)).sqrt(), arb(square.upper()).sqrt()
        return Interval(max(_down(low), 0.0), _up(high))


def _rows(M: Tensor) -> list[list[Any]]:
    return _balls(M.reshape(len(M), -1)).tolist()


def _absolute(M: Tensor) -> Iterable[list[Any]]:
    return _balls(M.abs()).tolist()


def _relu(P: Any) -> Any:
    zero = _flint().arb(0)
    return _flint().arb_mat([[x.max(zero) for x in row] for row in P.tolist()])


def _precision() -> Any:
    return _flint().ctx.workprec(_BITS)
