"""L = Σ_i ℓ(ŷ_i, y_i): the losses of the theorems, with their derivatives and their PL constants.

A loss is the sum over samples, without 1/N; step sizes, rates and certificates are stated for that sum. L₀(M)
is the loss of the linear predictor ŷ = Φ Mᵀ; it is PL with κ when ½‖∇L₀‖² ≥ κ (L₀ − min L₀), for every M or
on a ball [kawaguchi2021].
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .checks import nonnegative, one_of
from .differentiate.equation import under_transform


@dataclass(frozen=True)
class Loss(ABC):
    """Σ ℓ(ŷ, y) over every entry of ŷ, (N,) or (N, k), with ∂ℓ/∂ŷ and ∂²ℓ/∂ŷ² entry by entry."""

    name: ClassVar[str]

    def __call__(self, yhat: Tensor, y: Tensor) -> Tensor:
        """The sum, a scalar that autograd differentiates."""
        return self.value(yhat, self.check(yhat, y)).sum()

    def gradient(self, yhat: Tensor, y: Tensor) -> Tensor:
        """∂ℓ/∂ŷ, like ŷ: the R of a pullback."""
        return self.slope(yhat, self.check(yhat, y))

    def second_derivative(self, yhat: Tensor, y: Tensor) -> Tensor:
        """∂²ℓ/∂ŷ², like ŷ."""
        return self.curvature(yhat, self.check(yhat, y))

    @abstractmethod
    def value(self, q: Tensor, y: Tensor) -> Tensor:
        """ℓ(q, y), entry by entry and unchecked, as are the two below."""

    @abstractmethod
    def slope(self, q: Tensor, y: Tensor) -> Tensor:
        """∂ℓ/∂q, entry by entry."""

    @abstractmethod
    def curvature(self, q: Tensor, y: Tensor) -> Tensor:
        """∂²ℓ/∂q², entry by entry."""

    def pl_constant(self, Phi: Tensor, radius: float = math.inf) -> float:
        """κ of L₀ on features Φ (N, m), on predictors with ‖M‖₁ ≤ `radius`. A float64 number, not a proof."""
        if not radius > 0:
            raise ValueError(f"radius must be > 0. Got {radius} instead.")
        if Phi.ndim != 2 or Phi.numel() == 0:
            raise ValueError(f"Phi must be (N, m), not empty. Got shape {tuple(Phi.shape)} instead.")
        sigma = float(torch.linalg.svdvals(Phi.detach().double())[-1])  # the min(N, m)-th
        return self.convexity(float(Phi.detach().double().abs().sum(dim=1).max()), radius) * sigma**2

    def convexity(self, size: float, radius: float) -> float:
        """A lower bound of ∂²ℓ/∂q² for |q| ≤ radius·size: times σ_min(Φ)² it is κ."""
        raise ValueError(f"no PL constant is known for the {self.name} loss: use 'square' or 'logistic'.")

    def check(self, yhat: Tensor, y: Tensor) -> Tensor:
        """y, which must fit ŷ and lie where ℓ is defined."""
        if not isinstance(y, Tensor) or y.shape != yhat.shape:
            got = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
            column = isinstance(y, Tensor) and (*y.shape, 1) == tuple(yhat.shape)
            hint = " Try y[:, None]." if column else ""
            raise ValueError(f"y must be {tuple(yhat.shape)} like ŷ. Got {got} instead.{hint}")
        if y.dtype != yhat.dtype:
            raise ValueError(f"y must be {yhat.dtype} like ŷ. Got {y.dtype} instead: y.to(ŷ.dtype).")
        if not under_transform():
            wrong = ~(torch.isfinite(y) & self.allowed(y))
            if bool(wrong.any()):
                at = torch.nonzero(wrong)[0]
                raise ValueError(
                    f"y must be {self.labels} for the {self.name} loss. "
                    f"Got {y[tuple(at)].item():g} in row {int(at[0])} instead."
                )
        return y

    labels: ClassVar[str] = "finite"

    def allowed(self, y: Tensor) -> Tensor:
        """Which entries of y the loss may be given."""
        return torch.ones_like(y, dtype=torch.bool)


@dataclass(frozen=True)
class Square(Loss):
    """ℓ = (q − y)², without ½ [kawaguchi2021]."""

    name = "square"

    def value(self, q: Tensor, y: Tensor) -> Tensor:
        """(q − y)²."""
        return (q - y).square()

    def slope(self, q: Tensor, y: Tensor) -> Tensor:
        """2(q − y)."""
        return 2 * (q - y)

    def curvature(self, q: Tensor, y: Tensor) -> Tensor:
        """2."""
        return torch.full_like(q, 2.0)

    def convexity(self, size: float, radius: float) -> float:
        """∂²ℓ/∂q² is 2 everywhere."""
        return 2.0


@dataclass(frozen=True)
class HalfSquare(Loss):
    """ℓ = ½(q − y)² [gao2022, ling2023, hieu2022]."""

    name = "half_square"

    def value(self, q: Tensor, y: Tensor) -> Tensor:
        """½(q − y)²."""
        return 0.5 * (q - y).square()

    def slope(self, q: Tensor, y: Tensor) -> Tensor:
        """q − y."""
        return q - y

    def curvature(self, q: Tensor, y: Tensor) -> Tensor:
        """1."""
        return torch.ones_like(q)

    def convexity(self, size: float, radius: float) -> float:
        """∂²ℓ/∂q² is 1 everywhere."""
        return 1.0


@dataclass(frozen=True)
class Logistic(Loss):
    """ℓ = −y log p − (1 − y) log(1 − p) + τq²,  p = 1/(1 + e^(−q)),  y ∈ [0, 1] [kawaguchi2021].

    It is PL with κ = (2τ + ρ)σ_min(Φ)², ρ = e^(−c)/(1 + e^(−c))², c = R max_i ‖φ_i‖₁. Without a radius ρ = 0,
    so that κ = 2τσ_min(Φ)²; with τ = 0 too, κ = 0 promises nothing.
    """

    tau: float = 0.0
    name = "logistic"
    labels = "in [0, 1]"

    def __post_init__(self) -> None:
        nonnegative("tau", self.tau)

    def value(self, q: Tensor, y: Tensor) -> Tensor:
        """log(1 + e^q) − yq + τq²."""
        return torch.nn.functional.softplus(q) - y * q + self.tau * q.square()

    def slope(self, q: Tensor, y: Tensor) -> Tensor:
        """p − y + 2τq, with p = 1/(1 + e^{−q})."""
        return torch.sigmoid(q) - y + 2 * self.tau * q

    def curvature(self, q: Tensor, y: Tensor) -> Tensor:
        """p(1 − p) + 2τ."""
        return torch.sigmoid(q) * torch.sigmoid(-q) + 2 * self.tau

    def convexity(self, size: float, radius: float) -> float:
        """2τ + e^{−c}/(1 + e^{−c})², with c = radius·size."""
        decay = math.exp(-radius * size) if size > 0 else 1.0
        return 2 * self.tau + decay / (1 + decay) ** 2

    def allowed(self, y: Tensor) -> Tensor:
        """Labels and probabilities in [0, 1]."""
        return (y >= 0) & (y <= 1)


@dataclass(frozen=True)
class SmoothedHinge(Loss):
    """ℓ = max(0, 1 − yq)^k,  k ≥ 2,  y ∈ {−1, 1} [kawaguchi2021]. Its second derivative at the kink is 0."""

    power: int = 2
    name = "smoothed_hinge"
    labels = "−1 or 1"

    def __post_init__(self) -> None:
        if not isinstance(self.power, int) or isinstance(self.power, bool) or self.power < 2:
            raise ValueError(f"power must be an integer ≥ 2: at 1 the hinge has a kink. Got {self.power!r}.")

    def value(self, q: Tensor, y: Tensor) -> Tensor:
        """max(0, 1 − yq)^power."""
        return torch.relu(1 - y * q) ** self.power

    def slope(self, q: Tensor, y: Tensor) -> Tensor:
        """−power·y·max(0, 1 − yq)^(power−1)."""
        return -self.power * y * torch.relu(1 - y * q) ** (self.power - 1)

    def curvature(self, q: Tensor, y: Tensor) -> Tensor:
        """power(power − 1)·max(0, 1 − yq)^(power−2) where 1 − yq > 0, else 0."""
        short = 1 - y * q
        factor = self.power * (self.power - 1)
        return torch.where(short > 0, factor * torch.relu(short) ** (self.power - 2), 0.0)

    def allowed(self, y: Tensor) -> Tensor:
        """Labels −1 and 1."""
        return y.abs() == 1


LOSSES: dict[str, type[Loss]] = {loss.name: loss for loss in (Square, HalfSquare, Logistic, SmoothedHinge)}


def as_loss(which: str | Loss, **options: Any) -> Loss:
    """A Loss by name, with its options: as_loss("logistic", tau=0.1); a Loss is returned as it is."""
    if isinstance(which, Loss):
        if options:
            raise ValueError(f"{which} has its options already. Got {', '.join(options)} as well.")
        return which
    one_of("loss", which, LOSSES, " or a Loss")
    kind = LOSSES[which]
    known = [f.name for f in dataclasses.fields(kind)]
    for name in options:
        if name not in known:
            takes = ", ".join(known) if known else "no options"
            raise ValueError(f"the {which} loss takes {takes}. Got {name!r} instead.")
    return kind(**options)
