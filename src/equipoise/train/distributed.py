"""Let all ranks begin and end together: what fails on one is known to all before any of them waits."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..solve import EquilibriumError
from ..theory.certificate import fingerprint
from ..theory.shards import Shard, part_of, ranks, total
from ..theory.streams import Stream
from .environment import environment


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
    """Raise on every rank if any has an error: its own, or else one that says that another rank failed."""
    if not any_rank_failed(error is not None, group):
        return
    if error is not None:
        raise error
    raise RuntimeError("another rank has samples without an equilibrium; its own log names the rows.")


def begin_together(
    facts: Mapping[str, object], error: Exception | None = None, group: dist.ProcessGroup | None = None
) -> None:
    """Raise on every rank unless all ranks have equal facts, and none an error; called by all at the start.

    Without this check a rank with other data, options or versions would train with the rest in silence, on
    gradients that belong to no data set. The message names such ranks and what differs there.
    """
    if not (dist.is_available() and dist.is_initialized()):
        if error is not None:
            raise error
        return
    # where an object lies in memory is no part of what it is
    mine = {name: re.sub(r" at 0x[0-9a-f]+", "", str(value)) for name, value in facts.items()}
    told = "" if error is None else f"{type(error).__name__}: {error}"
    everyone: list[tuple[dict[str, str], str]] = [({}, "")] * dist.get_world_size(group)
    dist.all_gather_object(everyone, (mine, told), group=group)
    if error is not None:
        raise error
    failed = [f"rank {rank} ({why})" for rank, (_, why) in enumerate(everyone) if why]
    if failed:
        raise RuntimeError(f"another rank cannot begin: {', '.join(failed)}")
    first = everyone[0][0]
    others = [
        f"rank {rank} has other {', '.join(names)} than rank 0"
        for rank, (theirs, _) in enumerate(everyone)
        if (names := [n for n in {**first, **theirs} if first.get(n) != theirs.get(n)])
    ]
    if others:
        raise ValueError(
            f"all ranks must have the same data, network, options and versions: {'; '.join(others)}. "
            "Give every process all of the data, of which it takes its part, or a Shard of its own rows."
        )


def versions() -> dict[str, str]:
    """What must be equal on all ranks, so that they compute the same to the last bit."""
    from .. import __version__

    now = environment()
    found = {"version of equipoise": __version__, "version of torch": torch.__version__}
    return found | {name: now[name] for name in ("processor", "threads")}


def cut(X: Tensor | Stream, y: Tensor) -> tuple[Shard, Tensor, dict[str, str]]:
    """This rank's part of data that every rank has, and the digests of the whole."""
    known = {name: digest for name, digest in fingerprint(nn.Identity(), X, y).items() if name != "weights"}
    at = part_of(len(X))
    return Shard(X[at], len(X), known), y[at], known


def sum_over_ranks(parameters: list[nn.Parameter], *values: float) -> list[float]:
    """Gradients summed over the ranks, in place; the values likewise."""
    if ranks() == 1:
        return list(values)
    own = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    *sums, found = total(*own, torch.tensor(values, dtype=torch.float64))
    for p, gradient in zip(parameters, sums, strict=True):
        p.grad = gradient
    return [float(v) for v in found]
