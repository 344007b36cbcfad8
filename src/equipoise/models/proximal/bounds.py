"""L_σ‖W_l‖² ≤ μ makes each layer a proximal map; if one is strict, every input has one equilibrium."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from ...checks import positive, within
from ...differentiate.equation import needs_gradient
from ...linalg import norm_upper
from ..kept import Kept
from ..norms import spectral_norm
from .pieces import Skip, pace


class Bounded(Skip):
    """Layers W_l of a state, with α, μ and σ: their norms, and what follows from them."""

    _kept: Kept

    @property
    @abstractmethod
    def blocks(self) -> Sequence[Any]:
        """The layers, each with W (n_l, m), U (n_l, d) and b (n_l,)."""

    @property
    def mu(self) -> float:
        """μ > 0."""
        return self._mu

    @mu.setter
    def mu(self, mu: float) -> None:
        positive("mu", mu)
        self._mu = float(mu)

    @property
    def bound(self) -> float | None:
        """β of ‖W_l‖ ≤ β√(μ/L_σ) by scaling; None for free weights."""
        return self._bound

    @bound.setter
    def bound(self, bound: float | None) -> None:
        words = ", the largest √(L_σ/μ)‖W‖, or be None for free weights"
        within("bound", 1.0 if bound is None else bound, "(0, 1]", words)
        self._bound = None if bound is None else float(bound)

    @property
    def proximal_norm(self) -> float:
        """√(μ/L_σ): the norm up to which a layer is a proximal map."""
        return (self.mu / self.activation.lipschitz) ** 0.5

    def weights(self) -> list[Tensor]:
        """The effective W_l: as they are, or with ‖W_l‖ ≤ bound·√(μ/L_σ) by the parameterisation."""
        return self.effective([layer.W for layer in self.blocks])

    def effective(self, raw: list[Tensor]) -> list[Tensor]:
        """The stored W_l, scaled where `bound` asks for it."""
        if self.bound is None:
            return raw
        limit = self.bound * self.proximal_norm
        if needs_gradient(raw):
            return [_scaled(W, limit) for W in raw]
        return list(self._kept.of(raw, lambda: [_scaled(W, limit) for W in raw], limit))

    @property
    def pace(self) -> float:
        """s = 1 − (1 − α)^L: the part of the way to the targets of its layers that one step of T goes."""
        return pace(self.alpha, len(self.blocks))

    @torch.no_grad()
    def project_(self, bound: float = 1.0) -> Self:
        """W_l ← W_l·min(1, bound·√(μ/L_σ)/‖W_l‖), in place, with a sound bound of ‖W_l‖. Returns the model.

        Afterwards L_σ‖W_l‖² ≤ bound²·μ is certain for every layer. With a bound of 1 the map is nonexpansive;
        with a smaller one it is a contraction, as `certify(model, X)` proves. Call it after each step of an
        optimiser. Take a bound below 1 if gradients are implicit, since they grow like 1/(1 − q).
        """
        within("bound", bound, "(0, 1]")
        limit = bound * self.proximal_norm
        for i, layer in enumerate(self.blocks):
            W = layer.W
            if not isinstance(W, nn.Parameter):
                raise ValueError(
                    f"W of layer {i + 1} must be a parameter, to be projected in place. Got one that is "
                    f"computed at each call, by a parametrisation or a hook: remove that, or use bound=."
                )
            if not bool(torch.isfinite(W).all()):
                raise ValueError(f"W of layer {i + 1} holds NaN or infinity: there is nothing to project.")
            while not (size := norm_upper(W)) <= limit:
                W.mul_(limit / size * (1 - 2 * torch.finfo(W.dtype).eps))
        return self

    def layer_sizes(self) -> list[tuple[float, float]]:
        """For each layer a sound bound of ‖W_l‖, and the norm up to which it is a proximal map."""
        cap = math.inf if self.bound is None else self.bound * self.proximal_norm
        return [(min(norm_upper(W), cap), self.proximal_norm) for W in self.weights()]

    def factors(self) -> list[float]:
        """1 − α + α L_σ‖W_l‖²/μ: the Lipschitz constant of each layer. Float64 numbers, not a proof."""
        scale = self.alpha * self.activation.lipschitz / self.mu
        return [1 - self.alpha + scale * spectral_norm(W) ** 2 for W in self.weights()]

    def contraction(self) -> float | None:
        """q = ∏(1 − α + α L_σ‖W_l‖²/μ), where it is below 1; else None. A float64 number, not a proof."""
        q = math.prod(self.factors())
        return q if q < 1 and self._property_nonexpansive else None

    @property
    def averagedness(self) -> float:
        """Lα/(2 + (L−1)α): T is averaged with this constant where every L_σ‖W_l‖² ≤ μ    [xie2021, §2.3].

        This is known for the layers alone; a ValueError if a property follows them.
        """
        if self.regulariser is not None:
            raise ValueError(
                f"averagedness is known for the layers alone, not with {self.regulariser} after them."
            )
        L = len(self.blocks)
        return L * self.alpha / (2 + (L - 1) * self.alpha)

    @property
    def _property_nonexpansive(self) -> bool:
        return self.regulariser is None or self.regulariser.nonexpansive

    def check_wellposed(self) -> None:
        """Raise a ValueError unless the weights give every input one equilibrium; it says what to do."""
        if not self._property_nonexpansive:
            raise ValueError(
                f"{self.regulariser} is not known to be nonexpansive, so nothing says that an input has one "
                f"equilibrium: use a proximal property, or a convex R with a step ≤ 2/L_z."
            )
        if math.prod(self.factors()) < 1:
            return
        norms = ", ".join(f"{spectral_norm(W) / self.proximal_norm:.6g}" for W in self.weights())
        raise ValueError(
            f"√(L_σ/μ)‖W_l‖ must be ≤ 1 for every layer and < 1 for one, for every input to have one "
            f"equilibrium. Got {norms}: project_(0.99) after each step, or bound=0.99, sees to it."
        )


def _scaled(W: Tensor, limit: float) -> Tensor:
    """W·min(1, limit/‖W‖), less what rounding may have added: computed norms are right to max(n, m)·eps.

    The SVD always computes its vectors, even without a gradient, so that W comes out the same.
    """
    goal = limit * (1 - 4 * max(W.shape) * torch.finfo(W.dtype).eps)
    return W * (goal / torch.linalg.svd(W, full_matrices=False).S.amax().clamp_min(goal))
