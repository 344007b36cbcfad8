"""Method: how an equilibrium is found and differentiated, and what happens to samples that have none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from ..solve import Solver, Stop
from ..solve.driver import Precision, check_precision, checked_chain
from ..solve.failure import OnFailure

if TYPE_CHECKING:
    from .gradient import Gradient

Solvers = Solver | Sequence[Solver]


@dataclass(frozen=True, kw_only=True)
class Method:
    """How an equation is solved and differentiated. The model chooses what is None by its family.

    `solver` is a solver, or a sequence of solvers that are tried in turn on the rows that failed. A model
    holds one Method; the keywords of a call (`stop=`, `solver=`, `precision=`, `gradient=`, `on_failure=`)
    change it for that call alone.
    """

    solver: Solvers | None = None
    stop: Stop = field(default_factory=Stop)
    gradient: Gradient | None = None
    precision: Precision = "auto"
    on_failure: OnFailure = field(default_factory=OnFailure)

    def __post_init__(self) -> None:
        from .gradient import Gradient

        if self.gradient is not None and not isinstance(self.gradient, Gradient):
            raise TypeError(
                f"gradient must be a Gradient such as eq.Implicit(). Got {self.gradient!r} instead."
            )
        if not isinstance(self.on_failure, OnFailure):
            object.__setattr__(self, "on_failure", OnFailure.of(self.on_failure))
        if not isinstance(self.stop, Stop):
            raise TypeError(f"stop must be a Stop such as eq.Stop(rtol=1e-6). Got {self.stop!r} instead.")
        check_precision(self.precision)
        listed = self.solver is None or (
            isinstance(self.solver, Sequence) and not isinstance(self.solver, str)
        )
        checked_chain(self.solver if listed else [self.solver])  # type: ignore[list-item]

    def changed(self, **how: Any) -> Method:
        """The same method, changed by the keywords of one call; None leaves a setting as it is."""
        if unknown := sorted(set(how) - KEYWORDS):
            raise TypeError(f"a call takes start=, {_listed}. Got {', '.join(unknown)}= instead.")
        given = {name: value for name, value in how.items() if value is not None}
        return replace(self, **given) if given else self


KEYWORDS = frozenset(f.name for f in fields(Method))  # what a call may say about its method
_listed = ", ".join(f"{f.name}=" for f in fields(Method))
