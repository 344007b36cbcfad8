"""The contract of a solver: `init` and `step` on flat rows. The driver runs the loop."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from torch import Tensor

from .problem import Map


@dataclass
class SolverState:
    """What a solver carries from step to step: batch-first tensors, and fields declared `shared()`."""

    def take(self, rows: Tensor) -> Self:
        """The state of some of the rows."""
        return dataclasses.replace(
            self,
            **{
                f.name: getattr(self, f.name)[rows]
                for f in dataclasses.fields(self)
                if not f.metadata.get("shared") and isinstance(getattr(self, f.name), Tensor)
            },
        )


def shared(**kwargs: Any) -> Any:
    """A field of a SolverState that belongs to all rows together: a counter, a factorisation."""
    return field(metadata={"shared": True}, **kwargs)


@dataclass(frozen=True)
class Solver(ABC):
    """One way to move an iterate towards z = f(z). Subclasses are frozen dataclasses of their options."""

    uses_value: ClassVar[bool] = True
    """Whether `step` reads fz. Where it does not, f is evaluated only to check the residual."""

    uses_difference: ClassVar[bool] = False
    """Whether `step` asks the map for f(z) − z, so that a check should leave it there."""

    smooth: ClassVar[bool] = False
    """Whether residuals fall at a steady rate, so that checks can wait until one could pass."""

    steepest: ClassVar[float] = math.inf
    """By what factor a residual falls in a step at most, as a rule: checks wait until one could pass."""

    affine_only: ClassVar[bool] = False
    """Whether the solver needs the parts of an AffineMap."""

    selects: ClassVar[bool] = False
    """Whether the solver chooses among equilibria: the next one of a chain then always goes on from there."""

    def require(self, f: Map) -> None:  # noqa: B027  (most solvers take everything)
        """Raise an error that explains it, before anything runs, if the solver cannot take this problem."""

    def applies(self, f: Map) -> bool:
        """Whether the solver can be tried after another one has failed; a chain skips one that cannot."""
        return True

    def init(self, f: Map, z: Tensor) -> SolverState:
        """What the solver carries into its first step."""
        return SolverState()

    def adjoint_estimate(self, state: Any, rows: Tensor) -> Callable[[Tensor], Tensor] | None:
        """g ↦ an estimate of (I − ∂f/∂z)⁻ᵀ g by the steps that `rows` have taken; None if there is none."""
        return None

    @abstractmethod
    def step(self, f: Map, z: Tensor, fz: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The next iterate of every row, (n, D), from z and fz = f(z)."""
