"""One rank's lost equilibrium is every rank's: a flag shared before the next collective, so none waits."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..solve import EquilibriumError


def any_rank_failed(failed: bool, group: dist.ProcessGroup | None = None) -> bool:
    """Whether any rank of the group failed; called by all ranks at the same point of the loop.

    A layer performs no collective of its own. If one rank raises where the others go on to `backward`, the
    others wait for its gradients for ever. So a training loop catches the EquilibriumError, shares the flag,
    and stops (or skips the step) on every rank alike:

        try:
            loss = criterion(model(x), y)
            error = None
        except eq.EquilibriumError as caught:
            error = caught
        if any_rank_failed(error is not None):
            raise error or eq.EquilibriumError(…)
        loss.backward()
    """
    if not (dist.is_available() and dist.is_initialized()):
        return failed
    device = torch.device("cuda") if dist.get_backend(group) == "nccl" else torch.device("cpu")
    flag = torch.tensor(float(failed), device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
    return bool(flag)


def raise_together(error: EquilibriumError | None, group: dist.ProcessGroup | None = None) -> None:
    """Raise on every rank if any has an error: its own where it has one, else a word about the others'."""
    if not any_rank_failed(error is not None, group):
        return
    if error is not None:
        raise error
    raise RuntimeError("another rank has samples without an equilibrium; its own log names the rows.")
