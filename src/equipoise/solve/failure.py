"""What a layer does with samples that have no equilibrium: raise, warn, mask or accept."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .solution import EquilibriumError, Solution, Status

Policy = Literal["raise", "warn", "mask", "accept"]
POLICIES = ("raise", "warn", "mask", "accept")


class EquilibriumWarning(UserWarning):
    """Samples without an equilibrium were let through, as the policy asked."""


@dataclass(frozen=True)
class OnFailure:
    """The failure policy of a layer.

    - `raise` (default): an EquilibriumError that names the rows.
    - `warn`: the last iterates are used, with a warning that names the rows.
    - `mask`: the rows that failed get no gradient and are counted. The layer reports their number at its next
      train() or eval(), which most loops call once an epoch. It raises an error if more than `share` of the
      batch failed, or if the cell mixes samples.
    - `accept`: the last iterates are used without a warning. The status of each row is in `layer.last`.
    """

    policy: Policy = "raise"
    share: float = 0.1

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"on_failure must be one of {POLICIES}. Got {self.policy!r} instead.")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must lie in [0, 1]. Got {self.share} instead.")

    @classmethod
    def of(cls, policy: Policy | OnFailure) -> OnFailure:
        """The policy of that name, or the policy itself."""
        return policy if isinstance(policy, OnFailure) else cls(policy)

    def judge(self, solution: Solution, what: str = "forward solve") -> Tensor | None:
        """The rows to keep, or None if all are to be used. Raises and warns as the policy says."""
        failed = ~solution.converged
        if self.policy == "accept" or not bool(failed.any()):
            return None
        message = f"{what}: {solution.explain_failure()}"
        if self.policy == "raise":
            raise EquilibriumError(
                f"{message}\non_failure='raise' (the default) ends here. With on_failure='mask' such rows "
                f"get no gradient and are counted; 'warn' and 'accept' use their last iterates.",
                solution,
            )
        if self.policy == "warn":
            warnings.warn(message, EquilibriumWarning, stacklevel=4)
            return None
        if bool((solution.status == Status.coupled).any()):
            raise EquilibriumError(
                f"{message}\non_failure='mask' leaves samples out, and here others depend on them.", solution
            )
        count, total = int(failed.sum()), len(failed)
        if count > self.share * total:
            raise EquilibriumError(
                f"{message}\non_failure='mask' allows {self.share:.0%} of a batch to fail. "
                f"Got {count} of {total} instead: use OnFailure('mask', share=…) to allow more.",
                solution,
            )
        return torch.nonzero(~failed).flatten()
