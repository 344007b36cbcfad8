"""z = f(z, x) as every solver sees it: what a diagnosis measures on the problem behind a layer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..differentiate.affine import AffineEquation
from ..linalg import estimate_lambda_max, estimate_spectral_radius
from ..solve import (
    AffineMap,
    Anderson,
    Broyden,
    ForwardBackward,
    Newton,
    PeacemanRachford,
    Picard,
    Solution,
    Solver,
    Stop,
    fixed_point,
)
from ..solve.driver import Precision
from ..solve.norms import row_distances, row_norms
from ..solve.problem import Layout, Map, make_map
from .base import EquilibriumModel
from .choice import Trial

_TRACED = 60  # Picard steps from which the contraction factor is estimated
_TAIL = 10  # the last of them that count
_PAIRS = 16  # random pairs of states for each row
_NEWTON_STEPS = 25  # a Newton that has not converged by then will not


@dataclass(frozen=True)
class LayerProblem:
    """z = f(z, *args, *shared) on flat rows, with the solver and the stopping test of its layer."""

    f: Callable[..., Any]
    start: Tensor  # (N, D)
    args: tuple[Any, ...]
    shared: tuple[Any, ...]
    layout: Layout  # of the state as the layer knows it
    solver: Solver | Sequence[Solver]
    stop: Stop
    precision: Precision = "native"

    @classmethod
    def of(cls, layer: nn.Module, inputs: Sequence[Any], shared: Sequence[Any]) -> LayerProblem:
        """The equation of a layer on these inputs."""
        if not isinstance(layer, EquilibriumModel):
            raise TypeError(
                f"layer must be an Equilibrium or a model family. Got {type(layer).__name__} instead; "
                f"of a network, diagnose the layer on what the network feeds it."
            )
        twin = copy.deepcopy(layer)  # a call in training mode may move buffers
        f = twin.posed(tuple(inputs), None, {"shared": shared} if shared else {})
        method, layout = f.method, f.layout
        if isinstance(f, AffineEquation):
            affine = f.problem
            solver = method.solver or f.solver(affine)
            return cls(affine, affine.start(), (), (), layout, solver, method.stop, method.precision)
        assert f.start is not None
        args, rest = f.tensors[: f.batched], f.tensors[f.batched :]
        return cls(f, f.start, args, rest, layout, method.solver or Anderson(), method.stop, method.precision)

    def take(self, rows: Tensor) -> LayerProblem:
        """The same for some of the samples."""
        f = self.f.take(rows) if isinstance(self.f, AffineMap) else self.f
        args = tuple(a[rows] if isinstance(a, Tensor) else a for a in self.args)
        return replace(self, f=f, start=self.start[rows], args=args)

    def map(self) -> Map:
        """f as the solvers see it, with its evaluations counted."""
        return make_map(self.f, self.start, self.args, self.shared)

    def solve(self, solver: Solver | Sequence[Solver], stop: Stop, **how: Any) -> Solution:
        """The Solution by a solver of the caller's choice."""
        return fixed_point(self.f, self.start, self.args, self.shared, solver=solver, stop=stop, **how)

    def trials(self) -> tuple[Trial, ...]:
        """The layer's solver, then every other that applies."""
        others: list[Solver] = [Picard(), Picard(damping=0.5), Anderson(), Broyden()]
        if self.jacobian(self.start) is not None:
            others.append(Newton())
        if isinstance(self.f, AffineMap) and self.f.margin > 0 and self.f.activation.prox is not None:
            others += [ForwardBackward(), PeacemanRachford()]
        return tuple(self._try(one) for one in [self.solver, *(o for o in others if o != self.solver)])

    def jacobian(self, z: Tensor) -> Callable[[Tensor], Tensor] | None:
        """v ↦ J(z) v; None where f has no such product."""
        try:
            product = self.map().linearise(z)
            product(torch.zeros_like(z))
        except TypeError:
            return None
        return product

    def _try(self, solver: Solver | Sequence[Solver]) -> Trial:
        own, stop = solver is self.solver, self.stop
        if isinstance(solver, Newton) and not own:
            stop = replace(stop, max_steps=min(stop.max_steps, _NEWTON_STEPS))
        precision: Precision = self.precision if own else "native"
        return Trial.of(solver, lambda: self.solve(solver, stop, precision=precision), own)

    def contraction(self) -> float | None:
        """q in ‖f(z⁺) − z⁺‖ ≈ q ‖f(z) − z‖ at the end of a Picard trace; the largest of the rows."""
        if not len(self.start):
            return None
        stop = replace(self.stop, max_steps=min(self.stop.max_steps, _TRACED))
        trace = self.solve(Picard(), stop, trace=True).trace
        assert trace is not None
        rates = [_rate(trace.residuals(row)) for row in range(len(self.start))]
        known = [rate for rate in rates if rate is not None]
        return max(known) if known else None

    def estimates(
        self, z: Tensor, generator: torch.Generator
    ) -> tuple[float | None, float | None, float | None]:
        """ρ(J) and ‖J‖₂ at z, and the stretch of f between random states around it."""
        push = self.jacobian(z) if len(z) else None
        if push is None or not bool(torch.isfinite(push(torch.ones_like(z))).all()):
            return None, None, None
        f, pull = self.map(), self._transposed(z)
        radius = estimate_spectral_radius(push, z, steps=40, generator=generator).value
        square = estimate_lambda_max(lambda v: pull(push(v)), z, steps=20, generator=generator).value
        size = row_norms(z)[:, None] / z.shape[1] ** 0.5
        size = torch.where(size > 0, size, 1.0)
        stretch = 0.0
        for i in range(_PAIRS):
            noise = torch.randn(2, *z.shape, generator=generator, dtype=z.dtype, device=z.device)
            a, b = z + (1.0 if i % 2 else 0.1) * size * noise  # far apart, and near
            ratio = row_distances(f(a), f(b)) / row_distances(a, b)
            stretch = max(stretch, float(ratio.nan_to_num(nan=math.inf).max()))
        return radius, math.sqrt(max(square, 0.0)), stretch

    def _transposed(self, z: Tensor) -> Callable[[Tensor], Tensor]:
        """u ↦ J(z)ᵀ u."""
        with torch.enable_grad():
            at = z.detach().requires_grad_()
            out = self.map()(at)

        def pull(u: Tensor) -> Tensor:
            if not out.requires_grad:
                return torch.zeros_like(u)
            return torch.autograd.grad(out, at, u, retain_graph=True, materialize_grads=True)[0]

        return pull


def _rate(residuals: Tensor) -> float | None:
    """The factor by which the last steps of a trace shrink the residual; None where there was no step."""
    tail = residuals[-_TAIL - 1 :]
    if len(tail) < 2 or not bool(torch.isfinite(tail[0])) or float(tail[0]) == 0:
        return None
    ratio = float(tail[-1] / tail[0])
    return ratio ** (1 / (len(tail) - 1)) if math.isfinite(ratio) else math.inf
