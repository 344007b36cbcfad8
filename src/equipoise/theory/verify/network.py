"""p = W h + U x + u,  h = σ(p),  ŷ = C h + c: the one form in which every family is verified.

σ is relu, or the identity. A family says its form through its facts (`Facts.unit_network`); what it computes
of its parameters comes with a bound of the rounding, so that the bounds speak of the exact network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ...linalg import gamma, norm_upper, row_norms_upper
from ...linalg.products import as_float64
from ...solve import RELU, Activation, AffineMap, Newton, PeacemanRachford, Picard, Stop, fixed_point

if TYPE_CHECKING:
    from .bounds import Problem

_TIGHT = Stop(rtol=1e-13, max_steps=300)  # whatever is found is then bounded
_TENSORS = ("weight", "inputs", "offset", "readout", "shift")
UP = 1 + 2.0**-44  # more than the rounding of a few sums and products of non-negative numbers
LEAST = 2.0**-1060  # more than what a few products lose where they are subnormal


def up(x: Tensor) -> Tensor:
    """≥ the exact result of a few operations on non-negative floats that gave x."""
    return x * UP + LEAST


def one_norms(rows: Tensor) -> Tensor:
    """≥ ‖row‖₁ of every row, (N,)."""
    return up(rows.abs().sum(dim=1) * (1 + rows.shape[1] * 2.0**-52))


def around(p: Tensor, far: Tensor) -> tuple[Tensor, Tensor]:
    """p ∓ far, rounded outward; infinite where they are not finite."""
    far = up(far) + p.abs() * 2.0**-50
    known = torch.isfinite(far) & torch.isfinite(p)
    return torch.where(known, p - far, -math.inf), torch.where(known, p + far, math.inf)


class Multipliers:
    """ν = (I − S Wᵀ)⁻¹ r, which makes λ = s∘g, by an inverse for every part."""

    def __init__(self, net: UnitNetwork, s: Tensor) -> None:
        eye = torch.eye(net.width, dtype=s.dtype, device=s.device)
        self.inverse, _ = torch.linalg.inv_ex(eye - s[:, :, None] * net.weight.T)  # (B, n, n)

    def of(self, part: Tensor, r: Tensor) -> Tensor:
        """ν of rows r (P, n) in their parts (P,)."""
        return torch.bmm(self.inverse[part], r[:, :, None])[:, :, 0]

    def of_units(self, part: Tensor, unit: Tensor) -> Tensor:
        """ν of r = e_i, the unit vectors of some units (P,)."""
        return self.inverse[part, :, unit]

    def spread(self, part: Tensor, r: Tensor) -> Tensor:
        """(I − S Wᵀ)⁻¹ r: the coordinates in which multipliers are ascended."""
        return self.of(part, r)

    def gathered(self, part: Tensor, r: Tensor) -> Tensor:
        """(I − S Wᵀ)⁻ᵀ r: derivatives in these coordinates."""
        return torch.bmm(r[:, None], self.inverse[part])[:, 0]


@dataclass(frozen=True)
class UnitNetwork:
    """The parts of a network in float64, with bounds of their distance to the exact ones."""

    weight: Tensor  # (n, n)
    weight_error: float  # ≥ ‖W − W exact‖_F
    inputs: Tensor  # (n, d), exact
    offset: Tensor  # (n,), exact
    readout: Tensor  # (k, n)
    readout_error: float  # ≥ ‖C − C exact‖_F
    shift: Tensor  # (k,), exact
    resolvent: float  # R: ‖h − h'‖ ≤ R‖b − b'‖ of the equilibria of two injections b = U x + u
    activation: Activation = RELU
    rows: ClassVar[int] = 4096  # functionals that are evaluated together

    def __post_init__(self) -> None:
        for value in (self.weight, self.inputs, self.offset, self.readout, self.shift):
            as_float64(value, ndim=None)  # raises if subnormal numbers are lost

    def on_cpu(self) -> UnitNetwork:
        """The same network on the CPU, where all of this is computed."""
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

    @property
    def dimension(self) -> int:
        """d, the number of inputs."""
        return self.inputs.shape[1]

    @property
    def dense(self) -> bool:
        """Whether `weight` and `inputs` are written out as matrices."""
        return True

    def forth(self, h: Tensor) -> Tensor:
        """W h of rows h (P, n)."""
        return h @ self.weight.T

    def back(self, nu: Tensor) -> Tensor:
        """Wᵀν of rows ν (P, n)."""
        return nu @ self.weight

    def into(self, x: Tensor) -> Tensor:
        """U x of rows x (P, d)."""
        return x @ self.inputs.T

    def onto(self, nu: Tensor) -> Tensor:
        """Uᵀν of rows ν (P, n)."""
        return nu @ self.inputs

    def back_error(self, nu: Tensor) -> Tensor:
        """≥ how far each entry of the computed Wᵀν is from the exact one, and of a sum with it, (P, n)."""
        total = one_norms(nu)[:, None]
        return gamma(self.width + 6) * up(total * self.column_peaks) + up(total * self.weight_error)

    def forth_error(self, h: Tensor) -> Tensor:
        """≥ the same of W h, (P, n)."""
        total = one_norms(h)[:, None]
        return gamma(self.width + 6) * up(total * self.weight.abs().amax(dim=1)) + up(
            total * self.weight_error
        )

    def onto_error(self, reach: Tensor) -> Tensor:
        """(N, n): ν·(U x − U x_c) is off by at most |ν|·this where |x − x_c| ≤ reach (N, d), Uᵀν computed."""
        size = reach @ self.inputs.abs().T * (1 + self.dimension * 2.0**-52)
        return up(gamma(self.width + 4) * up(size + LEAST * reach.sum(dim=1, keepdim=True)))

    def first_bounds(self, problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
        """low ≤ p ≤ high, (N, n) each, from how far equilibria can move; and `Problem.scale`, (N, 2).

        |p_i(x) − p_i(x_c)| ≤ ‖W_i‖(R sup‖U(x − x_c)‖ + δ) + sup|U_i(x − x_c)|, where δ bounds the error of
        the computed equilibrium of the centre x_c.
        """
        sets, b = problem.sets, problem.injection
        h = self.equilibria(b)
        delta = self.equilibrium_error(h, b, problem.injection_error)
        p = b + self.forth(h)
        rounded = up(self.forth_error(h) + gamma(6) * b.abs() + problem.injection_error)
        moved = up(sets.reach @ self.inputs.abs().T * (1 + self.dimension * 2.0**-52))  # ≥ |U_i(x − x_c)|
        size = torch.minimum(up(row_norms_upper(moved)), up(sets.length() * norm_upper(self.inputs)))
        far = up(up(size * self.resolvent + delta)[:, None] * self.row_norms + moved + rounded)
        return *around(p, far), torch.ones(len(p), 2, dtype=torch.float64)

    def worth_tightening(self, may: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Parts and units whose bounds are tightened, of those units (B, n) that may be on or off: all."""
        part, unit = torch.nonzero(may, as_tuple=True)
        return part, unit

    def multipliers(self, s: Tensor) -> Multipliers:
        """ν = r + s∘Wᵀν for the slopes s (B, n) of some parts."""
        return Multipliers(self, s)

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
        off = self.residuals(h, b, b_error)
        size = up(row_norms_upper(off)) * (1 + self.weight_norm * self.resolvent) * UP
        return torch.where(torch.isfinite(size), size, math.inf)

    def residuals(self, h: Tensor, b: Tensor, b_error: Tensor) -> Tensor:
        """≥ |h − σ(W h + b)| of the exact map, (N, n)."""
        found = self.activation(b + self.forth(h))
        rounded = self.forth_error(h) + gamma(6) * b.abs() + b_error + gamma(2) * (h.abs() + found.abs())
        return up((h - found).abs() + up(rounded))

    def scores(self, h: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """ŷ (N, k) at h (N, n) whose rows are off by at most `error` (N,), and ≥ the error of each score."""
        y = h @ self.readout.T + self.shift
        total = one_norms(h)[:, None]
        rounded = gamma(self.width + 4) * up(total * self.readout.abs().amax(dim=1) + self.shift.abs())
        rounded = rounded + up(total * self.readout_error)
        moved = up(error[:, None] * up(row_norms_upper(self.readout) + self.readout_error))
        return y, up(rounded + moved)
