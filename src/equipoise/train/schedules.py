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

from ..checks import integer, one_of, positive, within


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """A factor of the learning rate for each step."""

    warmup: int = 0
    name: ClassVar[str]

    def __post_init__(self) -> None:
        integer("warmup", self.warmup, 0)

    def factor(self, step: int, steps: int) -> float:
        """The factor of step 0 ≤ step < steps."""
        within("step", step, f"[0, {steps})")
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
        """1."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """floor + (1 − floor)·½(1 + cos πu)."""

    floor: float = 0.0
    name = "cosine"

    def __post_init__(self) -> None:
        super().__post_init__()
        within("floor", self.floor, "[0, 1]")

    def shape(self, u: float) -> float:
        """A cosine from 1 down to the floor."""
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
            within("at", share, "[0, 1]")
        within("decay", self.decay, "(0, 1]")

    def shape(self, u: float) -> float:
        """A power of the decay."""
        return self.decay ** sum(u >= share for share in self.at)


@dataclass(frozen=True, kw_only=True)
class Poly(Schedule):
    """floor + (1 − floor)·(1 − u)^power."""

    power: float = 1.0
    floor: float = 0.0
    name = "poly"

    def __post_init__(self) -> None:
        super().__post_init__()
        within("floor", self.floor, "[0, 1]")
        positive("power", self.power)

    def shape(self, u: float) -> float:
        """A power of what is left of the run."""
        return self.floor + (1 - self.floor) * (1 - u) ** self.power


SCHEDULES: dict[str, type[Schedule]] = {s.name: s for s in (Constant, Cosine, Steps, Poly)}


def as_schedule(which: str | Schedule, **options: Any) -> Schedule:
    """A Schedule by name, with its options: as_schedule("poly", power=2); a Schedule is itself."""
    if isinstance(which, Schedule) and not options:
        return which
    one_of("schedule", which, SCHEDULES, " or a Schedule")
    kind = SCHEDULES[str(which)]
    known = [f.name for f in dataclasses.fields(kind)]
    for name in options:
        if name not in known:
            raise ValueError(f"the {kind.name} schedule takes {', '.join(known)}. Got {name!r} instead.")
    return kind(**options)
