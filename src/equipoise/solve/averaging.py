"""z ← β_k[(1 − γλ_k) z − γ∇R(z)] + (1 − β_k) f(z): among the fixed points of f, the one that R prefers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .problem import Map
from .solver import Solver, SolverState, shared


@dataclass(frozen=True)
class Regulariser:
    """R by its gradient, on the flat rows of a batch, each row on its own."""

    name: str
    gradient: Callable[[Tensor], Tensor]  # (n, D) ↦ (n, D)
    lipschitz: float  # L_z of the gradient
    convex: bool  # the theorem needs it

    def __post_init__(self) -> None:
        if not 0 < self.lipschitz < math.inf:
            raise ValueError(f"lipschitz must be a finite number > 0. Got {self.lipschitz} instead.")


def half_squared_norm() -> Regulariser:
    """R(z) = ½‖z‖²."""
    return Regulariser("half_squared_norm", lambda z: z, 1.0, convex=True)


def half_squared_distance(a: Tensor) -> Regulariser:
    """R(z) = ½‖z − a‖², with `a` of the state's shape, one for all samples."""
    flat = a.detach().reshape(-1)  # (D,)
    return Regulariser("half_squared_distance", lambda z: z - flat.to(z), 1.0, convex=True)


def inverse_norm(eps: float = 1.0) -> Regulariser:
    """R(z) = 1/(‖z‖² + ε), which prefers large states. Its curvature is largest at 0: L_z = 2/ε²."""
    if not 0 < eps < math.inf:
        raise ValueError(f"eps must be a finite number > 0. Got {eps} instead.")

    def gradient(z: Tensor) -> Tensor:
        return -2 * z / (z.square().sum(dim=1, keepdim=True) + eps) ** 2

    return Regulariser(f"inverse_norm({eps:g})", gradient, 2 / eps**2, convex=False)


def decorrelation(channels: int, eps: float = 1.0) -> Regulariser:
    """R(Z) = ½‖Y Yᵀ − I‖_F², Y = Z / √(‖row‖² + ε), Z = z as (channels, positions): channels that differ.

    The paper correlates features over a batch; this correlates channels over the positions of one sample, so
    that no sample depends on another. ε > 0 keeps the gradient bounded where a channel is 0.

    L_z ≤ 18·channels/ε: the Hessian in Y is at most 4‖Y‖² + 2‖Y Yᵀ − I‖ ≤ 6·channels, and Y changes with Z
    at a rate of 1/√ε at most. To this is added the gradient in Y, whose rows are at most 2·channels long,
    times the curvature of Y in Z, at most 6/ε.
    """
    if not isinstance(channels, int) or channels < 1:
        raise ValueError(f"channels must be an integer ≥ 1. Got {channels!r} instead.")
    if not 0 < eps < math.inf:
        raise ValueError(f"eps must be a finite number > 0. Got {eps} instead.")

    def gradient(z: Tensor) -> Tensor:
        if z.shape[1] % channels:
            raise ValueError(
                f"decorrelation({channels}) needs states of {channels} channels. "
                f"Got {z.shape[1]} entries a sample instead."
            )
        rows = z.reshape(len(z), channels, -1)  # (n, C, P)
        scale = (rows.square().sum(dim=2, keepdim=True) + eps).rsqrt()
        y = rows * scale
        eye = torch.eye(channels, dtype=z.dtype, device=z.device)
        g = 2 * (y @ y.mT - eye) @ y  # in Y
        return (scale * (g - y * (y * g).sum(dim=2, keepdim=True))).reshape(z.shape)

    return Regulariser(f"decorrelation({channels})", gradient, 18 * channels / eps, convex=False)


@dataclass
class SAMState(SolverState):
    """How many steps were taken."""

    k: int = shared(default=0)


@dataclass(frozen=True)
class SAM(Solver):
    """z^k = β_k[(1 − γλ_k) z − γ∇R(z)] + (1 − β_k) f(z), z = z^{k−1}: sequential averaging [xie2021, (10)].

    γ = 1/(2L_z), β_k = η/k^ρ, λ_k = η/k^c, η = min{√(2L_z), ½, L_z/2}, with ρ, c > 0 and ρ + 2c < 1. For a
    nonexpansive f and a convex R it tends to the fixed point of f with the least R [xie2021, Theorem 4].

    It is slow: after k steps the iterate is still about k^{−ρ} away from the fixed points and, except for
    R = ½‖z‖², about k^{−c} away from the preferred one. After 20 steps it has shrunk the state, but has not
    selected one. Give `Stop` a `patience` as long as its `max_steps`, and let another solver finish,
    `solver=[SAM(), Picard()]`: iterating a nonexpansive f leads no farther away from the chosen point.
    """

    regulariser: Regulariser = field(default_factory=half_squared_norm)
    rho: float = 0.34
    c: float = 0.32
    selects = True

    def __post_init__(self) -> None:
        if not isinstance(self.regulariser, Regulariser):
            raise TypeError(
                f"regulariser must be a Regulariser such as half_squared_norm(). "
                f"Got {self.regulariser!r} instead."
            )
        if not (self.rho > 0 and self.c > 0 and self.rho + 2 * self.c < 1):
            raise ValueError(
                f"rho and c must be > 0 with rho + 2c < 1. Got rho = {self.rho} and c = {self.c} instead."
            )

    def init(self, f: Map, z: Tensor) -> SAMState:
        """No steps yet."""
        return SAMState()

    def step(self, f: Map, z: Tensor, fz: Tensor, state: SAMState) -> tuple[Tensor, SAMState]:
        """One averaged step, with the weights of its number."""
        k = state.k + 1
        lipschitz = self.regulariser.lipschitz
        eta = min(math.sqrt(2 * lipschitz), 0.5, lipschitz / 2)
        gamma, beta, decay = 1 / (2 * lipschitz), eta / k**self.rho, eta / k**self.c
        preferred = (1 - gamma * decay) * z - gamma * self.regulariser.gradient(z)
        return torch.lerp(fz, preferred, beta), SAMState(k)
