"""z_K with z_k = f(z_{k−1}, θ): differentiate the iteration itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..solve import EquilibriumError, Picard, Solver
from ..solve.driver import verify
from ..solve.problem import make_map
from .equation import Equation
from .gradient import Gradient, Record


@dataclass(frozen=True)
class Unrolled(Gradient):
    """z_K with z_k = f(z_{k−1}, θ), by `steps` steps of `solver` that autograd records.

    Memory grows with `steps`. The gradient is that of z_K, which is the equilibrium's only as far as z_K is
    one: the residual at z_K is measured and judged by the layer's stopping test and failure policy.
    """

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
        args, shared = tensors[: equation.batched], tensors[equation.batched :]
        f = make_map(equation, start, args, shared)
        z, state = start, self.solver.init(f, start)
        with equation.held():
            for _ in range(self.steps):
                z, state = self.solver.step(f, z, f(z), state)
            _refuse_mapped(z)
            seen = verify(equation, z, args, shared, stop=equation.method.stop)
        taken, limit = torch.full_like(seen.steps, self.steps), replace(seen.stop, max_steps=self.steps)
        f.counts += seen.counts
        name = type(self.solver).__name__
        solution = record.forward = replace(seen, steps=taken, counts=f.counts, stop=limit, solver=name)
        try:
            kept = equation.method.on_failure.judge(solution, f"{self.steps} unrolled steps")
        except EquilibriumError as error:
            raise EquilibriumError(
                f"{error}\nThe steps are those of Unrolled({self.steps}): take more of them, or z_K as it "
                f"is, with on_failure='accept'.",
                solution,
            ) from None
        if kept is not None:
            record.masked = len(z) - len(kept)
            rows = [t[kept] for t in args]
            again = self.equilibrium(equation, start[kept], [*rows, *shared], Record())
            frame = torch.where(torch.isfinite(z), z, 0.0).detach()
            z = frame.index_copy(0, kept, again)
        return z


def _refuse_mapped(z: Tensor) -> None:
    while torch._C._functorch.is_functorch_wrapped_tensor(z):
        if torch._C._functorch.is_batchedtensor(z):
            raise RuntimeError("Unrolled cannot judge its last state under vmap: use Implicit() there.")
        z = torch._C._functorch.get_unwrapped(z)
