"""A network, its data, and every number a theorem asks of them, each enclosed in an interval."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..linalg import Interval, frobenius, gamma, singular_bounds
from ..models.affine import AffineFamily
from ..solve import Stop
from . import families  # noqa: F401  (registers what is known of each family)
from .certificate import fingerprint
from .enclosure import Enclosure, Equilibria, enclose, product_rounding

T = TypeVar("T")

# Tight enough that the equilibrium's error is lost in the margins, loose enough for float64 to reach.
_TIGHT = Stop(rtol=1e-13, max_steps=5000)
_TIGHT_ENOUGH = Stop(rtol=1e-11, max_steps=5000)


class Instance:
    """(model, X, y) in float64: the exact values of the stored numbers, whatever their dtype.

    Everything is computed when first asked for and kept. `obstacle` says why no theorem can speak at all.
    """

    def __init__(self, model: AffineFamily, X: Tensor, y: Tensor | None = None) -> None:
        if not isinstance(model, AffineFamily):
            raise TypeError(
                f"model must be an affine family of equipoise. Got {type(model).__name__} instead."
            )
        self.original, self.fingerprint = model, fingerprint(model, X, y)
        self.model = copy.deepcopy(model).double().requires_grad_(False)
        self._norms: dict[str, Interval] = {}
        self._kept: dict[str, Any] = {}
        self.X = self._matrix(X)
        self.y = None if y is None else self._targets(y)
        self.obstacle = self._obstacle()

    def _matrix(self, X: Tensor) -> Tensor:
        if not isinstance(X, Tensor) or X.ndim != 2 or X.shape[1] != self.model.inputs:
            got = tuple(X.shape) if isinstance(X, Tensor) else type(X).__name__
            raise ValueError(f"X must be (N, {self.model.inputs}), a row a sample. Got {got} instead.")
        if len(X) == 0:
            raise ValueError("X must have at least one row: a certificate is about data. Got none.")
        return X.detach().double()

    def _targets(self, y: Tensor) -> Tensor:
        shape = self.model.readout(torch.zeros(len(self.X), self.model.width, dtype=torch.float64)).shape
        if tuple(y.shape) != tuple(shape):
            raise ValueError(
                f"y must be {tuple(shape)} like the network's output. Got {tuple(y.shape)} instead."
            )
        return y.detach().double()

    def _obstacle(self) -> str:
        named = [("X", self.X), ("y", self.y), *self.model.state_dict().items()]
        for name, value in named:
            if value is not None and not bool(torch.isfinite(value).all()):
                where = ""
                if name in ("X", "y"):
                    bad = ~torch.isfinite(value).reshape(len(value), -1).all(dim=1)
                    where = f" in row {int(torch.nonzero(bad)[0])}"
                return f"{name} holds NaN or infinity{where}: nothing can be said of it."
        return ""

    @property
    def N(self) -> int:
        return len(self.X)

    # -- weights --------------------------------------------------------------------------------------------

    @cached_property
    def enclosure(self) -> Enclosure:
        with torch.no_grad():
            return enclose(self.model, self.X)

    def keep(self, name: str, compute: Callable[[], T]) -> T:
        """A number of one theorem, computed when first asked for and kept."""
        if name not in self._kept:
            self._kept[name] = compute()
        return self._kept[name]

    def norm(self, name: str) -> Interval:
        """‖θ‖ of one parameter: the operator norm of a matrix, the Euclidean of a vector."""
        if name not in self._norms:
            value = self.model.get_parameter(name)
            known = self.enclosure.norms.get(name)
            self._norms[name] = known or (
                frobenius(value) if value.ndim == 1 else singular_bounds(value).norm
            )
        return self._norms[name]

    # -- data -----------------------------------------------------------------------------------------------

    @cached_property
    def X_frobenius(self) -> Interval:
        return frobenius(self.X)

    @cached_property
    def X_norm(self) -> Interval:
        return singular_bounds(self.X).norm

    # -- equilibria -----------------------------------------------------------------------------------------

    @cached_property
    def equilibria(self) -> Equilibria:
        solution = self.model.solve(self.X, stop=_TIGHT)
        if solution.failed_rows:
            solution = self.model.solve(self.X, stop=_TIGHT_ENOUGH, start=_finite(solution.value))
        assert isinstance(solution.value, Tensor)
        return Equilibria(self.model, self.enclosure, _finite(solution.value))

    @property
    def Z(self) -> Tensor:
        return self.equilibria.Z

    @cached_property
    def sigma_N(self) -> Interval:
        """√λ_min(ZZᵀ): σ_min(Z) where the width allows N independent rows, 0 where m < N."""
        return self.equilibria.spectrum.sigma_min if self.model.width >= self.N else Interval(0.0)

    @cached_property
    def readout_norm(self) -> Interval:
        """‖a‖, the operator norm for k > 1 outputs."""
        return self.norm(self.model.readout_name)

    @cached_property
    def residual_norm(self) -> Interval:
        """‖r(0)‖ = ‖readout(Z*) − y‖ (Frobenius for k > 1)."""
        if self.y is None:
            raise ValueError("y is required: this theorem is about a loss.")
        computed = self.model.readout(self.Z) - self.y
        a = self.model.readout_weight
        rounding = product_rounding(self.Z, a) + gamma(4) * (frobenius(self.y) + frobenius(computed))
        slack = Interval.within((rounding + frobenius(a) * self.equilibria.error).hi)
        found = frobenius(computed) + slack
        return Interval(max(found.lo, 0.0), found.hi)


def _finite(Z: object) -> Tensor:
    """Where a solve overflowed, zero: the error bound then says how far that is from the truth."""
    assert isinstance(Z, Tensor)
    return torch.where(torch.isfinite(Z), Z, 0.0)
