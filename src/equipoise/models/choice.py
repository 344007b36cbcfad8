"""Which solver is fastest on a layer: each is tried, and judged by the samples it solves and by its time."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from ..differentiate import Equation
from ..solve import Auto, Solution, Solver, Status

# A trial that was this short is timed again, and the shorter time counts: the first call of a kernel is slow.
_SHORT = 0.1

Clock = Callable[[], float]


@dataclass(frozen=True)
class Trial:
    """One solver on the whole batch, from the layer's start, to the layer's tolerance."""

    solver: Solver | Sequence[Solver]
    own: bool  # whether it is the layer's own
    solution: Solution
    seconds: float

    @classmethod
    def of(
        cls,
        solver: Solver | Sequence[Solver],
        solve: Callable[[], Solution],
        own: bool = False,
        clock: Clock = time.perf_counter,
    ) -> Trial:
        """What `solve` finds, and the seconds that it takes by the clock."""
        begin = clock()
        solution, seconds = solve(), clock() - begin
        if seconds < _SHORT:
            begin = clock()
            solution, again = solve(), clock() - begin
            seconds = min(seconds, again)
        return cls(solver, own, solution, seconds)

    @property
    def name(self) -> str:
        """The solver, or the chain of them, as one would write it."""
        chain = [self.solver] if isinstance(self.solver, Solver) else self.solver
        return " → ".join(_name(one) for one in chain)

    @property
    def converged(self) -> int:
        """How many samples it solves."""
        return int(self.solution.converged.sum())

    @property
    def solves_all(self) -> bool:
        """Whether it solves every sample."""
        return self.converged == len(self.solution.status)

    @property
    def cost(self) -> int:
        """Evaluations of f and products with its Jacobian, which cost about the same."""
        return self.solution.counts.evaluations + self.solution.counts.jvps

    @property
    def failures(self) -> str:
        """How many samples ended with each of the other statuses."""
        names = Counter(Status(int(s)).name for s in self.solution.status[~self.solution.converged])
        return ", ".join(f"{count} {name}" for name, count in names.most_common())


def best_of(trials: Sequence[Trial]) -> Trial:
    """The trial that solves the most samples; among equals the fastest."""
    return max(trials, key=lambda one: (one.converged, -one.seconds))


def chosen(equation: Equation, auto: Auto, clock: Clock = time.perf_counter) -> tuple[Trial, ...]:
    """Each candidate on the equation of a call, the best one first."""
    start = equation.start
    trials = []
    for solver in auto.candidates:
        one = copy.copy(equation)
        one.method = replace(equation.method, solver=solver)
        trials.append(Trial.of(solver, lambda one=one: one.solve(start, one.tensors), clock=clock))  # type: ignore[misc]
    best = best_of(trials)
    return (best, *(trial for trial in trials if trial is not best))


def _name(solver: Solver) -> str:
    """The solver as one would write it, defaults left out."""
    given = {f.name: getattr(solver, f.name) for f in fields(solver) if getattr(solver, f.name) != f.default}
    return f"{type(solver).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"
