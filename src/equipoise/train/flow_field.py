"""−∇L(θ), θ a vector of all parameters: the field that a gradient flow follows, its curvature, its path."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.integrate import OdeSolution
from torch import Tensor

from ..losses import Loss
from ..models.affine import AffineFamily
from ..solve import EquilibriumError, Stop
from .descent import DescentRun
from .stiff import GaussNewton, flatten


class FlowField(DescentRun):
    """−∇L(θ), in float64; solves start from the last equilibria.

    If a trial step of an ODE solver reaches weights without equilibria, the field is NaN there, and `lost`
    says why: the solver then tries a shorter step.
    """

    def __init__(self, model: AffineFamily, X: Tensor, y: Tensor, loss: Loss, stop: Stop) -> None:
        own = copy.deepcopy(model).double()
        super().__init__(own, X.double(), y.double(), loss, {}, None, stop, "native")
        self.shapes = {n: p.shape for n, p in own.named_parameters() if p.requires_grad}
        self.start = self._vector({n: own.get_parameter(n).detach() for n in self.shapes})  # θ(0)
        self.evaluations, self.lost = 0, ""

    def __call__(self, t: float, theta: np.ndarray) -> np.ndarray:
        self.evaluations += 1
        try:
            value = self.loss_at(theta, gradient=True)
        except EquilibriumError as error:
            self.lost, value = f"no equilibrium. {error}", math.nan
        return -self._vector(self.gradients) if math.isfinite(value) else np.full_like(theta, math.nan)

    def loss_at(self, theta: np.ndarray, gradient: bool = False) -> float:
        """L(θ), NaN if the weights are not finite; the model is left at θ."""
        if not np.isfinite(theta).all():
            return math.nan
        self.write(theta, self.model)
        self._Z_before = self._V_before = None  # a solver's stages lie on no line
        return self.evaluate(last=not gradient)

    def curvature(self, t: float, theta: np.ndarray) -> GaussNewton:
        """−JᵀCJ at θ."""
        self.write(theta, self.model)
        problem = self.model.affine_map(self.X)
        solution = self.model.solve(self.X, stop=self.stop, start=self.Z, problem=problem)
        Z = solution.raise_if_failed().value
        assert isinstance(Z, Tensor)
        V = self.model.adjoint(Z, self.X, stop=self.stop, start=self.V, problem=problem)
        with torch.no_grad():
            C = self.loss.second_derivative(self.model.readout(Z), self.y)
        return GaussNewton(self.model, self.X, Z, V, C)

    def tolerances(self, fastest: float) -> np.ndarray:
        """The size of each parameter: its root mean square, or that of ∇L(θ(0)) over the fastest rate."""
        self(0.0, self.start)
        return np.concatenate(
            [
                np.full(w.numel(), max(_rms(w), _rms(self.gradients[n]) / max(fastest, 1e-300), 1e-200))
                for n, w in self.named(self.start).items()
            ]
        )

    @torch.no_grad()
    def write(self, theta: np.ndarray, model: AffineFamily) -> None:
        """Give a model the parameters of the vector θ."""
        for name, value in self.named(theta).items():
            model.get_parameter(name).copy_(value)

    def named(self, theta: np.ndarray) -> dict[str, Tensor]:
        """The parts of the vector θ by the names of the parameters."""
        parts = torch.from_numpy(theta).split([s.numel() for s in self.shapes.values()])
        return {n: part.reshape(s) for (n, s), part in zip(self.shapes.items(), parts, strict=True)}

    def _vector(self, tensors: dict[str, Tensor]) -> np.ndarray:
        return flatten({n: tensors[n] for n in self.shapes}).cpu().numpy()

    @torch.no_grad()
    def least_loss_within(self, radius: float | None) -> float:
        """L* of what is promised: 0, or the least over linear predictors of features with ‖M‖₁ < radius."""
        if not self.model.direct:
            return 0.0
        Phi = self.model.injection(self.X)
        M, value = _least(self.loss, Phi, self.y)
        if radius is not None and float(M.abs().sum(dim=1).max()) >= radius:
            raise ValueError(
                f"the least loss over ‖M‖₁ < {radius:g} lies at the rim, and is not computed: certify with "
                f"tau > 0 and without a radius."
            )
        return value


@dataclass
class Path:
    """θ(t) between the solver's steps, by the interpolants of its method."""

    field: FlowField
    solution: OdeSolution
    like: AffineFamily  # whose dtype the weights take

    def weights(self, t: float) -> dict[str, Tensor]:
        """θ(t) by name, in the dtype of the model."""
        named = self.field.named(self._theta(t))
        return {n: w.to(self.like.get_parameter(n), copy=True) for n, w in named.items()}

    def loss(self, t: float) -> float:
        """L(θ(t))."""
        return self.field.loss_at(self._theta(t))

    def _theta(self, t: float) -> np.ndarray:
        if not 0 <= t <= self.solution.t_max:
            raise ValueError(f"t must lie in [0, {self.solution.t_max:.6g}], the path. Got {t} instead.")
        return self.solution(t)


def _rms(T: Tensor) -> float:
    return float(T.norm()) / math.sqrt(T.numel())


def _least(loss: Loss, Phi: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """argmin and min over M (m, k) of Σℓ(ΦM, y), convex: Newton's method, halved where it overshoots."""
    M = torch.zeros(Phi.shape[1], y.shape[1], dtype=Phi.dtype, device=Phi.device)
    value = float(loss(Phi @ M, y))
    for _ in range(100):
        yhat = Phi @ M
        slope, root = loss.gradient(yhat, y), loss.second_derivative(yhat, y).clamp_min(1e-300).sqrt()
        systems = zip(root.T, slope.T, strict=True)  # one for each output
        columns = [
            torch.linalg.lstsq(r[:, None] * Phi, (g / r)[:, None], driver="gelsd").solution
            for r, g in systems
        ]
        move, size = torch.cat(columns, dim=1), 1.0
        while size > 1e-3 and not float(loss(Phi @ (M - size * move), y)) < value:
            size /= 2
        if size <= 1e-3:
            break
        M = M - size * move
        value = float(loss(Phi @ M, y))
    return M, value
