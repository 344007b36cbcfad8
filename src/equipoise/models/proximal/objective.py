"""min φ(z), and min αM_1(z_1) + αM_2(z_0) + ½‖z_1 − z_0‖²: the convex problems that OptEq networks solve."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from ...solve import Stop
from ...solve.norms import row_norms
from ..checks import refuse_nonfinite
from .convex import Phi, QuadraticProgramme
from .family import ProximalFamily

Smooth = Callable[[Tensor], tuple[Tensor, Tensor]]  # one row ↦ value (1,) and gradient (1, ·)
Rows = Callable[[Tensor], Tensor]  # all rows ↦ gradients (N, ·) or Hessians (N, ·, ·)

_POLISH = 20  # Newton steps at most: two or three are usual


@dataclass(frozen=True)
class Minimum:
    """What an independent convex method found."""

    z: Tensor  # (N, m)
    value: Tensor  # (N,), the objective there
    v: Tensor | None = None  # the solution of the quadratic programme, where there is one
    method: str = ""


class _Objective(ProximalFamily):
    """What both objectives share."""

    @torch.no_grad()
    def potentials(self, X: Tensor) -> list[Phi]:
        """φ_l of every layer, with f_l^{α=1} = prox_{φ_l}, in float64 whatever the dtype of the model."""
        self._check_inputs(X)
        pairs = zip(self.weights(), self.injections(X), strict=True)
        return [Phi(W.detach().double(), c.double(), self.mu, self.activation) for W, c in pairs]

    def _states(self, Z: Tensor, X: Tensor, name: str = "Z") -> Tensor:
        """Z (N, m) in float64: a finite row for every row of X."""
        if not isinstance(Z, Tensor):
            raise TypeError(f"{name} must be a tensor, (N, {self.state}). Got {type(Z).__name__} instead.")
        if tuple(Z.shape) != (len(X), self.state):
            raise ValueError(
                f"{name} must be {(len(X), self.state)}, a state for every row of X. "
                f"Got shape {tuple(Z.shape)} instead."
            )
        if not Z.is_floating_point() or Z.device != X.device:
            raise ValueError(
                f"{name} must be floating point, on {X.device} like X. "
                f"Got {Z.dtype} on {Z.device} instead: {name}.to(X) makes them agree."
            )
        refuse_nonfinite(name, Z)
        return Z.double()

    def _tolerance(self, *states: Tensor) -> float:
        """How exactly states are known: rtol of the model, or the default of the dtype if larger."""
        usual = [Stop().resolve(T.dtype).rtol or 0.0 for T in (self.V, *states)]
        return max(self.method.stop.rtol or 0.0, *usual)

    def _strong(self) -> list[float]:
        """s = μ/(L_σ‖W_l‖²) − 1 of every layer: φ_l is strongly convex with it, or < 0 and not convex."""
        shares = ((size / limit) ** 2 for size, limit in self.layer_sizes())
        return [1 / share - 1 if share > 0 else math.inf for share in shares]

    def _smooth_minimum(
        self, size: int, scale: Tensor, rows: Sequence[Smooth], slope: Rows, curvature: Rows
    ) -> Tensor:
        """argmin of each smooth convex function of `size` variables, from 0: scipy's L-BFGS-B, then Newton.

        The variables of a row are in units of its `scale`, as scipy's tolerances are absolute. L-BFGS-B
        compares values, and stops about √eps from the minimiser: Newton's method on the gradient of all rows,
        `slope`, with their Hessians, `curvature`, goes on to rounding.
        """
        options = {"maxiter": 5000, "maxfun": 20000, "ftol": 0.0, "gtol": 1e-11, "maxls": 60}
        found = torch.zeros(len(rows), size, dtype=torch.float64, device=self.V.device)
        scale = torch.where(scale > 0, scale, 1.0)
        for i, (F, s) in enumerate(zip(rows, scale.tolist(), strict=True)):

            def call(flat: np.ndarray, F: Smooth = F, s: float = s) -> tuple[float, np.ndarray]:
                value, gradient = F(torch.as_tensor(s * flat)[None].to(found))
                return float(value / s**2), (gradient[0] / s).cpu().numpy()

            best = minimize(call, np.zeros(size), jac=True, method="L-BFGS-B", options=options).x
            found[i] = torch.as_tensor(s * best).to(found)
        return _polished(found, scale, slope, curvature)

    def _term(self, phi: Phi, z: Tensor, tolerance: float) -> Tensor:
        """αM_φ^{1−α}(z), which is φ(z) at α = 1. (N,)."""
        return phi.value(z, tolerance) if self.alpha == 1 else self.alpha * phi.envelope(1 - self.alpha, z)

    def _refuse_nonconvex(self) -> None:
        for i, s in enumerate(self._strong(), 1):
            if s < -1e-12:
                raise ValueError(
                    f"φ is convex where L_σ‖W‖² ≤ μ. Got {1 / (1 + s):.6g} μ for layer {i} instead: call "
                    f"project_() first."
                )


class LayerObjective(_Objective):
    """min φ(z),  φ = ψ* − ½‖·‖²: the problem that one layer solves    [xie2021, Theorem 1]."""

    @torch.no_grad()
    def objective(self, Z: Tensor, X: Tensor) -> Tensor:
        """φ(z), (N,), ∞ outside of its domain.

        Equilibria lie on the boundary of the domain, up to the tolerance t of their solve (a relative 1e-8
        in float64, 1e-4 in float32, or the larger rtol of `stop=`). If prox_{tφ}(z), a point of the domain,
        lies within 4t of z, then z counts as in the domain, with the φ of that point.

        With a regulariser it is Φ + M_R, Φ = φ for α = 1 and else αM_φ^{1−α}; its minimiser is then not the
        equilibrium z but S(z), the state before T_R (S the layer).
        """
        self._refuse_nonconvex()
        (phi,), state = self.potentials(X), self._states(Z, X)
        if self.regulariser is None:
            return phi.value(state, self._tolerance(Z))
        envelope = _envelope_of(self.regulariser)
        return self._term(phi, state, self._tolerance(Z)) + envelope(state)

    @torch.no_grad()
    def optimality_gap(self, Z: Tensor, X: Tensor) -> Tensor:
        """≥ φ(f(z)) − min φ, (N,): ‖z − f(z)‖²/(2s), since z − f(z) ∈ ∂φ(f(z)) and φ is s-strongly convex.

        s = μ/(L_σ‖W‖²) − 1; ∞ where that is 0 and z is no equilibrium.
        """
        self._refuse_nonconvex()
        _refuse_regulariser(self)
        (phi,), Z = self.potentials(X), self._states(Z, X)
        return _bounded((Z - phi.map(Z)).square().sum(dim=1), max(*self._strong(), 0.0))

    @torch.no_grad()
    def quadratic_programme(self, X: Tensor) -> QuadraticProgramme:
        """min_{v≥0} μ⁻¹(½‖v‖² − cᵀv) − ½‖Wᵀv/μ‖², whose solution gives z = Wᵀv/μ. ReLU only."""
        _require_relu(self)
        (phi,) = self.potentials(X)
        eye = torch.eye(len(phi.W), dtype=phi.W.dtype, device=phi.W.device)
        root = phi.W / self.mu**0.5  # first, as μ² may overflow
        return QuadraticProgramme((eye - root @ root.T) / self.mu, phi.c / self.mu, signed=len(eye))

    @torch.no_grad()
    def minimise(self, X: Tensor) -> Minimum:
        """argmin φ without the network: the quadratic programme (ReLU), else L-BFGS and Newton on M_φ^½."""
        self._refuse_nonconvex()
        _refuse_regulariser(self)
        (phi,) = self.potentials(X)
        if self.activation.name == "relu":
            programme = self.quadratic_programme(X)
            v = programme.solve()
            return Minimum(v @ phi.W / self.mu, programme.value(v), v, "quadratic programme, scipy nnls")
        one = lambda phi: lambda z: (phi.envelope(0.5, z), phi.envelope_gradient(0.5, z))
        z = self._smooth_minimum(
            self.state,
            phi.size,
            [one(phi.row(i)) for i in range(len(X))],
            lambda z: phi.envelope_gradient(0.5, z),
            lambda z: phi.envelope_hessian(0.5, z),
        )
        return Minimum(z, phi.envelope(0.5, z), None, "Moreau envelope, scipy L-BFGS-B and Newton")


class JointObjective(_Objective):
    """min αM_1(z_1) + αM_2(z_0) + ½‖z_1 − z_0‖², two layers    [xie2021, Corollary 1]; M = M_φ^{1−α}.

    For L > 2 layers there is no objective but an inclusion, 0 ∈ ∂Σ αM_i(z_i) + (I − P)z (Theorem 2):
    `inclusion_residual`.
    """

    @torch.no_grad()
    def objective(self, Z: Tensor | tuple[Tensor, Tensor], X: Tensor) -> Tensor:
        """The joint objective at Z = (z_1, z_0), or at z_0 with the best z_1, which is f_1(z_0). (N,).

        For α = 1 it is ∞ outside its domain; points within the tolerance count as inside, as for an OptEq.
        """
        first, second = self._two(X)
        if not isinstance(Z, tuple):
            z0 = self._states(Z, X)
            return self._joint(first, second, self._layer(first, z0), z0, self._tolerance(Z))
        if len(Z) != 2:
            raise ValueError(f"Z must be z_0, or the two of (z_1, z_0). Got a tuple of {len(Z)} instead.")
        z1, z0 = self._states(Z[0], X, "z_1"), self._states(Z[1], X, "z_0")
        return self._joint(first, second, z1, z0, self._tolerance(*Z))

    @torch.no_grad()
    def optimality_gap(self, Z: Tensor, X: Tensor) -> Tensor:
        """≥ F(f_1(z), T(z)) − min F, (N,): ‖z − T(z)‖²·[H⁻¹]₁₁/2, with F strongly convex in the metric H.

        (z − T(z), 0) is a subgradient of F there; H = (a_1+1, −1; −1, a_2+1), a = αs/(1 + (1−α)s),
        s = 1/(L_σ‖W‖²) − 1.
        """
        (first, second), Z = self._two(X), self._states(Z, X)
        gap = (Z - self._layer(second, self._layer(first, Z))).square().sum(dim=1)
        strong = [max(s, 0.0) for s in self._strong()]
        a1, a2 = (self.alpha / (1 / s + 1 - self.alpha) if s > 0 and self.alpha < 1 else s for s in strong)
        if math.inf in (a1, a2):  # a layer without weights: its block stands still
            return _bounded(gap, a1 + 1 if a2 == math.inf else math.inf)
        return _bounded(gap, ((a1 + 1) * (a2 + 1) - 1) / (a2 + 1))

    @torch.no_grad()
    def inclusion_residual(self, Z: Tensor, X: Tensor) -> Tensor:
        """‖∇(αM_i)(z_i) + z_i − z_{i−1}‖ over the blocks z_i = f_i(z_{i−1}), z_0 = z_L, (N,), from z_0 = Z.

        Zero at an equilibrium, for any number of layers [xie2021, Theorem 2]. At α = 1 it is that of
        z_i − prox_{φ_i}(z_{i−1}).
        """
        self._refuse_nonconvex()
        phis = self.potentials(X)
        states = [self._states(Z, X)]
        for phi in phis:
            states.append(self._layer(phi, states[-1]))
        total = torch.zeros(len(Z), dtype=torch.float64, device=Z.device)
        for phi, before, z in zip(phis, [states[-1], *states[1:-1]], states[1:], strict=True):
            if self.alpha == 1:
                rest = z - phi.map(before)
            else:
                rest = self.alpha * phi.envelope_gradient(1 - self.alpha, z) + z - before
            total += rest.square().sum(dim=1)
        return total.sqrt()

    @torch.no_grad()
    def quadratic_programme(self, X: Tensor) -> QuadraticProgramme:
        """The joint objective of two ReLU layers over v_1, v_2 ≥ 0 (and, for α < 1, z_1, z_0): p_i = W_iᵀv_i.

        αM_i(z) = min_v α(½‖v‖² − cᵀv − ½‖p‖²) + α/(2(1−α))‖z − p‖².
        """
        _require_relu(self)
        first, second = self._two(X)
        W1, W2, m, alpha = first.W, second.W, self.state, self.alpha
        eye = lambda n: torch.eye(n, dtype=W1.dtype, device=W1.device)
        g = torch.cat([first.c, second.c], dim=1)
        if alpha == 1:
            across = -W1 @ W2.T
            H = torch.cat(
                [
                    torch.cat([eye(len(W1)), across], dim=1),
                    torch.cat([across.T, eye(len(W2))], dim=1),
                ]
            )
            return QuadraticProgramme(H, g, signed=len(H))
        ratio = alpha / (1 - alpha)
        n1, n2 = len(W1), len(W2)
        H = torch.zeros(n1 + n2 + 2 * m, n1 + n2 + 2 * m, dtype=W1.dtype, device=W1.device)
        z1, z0 = slice(n1 + n2, n1 + n2 + m), slice(n1 + n2 + m, None)
        for W, v, z in ((W1, slice(0, n1), z1), (W2, slice(n1, n1 + n2), z0)):
            H[v, v] = alpha * eye(len(W)) + (ratio - alpha) * W @ W.T
            H[v, z], H[z, v] = -ratio * W, -ratio * W.T
            H[z, z] = (ratio + 1) * eye(m)
        H[z1, z0] = H[z0, z1] = -eye(m)
        return QuadraticProgramme(
            H, torch.cat([alpha * g, g.new_zeros(len(g), 2 * m)], dim=1), signed=n1 + n2
        )

    @torch.no_grad()
    def minimise(self, X: Tensor) -> Minimum:
        """z_0 of the joint minimiser, without the network: a quadratic programme, or L-BFGS and Newton.

        The quadratic programme is that of ReLU; other activations need α < 1.
        """
        first, second = self._two(X)
        if self.activation.name == "relu":
            programme = self.quadratic_programme(X)
            v = programme.solve()
            z = v[:, len(first.W) :] @ second.W if self.alpha == 1 else v[:, -self.state :]
            return Minimum(z, programme.value(v), v, "quadratic programme, scipy")
        if self.alpha == 1:
            raise ValueError(
                "at α = 1 the joint objective is not differentiable: minimise() knows relu there. Got "
                f"{self.activation.name}: take α < 1."
            )
        m, t, alpha = self.state, 1 - self.alpha, self.alpha

        def slope(first: Phi, second: Phi, both: Tensor) -> Tensor:
            Z1, Z0 = both[:, :m], both[:, m:]
            pull = Z1 - Z0
            G1 = alpha * first.envelope_gradient(t, Z1) + pull
            G0 = alpha * second.envelope_gradient(t, Z0) - pull
            return torch.cat([G1, G0], dim=1)

        def curvature(both: Tensor) -> Tensor:
            H1, H0 = first.envelope_hessian(t, both[:, :m]), second.envelope_hessian(t, both[:, m:])
            eye = torch.eye(m, dtype=H1.dtype, device=H1.device).expand_as(H1)
            top, bottom = [alpha * H1 + eye, -eye], [-eye, alpha * H0 + eye]
            return torch.cat([torch.cat(top, dim=2), torch.cat(bottom, dim=2)], dim=1)

        def one(first: Phi, second: Phi) -> Smooth:
            return lambda both: (
                self._joint(first, second, both[:, :m], both[:, m:]),
                slope(first, second, both),
            )

        rows = [one(first.row(i), second.row(i)) for i in range(len(X))]
        scale = first.size + second.size
        both = self._smooth_minimum(2 * m, scale, rows, lambda both: slope(first, second, both), curvature)
        value = self._joint(first, second, both[:, :m], both[:, m:])
        return Minimum(both[:, m:], value, None, "joint objective, scipy L-BFGS-B and Newton")

    def _joint(self, first: Phi, second: Phi, Z1: Tensor, Z0: Tensor, tolerance: float = 0.0) -> Tensor:
        terms = self._term(first, Z1, tolerance) + self._term(second, Z0, tolerance)
        return terms + (Z1 - Z0).square().sum(dim=1) / 2

    def _two(self, X: Tensor) -> tuple[Phi, Phi]:
        _refuse_regulariser(self)
        self._refuse_nonconvex()
        phis = self.potentials(X)
        if len(phis) == 1:
            raise ValueError(
                "two layers minimise a joint objective (Corollary 1). Got one instead, which minimises φ "
                "alone: wide() is the same network as an OptEq, which has that objective."
            )
        if len(phis) > 2:
            raise ValueError(
                f"two layers minimise a joint objective (Corollary 1). Got {len(phis)} instead, which solve "
                f"an inclusion: inclusion_residual(Z, X) measures it."
            )
        return phis[0], phis[1]

    def _layer(self, phi: Phi, z: Tensor) -> Tensor:
        return self.alpha * phi.map(z) + (1 - self.alpha) * z


def _polished(z: Tensor, scale: Tensor, slope: Rows, curvature: Rows) -> Tensor:
    """Newton's method, (H + ‖g‖/scale·I)d = g, in every row for as long as its gradient g becomes smaller."""
    eye = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    gradient = slope(z)
    for _ in range(_POLISH):
        size = row_norms(gradient)
        trial = z - torch.linalg.lstsq(
            curvature(z) + (size / scale)[:, None, None] * eye, gradient[..., None]
        ).solution.squeeze(-1)
        rest = slope(trial)
        better = row_norms(rest) < size
        if not bool(better.any()):
            break
        z = torch.where(better[:, None], trial, z)
        gradient = torch.where(better[:, None], rest, gradient)
    return z


def _bounded(square: Tensor, strong: float) -> Tensor:
    """square/(2·strong), 0 where square is."""
    if strong == 0:
        return torch.where(square == 0, 0.0, torch.full_like(square, math.inf))
    return square / (2 * strong)


def _envelope_of(regulariser: Any) -> Callable[[Tensor], Tensor]:
    envelope = getattr(regulariser, "envelope", None)
    if envelope is None:
        raise ValueError(
            f"the problem behind {regulariser} is not known: a gradient step is no proximal map in general. "
            f"L1, SquaredL2, GroupLasso and Box have one."
        )
    return envelope


def _refuse_regulariser(model: ProximalFamily) -> None:
    if model.regulariser is not None:
        raise ValueError(
            f"this is about the network without {model.regulariser}. With it, equilibrium(X) is what the "
            f"network finds, and objective(S(Z), X) of an OptEq is the problem behind, S the layer."
        )


def _require_relu(model: ProximalFamily) -> None:
    if model.activation.name != "relu":
        raise ValueError(
            f"the quadratic programme is that of relu. Got {model.activation.name} instead: minimise(X) "
            f"takes another way."
        )
