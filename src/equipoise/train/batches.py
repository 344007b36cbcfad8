"""The batches of an epoch: a function of N, the seed and the epoch alone, whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..theory.shards import BLOCKS, block_of

_STRIDE = 157  # odd, and about BLOCKS times the golden ratio, so that the next blocks lie evenly among all


class Batches:
    """Rows of a rank, batch by batch.

    With fewer than BLOCKS² rows an epoch is one permutation of all. With more, every block of rows has a
    permutation of its own, and an epoch takes a row of each block in turn: a rank needs only its own blocks,
    and holds the same share of every batch, to a row or two.
    """

    def __init__(self, N: int, size: int, seed: int, part: slice) -> None:
        self.N, self.size, self.seed, self.part = N, size, seed, part

    def of(self, epoch: int, done: int) -> Iterator[tuple[Tensor, int]]:
        """For each batch from `done` on: the rows of this rank, counted from its first, and its full size."""
        seed = (self.seed * 1_000_003 + epoch) % 2**63
        if self.N < BLOCKS**2:
            order = torch.randperm(self.N, generator=torch.Generator().manual_seed(seed))
            for rows in order.split(self.size)[done:]:
                mine = rows[(rows >= self.part.start) & (rows < self.part.stop)]
                yield mine - self.part.start, len(rows)
            return
        sizes = torch.tensor([block_of(b, self.N).stop - block_of(b, self.N).start for b in range(BLOCKS)])
        starts = torch.tensor([block_of(b, self.N).start for b in range(BLOCKS)])
        own = (starts >= self.part.start) & (starts < self.part.stop)
        orders = torch.zeros(BLOCKS, dtype=torch.int64)  # where the permutation of each block begins
        found: list[Tensor] = []
        for b in torch.nonzero(own)[:, 0].tolist():
            chance = torch.Generator().manual_seed((seed * BLOCKS + b) % 2**63)
            orders[b] = sum(map(len, found))
            found.append(torch.randperm(int(sizes[b]), generator=chance))
        order, rounds = torch.cat(found), self.N // BLOCKS
        chance = torch.Generator().manual_seed(seed)
        turns = torch.randint(BLOCKS, (rounds,), generator=chance)
        last = torch.nonzero(sizes > rounds)[:, 0]  # blocks with a row more than the others
        last = last[torch.randperm(len(last), generator=chance)]
        for first in range(done * self.size, self.N, self.size):
            places = torch.arange(first, min(first + self.size, self.N))
            turn, slot = places // BLOCKS, places % BLOCKS
            full = turn < rounds
            blocks = torch.empty_like(places)
            blocks[full] = (_STRIDE * slot[full] + turns[turn[full]]) % BLOCKS
            blocks[~full] = last[slot[~full]]
            mine = own[blocks]
            at, turn = blocks[mine], turn[mine]
            yield starts[at] + order[orders[at] + turn] - self.part.start, len(places)
