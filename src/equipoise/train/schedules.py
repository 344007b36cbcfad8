"""η_s = η · factor(s, S): how the learning rate changes over the S steps of a run.

| name | factor, with u = s/S |
| --- | --- |
| `Constant` | 1 |
| `Cosine` | floor + (1 − floor)·½(1 + cos πu) |
| `Steps` | decay^(number of `at` that u has passed) |
| `Poly` | floor + (1 − floor)·(1 − u)^power |

Every one may begin with `warmup` steps that rise in equal parts from 0.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """A factor of the learning rate for each step."""

    warmup: int = 0
    name: ClassVar[str]

    def __post_init__(self) -> None:
        if not isinstance(self.warmup, int) or isinstance(self.warmup, bool) or self.warmup < 0:
            raise ValueError(f"warmup must be an integer ≥ 0. Got {self.warmup!r} instead.")

    def factor(self, step: int, steps: int) -> float:
        """The factor of step 0 ≤ step < steps."""
        if not 0 <= step < steps:
            raise ValueError(f"step must lie in [0, {steps}). Got {step} instead.")
        rise = min(1.0, (step + 1) / (self.warmup + 1))
        return rise * self.shape(step / steps)

    @abstractmethod
    def shape(self, u: float) -> float:
        """The factor after the share u ∈ [0, 1) of the run."""


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """1."""

    name = "constant"

    def shape(self, u: float) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """floor + (1 − floor)·½(1 + cos πu)."""

    floor: float = 0.0
    name = "cosine"

    def __post_init__(self) -> None:
        super().__post_init__()
        _share("floor", self.floor)

    def shape(self, u: float) -> float:
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * u))


@dataclass(frozen=True, kw_only=True)
class Steps(Schedule):
    """decay^j, j the number of shares `at` that u has reached."""

    at: tuple[float, ...] = (0.5, 0.75)
    decay: float = 0.1
    name = "step"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "at", tuple(self.at))
        for share in self.at:
            _share("at", share)
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must lie in (0, 1]. Got {self.decay} instead.")

    def shape(self, u: float) -> float:
        return self.decay ** sum(u >= share for share in self.at)


@dataclass(frozen=True, kw_only=True)
class Poly(Schedule):
    """floor + (1 − floor)·(1 − u)^power."""

    power: float = 1.0
    floor: float = 0.0
    name = "poly"

    def __post_init__(self) -> None:
        super().__post_init__()
        _share("floor", self.floor)
        if not 0 < self.power < math.inf:
            raise ValueError(f"power must be a finite number > 0. Got {self.power} instead.")

    def shape(self, u: float) -> float:
        return self.floor + (1 - self.floor) * (1 - u) ** self.power


SCHEDULES: dict[str, type[Schedule]] = {s.name: s for s in (Constant, Cosine, Steps, Poly)}


def as_schedule(which: str | Schedule, **options: Any) -> Schedule:
    """A Schedule by name, with its options: as_schedule("poly", power=2); a Schedule is itself."""
    if isinstance(which, Schedule) and not options:
        return which
    if which not in SCHEDULES:
        raise ValueError(
            f"schedule must be one of {', '.join(map(repr, SCHEDULES))} or a Schedule. Got {which!r} instead."
        )
    kind = SCHEDULES[str(which)]
    known = [f.name for f in dataclasses.fields(kind)]
    for name in options:
        if name not in known:
            raise ValueError(f"the {kind.name} schedule takes {', '.join(known)}. Got {name!r} instead.")
    return kind(**options)


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must lie in [0, 1]. Got {value} instead.")
