"""z = T_R∘T(z), or z^k = β_k S_λk(z) + (1 − β_k) T(z): features with a property.    [xie2021, §4]

A *regularised layer* appends T_R to the network: `prox_R`, which adds the Moreau envelope M_R (not R itself,
as the paper prints) to the convex problem behind it, or a gradient step `I − γ∇R`. Against αM_φ, R weighs the
more the smaller α is: take λ proportional to α.

| property | R | T_R | nonexpansive |
| --- | --- | --- | --- |
| `L1(λ)` | λ‖z‖₁ | soft threshold | yes |
| `SquaredL2(λ)` | λ‖z‖² | z/(1 + 2λ) | yes |
| `GroupLasso(λ, g)` | λ Σ‖z_group‖ over g groups | each group shrunk by λ | yes |
| `Box(low, high)` | 0 on [low, high], else ∞ | clamp | yes |
| `GradientStep(R, γ)` | any with a gradient | z − γ∇R(z) | where R is convex and γ ≤ 2/L_z |

*SAM* keeps the network and chooses, among its fixed points, the one with the least R: `selection` of
`theory.xie2021` says whether Theorem 4 promises that. It does for ½‖z‖² and ½‖z − a‖²; 1/(‖z‖² + ε) and the
decorrelation are not convex, and nothing is promised. It is trained through its unrolled steps; K = 20 of
them only shrink the state.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ...checks import as_number, integer, nonnegative
from ...solve import Regulariser

# -- layers that give the state a property -------------------------------------------------------------------


@dataclass(frozen=True)
class Property(ABC):
    """T_R of a regulariser R, applied to every row of the state."""

    @abstractmethod
    def __call__(self, z: Tensor) -> Tensor:
        """T_R(z), (N, m)."""

    @property
    def nonexpansive(self) -> bool:
        """Whether ‖T_R(z) − T_R(w)‖ ≤ ‖z − w‖ is known; False unless a kind of property says so."""
        return False

    @property
    def declared(self) -> str:
        """What `nonexpansive` takes on trust, in words; empty if it is a theorem."""
        known = type(self) in _KINDS.values()
        return "" if known or not self.nonexpansive else f"{self} is nonexpansive, as declared"

    def config(self) -> Any:
        """What a file keeps of it."""
        return {"kind": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class Proximal(Property):
    """prox_R of a convex R."""

    @abstractmethod
    def value(self, z: Tensor) -> Tensor:
        """R of every row, (N,)."""

    @property
    def nonexpansive(self) -> bool:
        """True, as of every proximal map of a convex function."""
        return True

    def envelope(self, z: Tensor) -> Tensor:
        """M_R(z) = min_p R(p) + ½‖z − p‖², (N,): what the layer adds to the objective."""
        p = self(z)
        return self.value(p) + (z - p).square().sum(dim=1) / 2


@dataclass(frozen=True)
class L1(Proximal):
    """sign(z) max(|z| − λ, 0): prox of λ‖z‖₁."""

    weight: float = 0.1

    def __post_init__(self) -> None:
        nonnegative("weight", self.weight)

    def __call__(self, z: Tensor) -> Tensor:
        return torch.nn.functional.softshrink(z, self.weight)

    def value(self, z: Tensor) -> Tensor:
        """λ‖z‖₁, (N,)."""
        return self.weight * z.abs().sum(dim=1)


@dataclass(frozen=True)
class SquaredL2(Proximal):
    """z/(1 + 2λ): prox of λ‖z‖²."""

    weight: float = 0.1

    def __post_init__(self) -> None:
        nonnegative("weight", self.weight)

    def __call__(self, z: Tensor) -> Tensor:
        return z / (1 + 2 * self.weight)

    def value(self, z: Tensor) -> Tensor:
        """λ‖z‖², (N,)."""
        return self.weight * z.square().sum(dim=1)


@dataclass(frozen=True)
class GroupLasso(Proximal):
    """max(1 − λ/‖z_g‖, 0) z_g for each of `groups` equal groups: prox of λ Σ_g ‖z_g‖."""

    weight: float = 0.1
    groups: int = 1

    def __post_init__(self) -> None:
        nonnegative("weight", self.weight)
        integer("groups", self.groups)

    def __call__(self, z: Tensor) -> Tensor:
        rows = self._grouped(z)
        square = rows.square().sum(dim=2, keepdim=True)
        active = square > self.weight**2
        norm = torch.where(active, square, 1.0).sqrt()  # so that no root is taken at 0
        return (rows * torch.where(active, 1 - self.weight / norm, 0.0)).reshape(z.shape)

    def value(self, z: Tensor) -> Tensor:
        """λ Σ_g ‖z_g‖, (N,)."""
        return self.weight * self._grouped(z).norm(dim=2).sum(dim=1)

    def _grouped(self, z: Tensor) -> Tensor:
        if z.shape[1] % self.groups:
            raise ValueError(f"groups must divide the state's {z.shape[1]} entries. Got {self.groups}.")
        return z.reshape(len(z), self.groups, -1)  # (N, g, m/g)


@dataclass(frozen=True)
class Box(Proximal):
    """min(max(z, low), high): prox of the indicator of a box."""

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not as_number(self.low) < as_number(self.high):
            raise ValueError(f"low must be < high, both numbers. Got {self.low!r} and {self.high!r} instead.")

    def __call__(self, z: Tensor) -> Tensor:
        return z.clamp(self.low, self.high)

    def value(self, z: Tensor) -> Tensor:
        """0 inside of the box, ∞ outside, (N,)."""
        outside = ((z < self.low) | (z > self.high)).any(dim=1)
        return torch.where(outside, math.inf, torch.zeros_like(z[:, 0]))


@dataclass(frozen=True)
class GradientStep(Property):
    """z − γ∇R(z), for an R that has a gradient and no known prox; γ = 1/L_z by default.

    It is nonexpansive if R is convex and γ ≤ 2/L_z. For any other R no theorem promises an equilibrium, and
    `certify` says so.
    """

    regulariser: Regulariser
    step: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.regulariser, Regulariser):
            raise TypeError(
                f"regulariser must be a Regulariser: one of solve's, or differentiable(R, lipschitz=…). "
                f"Got {self.regulariser!r} instead."
            )
        if self.step is not None:
            nonnegative("step", self.step)

    @property
    def gamma(self) -> float:
        """γ, 1/L_z unless `step` says another."""
        return 1 / self.regulariser.lipschitz if self.step is None else self.step

    @property
    def nonexpansive(self) -> bool:
        """Whether R is convex and γ ≤ 2/L_z."""
        return self.regulariser.convex and self.gamma * self.regulariser.lipschitz <= 2

    @property
    def declared(self) -> str:
        """What is believed of R, which only its author can know."""
        R = self.regulariser
        return f"{R.name} is convex and ∇{R.name} has the Lipschitz constant {R.lipschitz:g}, as declared"

    def __call__(self, z: Tensor) -> Tensor:
        return z - self.gamma * self.regulariser.gradient(z)

    def config(self) -> Any:
        """A description only, since a file holds no function."""
        return repr(self)

    def __repr__(self) -> str:
        return f"GradientStep({self.regulariser.name}, step={self.gamma:g})"


def differentiable(
    R: Callable[[Tensor], Tensor], *, lipschitz: float, convex: bool, name: str = "R"
) -> Regulariser:
    """Any differentiable R, as a Regulariser with ∇R by automatic differentiation.

    `R` maps rows (n, m) to values (n,), each row on its own; `lipschitz` is a bound of ∇R's Lipschitz
    constant L_z and `convex` is what you know of R: both are taken at your word.
    """

    def total(z: Tensor) -> Tensor:
        value = R(z).sum()
        if not value.requires_grad:
            raise ValueError(
                f"{name} must depend on z by differentiable operations. Got a value that does not, so "
                f"that its gradient would be 0: leave out detach(), no_grad() and NumPy."
            )
        return value

    return Regulariser(name, torch.func.grad(total), lipschitz, convex)


_KINDS: dict[str, type[Property]] = {kind.__name__: kind for kind in (L1, SquaredL2, GroupLasso, Box)}


def as_property(value: Property | Mapping[str, Any] | str | None) -> Property | None:
    """A property, or what a file holds of one."""
    if value is None or isinstance(value, Property):
        return value
    if isinstance(value, Mapping) and value.get("kind") in _KINDS:
        options = dict(value)
        return _KINDS[options.pop("kind")](**options)
    raise TypeError(
        f"regulariser must be a property such as L1(0.1), or GradientStep(R). Got {value!r} instead; a file "
        f"holds no function, so pass that of a gradient step to load(path, regulariser=…). A Regulariser "
        f"alone is for SAM: solver=SAM(…)."
    )
