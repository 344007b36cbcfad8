"""p = W h + U x + u,  h = σ(p),  ŷ = C h + c: the one form in which every family is verified.

σ is relu, or the identity. A family says its form through its facts (`Facts.unit_network`); what it computes
of its parameters comes with a bound of the rounding, so that the bounds speak of the exact network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...linalg import gamma, norm_upper, row_norms_upper
from ...linalg.products import as_float64
from ...solve import RELU, Activation, AffineMap, Newton, PeacemanRachford, Picard, Stop, fixed_point

_TIGHT = Stop(rtol=1e-13, max_steps=3000)
_TENSORS = ("weight", "inputs", "offset", "readout", "shift")
UP = 1 + 2.0**-44  # more than the rounding of a few sums and products of non-negative numbers
LEAST = 2.0**-1060  # more than what a few products lose where they are subnormal


def up(x: Tensor) -> Tensor:
    """≥ a number that a few operations on non-negative floats gave as x."""
    return x * UP + LEAST


def one_norms(rows: Tensor) -> Tensor:
    """≥ ‖row‖₁ of every row, (N,)."""
    return up(rows.abs().sum(dim=1) * (1 + rows.shape[1] * 2.0**-52))


@dataclass(frozen=True)
class UnitNetwork:
    """The parts of a network in float64, with bounds of how far the exact ones are."""

    weight: Tensor  # (n, n)
    weight_error: float  # ≥ ‖W − W exact‖_F
    inputs: Tensor  # (n, d), exact
    offset: Tensor  # (n,), exact
    readout: Tensor  # (k, n)
    readout_error: float  # ≥ ‖C − C exact‖_F
    shift: Tensor  # (k,), exact
    resolvent: float  # R: ‖h − h'‖ ≤ R‖b − b'‖ of the equilibria of two injections b = U x + u
    activation: Activation = RELU

    def __post_init__(self) -> None:
        for value in (self.weight, self.inputs, self.offset, self.readout, self.shift):
            as_float64(value, ndim=None)  # refuses where subnormal numbers are lost

    def on_cpu(self) -> UnitNetwork:
        """The same network where all of this is computed."""
        tensors: dict[str, Any] = {n: t.cpu() for n, t in vars(self).items() if isinstance(t, Tensor)}
        return replace(self, **{name: t for name, t in tensors.items() if name in _TENSORS})

    @property
    def linear(self) -> bool:
        """Whether σ is the identity."""
        return self.activation != RELU

    @property
    def width(self) -> int:
        """n, the number of units."""
        return len(self.weight)

    @cached_property
    def weight_norm(self) -> float:
        """≥ ‖W exact‖."""
        return (norm_upper(self.weight) + self.weight_error) * UP

    @cached_property
    def row_norms(self) -> Tensor:
        """≥ ‖W_i exact‖ of every row, (n,)."""
        return up(row_norms_upper(self.weight) + self.weight_error)

    @cached_property
    def column_peaks(self) -> Tensor:
        """max_i |W_ij|, (n,)."""
        return self.weight.abs().amax(dim=0)

    @cached_property
    def input_peaks(self) -> Tensor:
        """max_i |U_ij|, (d,)."""
        return self.inputs.abs().amax(dim=0)

    def injection(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """b = U x + u of rows X, and ≥ the error of each entry, both (N, n)."""
        b = X @ self.inputs.T + self.offset
        size = X.abs() @ self.inputs.abs().T + self.offset.abs()
        return b, up(gamma(X.shape[1] + 4) * up(size) + X.shape[1] * LEAST)

    def equilibria(self, b: Tensor, start: Tensor | None = None) -> Tensor:
        """h = σ(W h + b), as near as float64 finds it; what it did not find is 0. (N, n)."""
        problem = self._problem.with_bias(b)
        found = fixed_point(problem, start, solver=self._solvers, stop=_TIGHT).value
        assert isinstance(found, Tensor)
        return torch.where(torch.isfinite(found), found, 0.0)

    @cached_property
    def _problem(self) -> AffineMap:
        return AffineMap(self.weight, self.offset.new_empty(0, self.width), self.activation)

    @cached_property
    def _solvers(self) -> tuple[PeacemanRachford | Newton | Picard, ...]:
        eye = torch.eye(self.width, dtype=torch.float64)
        size = max(float(torch.linalg.matrix_norm(eye - self.weight, 2)), 1e-300)
        split = PeacemanRachford(
            margin=1 / max(self.resolvent, 1 / size), lipschitz=size, step_size=size**-0.5
        )
        return split, Newton(), Picard()

    def equilibrium_error(self, h: Tensor, b: Tensor, b_error: Tensor) -> Tensor:
        """≥ ‖h − h*‖ of every row (N,), for any h offered as an equilibrium of the exact injection.

        ĥ = σ(W h + b) is the equilibrium of b + W(h − ĥ), so ‖ĥ − h*‖ ≤ R‖W‖‖h − ĥ‖.
        """
        found = self.activation(torch.addmm(b, h, self.weight.T))
        total = one_norms(h)[:, None]  # ≥ ‖h‖
        rounded = gamma(self.width + 6) * up(total * self.weight.abs().amax(dim=1) + b.abs()) + b_error
        rounded = rounded + up(total * self.weight_error) + gamma(2) * (h.abs() + found.abs())
        off = up((h - found).abs() + up(rounded))  # (N, n), of the exact map
        size = up(row_norms_upper(off)) * (1 + self.weight_norm * self.resolvent) * UP
        return torch.where(torch.isfinite(size), size, math.inf)

    def scores(self, h: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """ŷ (N, k) at h (N, n) whose rows are off by at most `error` (N,), and ≥ the error of each score."""
        y = h @ self.readout.T + self.shift
        total = one_norms(h)[:, None]
        rounded = gamma(self.width + 4) * up(total * self.readout.abs().amax(dim=1) + self.shift.abs())
        rounded = rounded + up(total * self.readout_error)
        moved = up(error[:, None] * up(row_norms_upper(self.readout) + self.readout_error))
        return y, up(rounded + moved)
