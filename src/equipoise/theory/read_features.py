"""φ(x): what a linear readout reads of each input, in float64, with a bound of its distance to the exact one.

A family whose equilibria are proved to be unique says through its facts (`Facts.reads`) how its features are
computed from the stored weights, block by block. Nothing larger than a block is held, and what depends on the
weights alone (norms, the reason for uniqueness) is computed once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..linalg import Interval, frobenius, gamma
from ..models.altered import altered, double
from ..solve import Solution, Stop, fixed_point
from .claim import Claim
from .common import FEATURES, not_finite, trained_features
from .enclosure import Enclosure, Equilibria

if TYPE_CHECKING:
    from .facts import AffineFacts

_EPSILON = 1e-5  # ε of F.layer_norm


@dataclass(frozen=True)
class FeatureBlock:
    """Features of some rows."""

    Phi: Tensor  # (n, p) in float64
    error: float  # ≥ ‖Φ − Φ*‖_F
    state: Tensor  # the computed equilibria, from which another solve may start
    work: int  # evaluations of a row in the solve


@dataclass(frozen=True)
class LinearReadout:
    """The readout of a model as a matrix a (p, k); a bias is its last row, read from a feature that is 1."""

    weight: Tensor  # (p, k), a view of what is stored
    bias: Tensor | None = None  # (k,)

    def stored(self) -> Tensor:
        """a in float64, the exact values of what is stored."""
        parts = [self.weight.detach()] + ([] if self.bias is None else [self.bias.detach()[None]])
        return torch.cat(parts).double()

    @torch.no_grad()
    def store(self, a: Tensor) -> None:
        """Store a, rounded to the dtype of the model."""
        self.weight.copy_(a[: len(self.weight)])
        if self.bias is not None:
            self.bias.copy_(a[-1])

    def rounded(self, a: Tensor) -> Tensor:
        """What `stored` returns once a has been stored."""
        return a.to(self.weight.dtype).double()

    def parameters(self, model: nn.Module) -> set[str]:
        """The names of the parameters that hold it; all others are hidden ones."""
        stored = {t.data_ptr() for t in (self.weight, self.bias) if t is not None}
        return {name for name, p in model.named_parameters() if p.data_ptr() in stored}


class ReadFeatures(ABC):
    """The features of one model at its present weights. A change of the weights needs a new object."""

    claims: tuple[Claim, ...] = ()  # why every input has one equilibrium
    obstacle: str = ""  # why nothing can be said at all
    hypotheses: tuple[str, ...] = ()
    resolvent: float = float("inf")  # R
    exact: Any  # the model in float64

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.obstacle = altered(model) or trained_features(model) or self._not_finite()

    @property
    def unique(self) -> bool:
        """Whether every input is proved to have one equilibrium."""
        return not self.obstacle and bool(self.claims) and all(c.holds for c in self.claims)

    @abstractmethod
    def state_error(self, X: Tensor, Z: Tensor) -> float:
        """≥ ‖Z − Z*‖_F of states offered as the equilibria of X."""

    def read(self, Z: Tensor, error: float) -> tuple[Tensor, float]:
        """Φ of states, and ≥ ‖Φ − Φ*‖_F where the states are off by `error`."""
        return Z, error

    @torch.no_grad()
    def block(self, X: Tensor, rtol: float, start: Tensor | None = None) -> FeatureBlock:
        """Φ of these rows, from a solve to this tolerance; a row that is not solved has a large error."""
        X = self.inputs(X)
        if start is not None:
            start = start.to(X.device).double()
        solution = self.solve(X, self.stop(rtol), start)
        Z = solution.value
        assert isinstance(Z, Tensor)
        Z = Z if bool(torch.isfinite(Z).all()) else torch.where(torch.isfinite(Z), Z, 0.0)
        Phi, off = self.read(Z, self.state_error(X, Z))
        return FeatureBlock(Phi, off, Z, int(solution.steps.sum()) + 2 * len(X))

    def solve(self, X: Tensor, stop: Stop, start: Tensor | None) -> Solution:
        """The Solution of a block, even if the solves of some rows failed."""
        return self.exact.solve(X, stop=stop, start=start)

    def inputs(self, X: Tensor) -> Tensor:
        """X on the device of the exact model, in float64 unless it holds integers."""
        X = X.detach().to(next(self.exact.parameters()).device)
        return (X.double() if X.is_floating_point() else X).contiguous()

    def stop(self, rtol: float) -> Stop:
        """The tolerance of a solve, which float64 must be able to reach."""
        return Stop(rtol=max(rtol, 2 * Stop.reach(torch.float64)), max_steps=5000)

    def readout_of(self, model: Any) -> LinearReadout:
        """The readout of this model, or of one of its shape."""
        weight = model.readout_weight
        bias = getattr(model, "readout_bias", None)
        return LinearReadout(weight.reshape(-1, 1) if weight.ndim == 1 else weight, bias)

    def _not_finite(self) -> str:
        return not_finite(self.model, torch.zeros(1))


class AffineReads(ReadFeatures):
    """φ(x) = z of an affine family."""

    def __init__(self, model: Any, facts_of: Any) -> None:
        super().__init__(model)
        device = model.readout_weight.device
        self.exact = double(model, torch.device("cpu") if device.type == "mps" else device)
        self.facts: AffineFacts = facts_of(self.exact)
        self.obstacle = self.obstacle or self.facts.obstacle
        self.hypotheses = self.facts.rests_on
        if getattr(model, "feature_map", None) is not None:
            self.hypotheses = (*self.hypotheses, FEATURES)
        self.at: Enclosure | None = None
        self._injected: Tensor | None = None  # u of the block at hand
        if not self.obstacle:
            self._enclose()

    @torch.no_grad()
    def _enclose(self) -> None:
        """Compute what follows from W alone; every block has an injection of its own."""
        at = self.at = self.facts.enclosure_of_weights()
        if not bool(torch.isfinite(at.weight).all()):
            self.obstacle = "W(θ) overflows in float64: scale the parameters down."
            return
        self.claims, self.resolvent = at.unique, at.resolvent.hi

    def state_error(self, X: Tensor, Z: Tensor) -> float:
        """≥ ‖Z − Z*‖_F, by ‖Z − f(Z)‖_F (1 + ‖W‖R)."""
        assert self.at is not None
        u = self.exact.injection(X) if self._injected is None else self._injected
        at = replace(self.at, injection=u, injection_error=self.facts.injection_error(X))
        return Equilibria(self.exact, at, Z).error

    def solve(self, X: Tensor, stop: Stop, start: Tensor | None) -> Solution:
        """Solve, and keep the injection, which the error of the block needs too.

        What float32 can reach is sought there: what is proved of a block rests on its error alone.
        """
        problem = self.exact.affine_map(X)
        self._injected = problem.bias
        if stop.rtol is not None and stop.rtol >= Stop.reach(torch.float32):
            near = problem.to(torch.float32)
            begin = None if start is None else start.float()
            found = fixed_point(near, begin, solver=self.exact.default_solver(near), stop=stop)
            if not found.failed_rows:
                assert isinstance(found.value, Tensor)
                return replace(found, value=found.value.double())
        return self.exact.solve(X, stop=stop, start=start, problem=problem)

    def block(self, X: Tensor, rtol: float, start: Tensor | None = None) -> FeatureBlock:
        """As for any family; the injection is dropped afterwards."""
        try:
            return super().block(X, rtol, start)
        finally:
            self._injected = None


def normalised(M: Tensor, error: Interval) -> tuple[Tensor, float]:
    """φ = c/s, c the centred row and s = √(‖c‖²/n + ε), of rows M (N, n) that are off by `error` in all.

    The Jacobian (I − ccᵀ/(ns²))/s of c ↦ c/s has norm at most 1/s, and s moves by at most 1/√n as far as c:
    ‖φ − φ*‖_F ≤ e/(min s − e/√n) where that is positive, e ≥ ‖c − c*‖_F.
    """
    n = M.shape[1]
    c = M - M.mean(dim=1, keepdim=True)
    s = (c.square().mean(dim=1, keepdim=True) + _EPSILON).sqrt()
    Phi = c / s
    e = error + gamma(2 * n + 8) * frobenius(M)
    least = Interval(float(s.min())) * (1 - gamma(2 * n + 8)) - e / Interval(n).sqrt()
    if not (least.lo > 0 and bool(torch.isfinite(s).all())):  # s² may overflow
        return Phi, float("inf")
    return Phi, (e / least + gamma(2 * n + 16) * frobenius(Phi)).hi
