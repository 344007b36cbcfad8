"""What a layer does with samples that have no equilibrium: raise, warn, mask, count or accept."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from .solution import EquilibriumError, Solution, Status, Stop

Policy = Literal["raise", "warn", "mask", "count", "accept"]
POLICIES = get_args(Policy)


class EquilibriumWarning(UserWarning):
    """Samples without an equilibrium were let through, as the policy asked."""


@dataclass(frozen=True)
class OnFailure:
    """The failure policy of a layer.

    - `raise` (default): an EquilibriumError that names the rows.
    - `warn`: the best iterates are used, with a warning that names the rows.
    - `mask`: the rows that failed get no gradient and are counted. The layer reports their number at its next
      train() or eval(), which most loops call once an epoch. It raises an error if more than `share` of the
      batch failed, or if the cell mixes samples.
    - `count`: the best iterates are used, if they are finite. The rows that failed are counted and reported
      as by `mask`, and in eval mode the first call with such rows warns at once. This is for cells of which
      many rows fail, so a call of a cell takes at most `steps` steps, in training and in eval mode alike.
      Unless you name a gradient, its adjoint takes an eighth as many, to the same tolerance. A row whose
      adjoint needs more has a truncated gradient, and is counted too.
    - `accept`: the best iterates are used without a warning. The status of each row is in `layer.last`.

    The best iterate of a row is the one with the lowest residual that was seen.
    """

    policy: Policy = "raise"
    share: float = 0.1
    steps: int = 30

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"on_failure must be one of {POLICIES}. Got {self.policy!r} instead.")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must lie in [0, 1]. Got {self.share} instead.")
        if not isinstance(self.steps, int) or isinstance(self.steps, bool) or self.steps < 1:
            raise ValueError(f"steps must be an integer ≥ 1. Got {self.steps!r} instead.")

    @classmethod
    def of(cls, policy: Policy | OnFailure) -> OnFailure:
        """The policy of that name, or the policy itself."""
        return policy if isinstance(policy, OnFailure) else cls(policy)

    @property
    def uses_failed(self) -> bool:
        """Whether rows that failed are used as they are."""
        return self.policy in ("warn", "count", "accept")

    def limited(self, stop: Stop) -> Stop:
        """The stopping test of a solve that may take `steps` steps."""
        return replace(stop, max_steps=min(stop.max_steps, self.steps))

    def judge(self, solution: Solution, what: str = "forward solve") -> Tensor | None:
        """The rows to keep, or None if all are to be used. Raises and warns as the policy says."""
        failed = ~solution.converged
        if self.policy == "accept" or not bool(failed.any()):
            return None
        if refusal := self._refusal(solution, int(failed.sum())):
            raise EquilibriumError(f"{what}: {solution.explain_failure()}\n{refusal}", solution)
        if self.policy == "warn":
            warnings.warn(f"{what}: {solution.explain_failure()}", EquilibriumWarning, stacklevel=4)
        return torch.nonzero(~failed).flatten() if self.policy == "mask" else None

    def _refusal(self, solution: Solution, failed: int) -> str:
        """Why rows that failed are not let through, in words; empty if they are."""
        has, total = (lambda status: bool((solution.status == status).any())), len(solution.status)
        if self.policy == "raise":
            return (
                "on_failure='raise' (the default) ends here. With on_failure='mask' such rows get no "
                "gradient and are counted. With 'count', for cells of which many rows fail, what "
                f"{self.steps} steps reach is used and counted. 'warn' and 'accept' use the best iterates."
            )
        if self.policy == "count" and has(Status.nonfinite):
            return "on_failure='count' uses what was reached, which must be finite."
        if self.policy == "mask" and has(Status.coupled):
            return "on_failure='mask' leaves samples out, and here others depend on them."
        if self.policy == "mask" and failed > self.share * total:
            return (
                f"on_failure='mask' allows {self.share:.0%} of a batch to fail. Got {failed} of {total} "
                f"instead: use OnFailure('mask', share=…) to allow more."
            )
        return ""

    def require_all(self, solution: Solution, what: str) -> None:
        """`judge` where no row can be left out; an error if the policy leaves out any."""
        if self.judge(solution, what) is not None:
            raise EquilibriumError(
                f"{what}: {solution.explain_failure()}\non_failure='mask' leaves rows out of first "
                f"derivatives in eager mode only, not of a torch.func transform or a second derivative.",
                solution,
            )
