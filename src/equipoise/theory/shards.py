"""Rows that several processes hold, a part each, and the sums over all of them.

Every one of R ranks holds consecutive rows. Where parts may be cut is fixed by N alone, between `BLOCKS`
blocks of rows, so that batches and digests are the same for every number of ranks. Sums that only guide a
search are added as they come; sums that a proof rests on are added with outward rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..linalg import Interval

BLOCKS = 256  # into which rows are divided, whatever the number of ranks


def ranks() -> int:
    """How many processes work together: 1 outside of torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this one is."""
    return dist.get_rank() if ranks() > 1 else 0


def block_of(number: int, N: int) -> slice:
    """The rows of a block."""
    return slice(number * N // BLOCKS, (number + 1) * N // BLOCKS)


def part_of(N: int, which: int | None = None) -> slice:
    """The rows that a rank holds of N; by default this one."""
    R, r = ranks(), rank() if which is None else which
    if not R <= min(N, BLOCKS):
        raise ValueError(f"ranks must be at most {BLOCKS} and as many as rows. Got {R} for {N} rows.")
    first, last = r * BLOCKS // R, (r + 1) * BLOCKS // R
    return slice(first * N // BLOCKS, last * N // BLOCKS)


@dataclass(frozen=True, eq=False)
class Shard:
    """The rows of one rank, `part_of(whole)`, of a data set that need not be in any one place.

        X = Shard(my_rows, whole=10**6)      # on every rank its own
        certify(model, X, my_targets, theorem="anchored")
        Trainer(model, certificate=…).fit(X, my_targets)

    Args:
        rows: (n, …).
        whole: N, over all ranks.
        known: digests of the whole data by name, where one process had them.
    """

    rows: Tensor
    whole: int
    known: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        at = part_of(self.whole)
        if len(self.rows) != at.stop - at.start:
            raise ValueError(
                f"rank {rank()} of {ranks()} holds rows {at.start} to {at.stop - 1} of {self.whole}: "
                f"{at.stop - at.start} rows. Got {len(self.rows)} instead."
            )

    @classmethod
    def cut(cls, X: Tensor, known: Mapping[str, str] | None = None) -> Shard:
        """The part of this rank of rows that every rank has."""
        return cls(X[part_of(len(X))], len(X), known or {})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> Tensor:
        return self.rows[at]

    @cached_property
    def first(self) -> int:
        """The number of its first row in the whole."""
        return int(part_of(self.whole).start)


def whole(X: Any) -> int:
    """The number of rows of X over all ranks."""
    return X.whole if isinstance(X, Shard) else len(X)


# -- what is reduced -----------------------------------------------------------------------------------------


def _device() -> torch.device:
    return torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")


def total(*tensors: Tensor) -> list[Tensor]:
    """Sums over the ranks, added in float64; the same bits on every rank."""
    if ranks() == 1:
        return list(tensors)
    flat = torch.cat([t.detach().double().reshape(-1).to(_device()) for t in tensors])
    dist.all_reduce(flat)
    parts = flat.split([t.numel() for t in tensors])
    return [part.reshape(t.shape).to(t) for part, t in zip(parts, tensors, strict=True)]


def largest(*values: float) -> list[float]:
    """The largest of each over the ranks."""
    if ranks() == 1:
        return list(values)
    found = torch.tensor(values, dtype=torch.float64, device=_device())
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return [float(v) for v in found]


def gathered(what: Any) -> list[Any]:
    """What every rank has, in their order."""
    everyone: list[Any] = [what] * ranks()
    if ranks() == 1:
        return everyone
    dist.all_gather_object(everyone, what)
    return everyone


def enclosed_total(*parts: Interval) -> list[Interval]:
    """Sums of intervals over the ranks, with outward rounding."""
    mine = torch.tensor([[p.lo, p.hi] for p in parts], dtype=torch.float64)
    everyone = [mine]
    if ranks() > 1:
        mine = mine.to(_device())
        everyone = [torch.empty_like(mine) for _ in range(ranks())]
        dist.all_gather(everyone, mine)
    sums = [Interval(0.0)] * len(parts)
    for one in everyone:
        sums = [s + Interval(lo, hi) for s, (lo, hi) in zip(sums, one.tolist(), strict=True)]
    return sums


def require_equal(what: str, mine: str) -> None:
    """A RuntimeError on every rank unless all have the same."""
    everyone = gathered(mine)
    if other := [r for r, theirs in enumerate(everyone) if theirs != everyone[0]]:
        raise RuntimeError(f"{what} must be the same on all ranks. Rank {other[0]} has others than rank 0.")


def digest_of_rows(rows: Any, N: int) -> str:
    """A SHA-256 of rows over all ranks (or of all rows, where one process has them): block by block."""
    at = part_of(N) if len(rows) < N else slice(0, N)
    mine: list[str] = []
    for number in range(BLOCKS):
        block = block_of(number, N)
        if at.start <= block.start < block.stop <= at.stop:
            part = rows[block.start - at.start : block.stop - at.start].detach().cpu().contiguous()
            mine.append(hashlib.sha256(part.reshape(-1).view(torch.uint8).numpy()).hexdigest())
    parts: Sequence[list[str]] = gathered(mine) if len(rows) < N else [mine]
    said = [f"{rows.dtype}|{(N, *rows.shape[1:])}", *(d for part in parts for d in part)]
    return hashlib.sha256("|".join(said).encode()).hexdigest()
