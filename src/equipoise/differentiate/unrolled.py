"""z_K with z_k = f(z_{k−1}, θ): differentiate the iteration itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..solve import SAM, EquilibriumError, Picard, Solution, Solver, Status
from ..solve.driver import verify
from ..solve.problem import make_map
from .equation import Equation
from .gradient import Gradient, Record, rows_alone


@dataclass(frozen=True)
class Unrolled(Gradient):
    """z_K with z_k = f(z_{k−1}, θ), by `steps` steps of `solver` that autograd records.

    Memory grows with `steps`. The gradient is that of z_K, which is the gradient of the equilibrium only as
    far as z_K is one: the residual at z_K is judged by the stopping test and the failure policy of the layer.
    """

    exact = False
    steps: int = 20
    solver: Solver = field(default_factory=Picard)

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or self.steps < 1:
            raise ValueError(f"steps must be an integer ≥ 1. Got {self.steps!r} instead.")
        if not isinstance(self.solver, Picard):
            raise TypeError(
                f"solver must be a Picard(damping=…), whose steps autograd can record. Got {self.solver!r} "
                f"instead: use Implicit() to differentiate what another solver finds."
            )

    def equilibrium(
        self, equation: Equation, start: Tensor, tensors: Sequence[Tensor], record: Record
    ) -> Tensor:
        """z_K, judged, as autograd recorded it."""
        z, solution = _recorded(self.solver, self.steps, equation, start, tensors)
        record.forward = solution
        return judged_steps(self, equation, start, tensors, record, z)


@dataclass(frozen=True)
class UnrolledSAM(Gradient):
    """z^K with z^k = β_k S_λk(z^{k−1}) + (1 − β_k) T(z^{k−1}): SAM, its K steps recorded    [xie2021, (11)].

    z^K is the state of the network by definition. It is about K^{−ρ} away from a fixed point of T; this is
    recorded in `last.forward` and is not a failure. Only a state that is not finite is one.
    """

    exact = False
    steps: int
    sam: SAM

    def equilibrium(
        self, equation: Equation, start: Tensor, tensors: Sequence[Tensor], record: Record
    ) -> Tensor:
        """z^K as autograd recorded it; a failure only where it is not finite."""
        z, solution = _recorded(self.sam, self.steps, equation, start, tensors)
        record.forward = solution
        lost = solution.status == Status.nonfinite
        judged = replace(solution, status=torch.where(lost, solution.status, int(Status.converged)))
        kept = equation.method.on_failure.judge(judged, f"{self.steps} steps of SAM")
        return z if kept is None else _without_failures(self, equation, start, tensors, record, z, kept)


def judged_steps(
    how: Gradient, equation: Equation, start: Tensor, tensors: Sequence[Tensor], record: Record, z: Tensor
) -> Tensor:
    """z_K after a given number of steps, judged by the failure policy of the layer."""
    solution = record.forward
    assert solution is not None
    name, steps = type(how).__name__, solution.stop.max_steps
    try:
        kept = equation.method.on_failure.judge(solution, f"{steps} {name.lower()} steps")
    except EquilibriumError as error:
        raise EquilibriumError(
            f"{error}\nThe steps are those of {name}({steps}): take more of them, or accept z_K as it is by "
            f"on_failure='accept'.",
            solution,
        ) from None
    return z if kept is None else _without_failures(how, equation, start, tensors, record, z, kept)


def _recorded(
    solver: Solver, steps: int, equation: Equation, start: Tensor, tensors: Sequence[Tensor]
) -> tuple[Tensor, Solution]:
    """z after this many steps of a solver, recorded by autograd, and its Solution."""
    args, shared = tensors[: equation.batched], tensors[equation.batched :]
    f = make_map(equation, start, args, shared)
    z, state = start, solver.init(f, start)
    with equation.held():
        for _ in range(steps):
            z, state = solver.step(f, z, f(z), state)
        _refuse_mapped(z)
        seen = verify(equation, z, args, shared, stop=equation.method.stop)
    taken, limit = torch.full_like(seen.steps, steps), replace(seen.stop, max_steps=steps)
    f.counts += seen.counts
    return z, replace(seen, steps=taken, counts=f.counts, stop=limit, solver=type(solver).__name__)


def _without_failures(
    how: Gradient,
    equation: Equation,
    start: Tensor,
    tensors: Sequence[Tensor],
    record: Record,
    z: Tensor,
    kept: Tensor,
) -> Tensor:
    """z whose failed rows have no gradient: the others are recorded once more without them."""
    record.masked = len(z) - len(kept)
    rows = rows_alone(equation, z.detach(), kept, tensors, record)
    again = how.equilibrium(equation, start[kept], rows, Record())
    return torch.where(torch.isfinite(z), z, 0.0).detach().index_copy(0, kept, again)


def _refuse_mapped(z: Tensor) -> None:
    while torch._C._functorch.is_functorch_wrapped_tensor(z):
        if torch._C._functorch.is_batchedtensor(z):
            raise RuntimeError("Unrolled cannot judge its last state under vmap: use Implicit() there.")
        z = torch._C._functorch.get_unwrapped(z)
