"""One job in several processes: the first reads and prepares the rows, and each trains on a part of them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..memory import spans
from ..recipe import Recipe
from ..theory.certificate import fingerprint
from ..theory.shards import Shard, part_of, rank, ranks
from ..train.checkpoint import Checkpoints
from ..train.distributed import begin_together, versions

PATIENCE = timedelta(minutes=30)  # how long a process waits for the others before it gives up
_ROWS = "equipoise/rows"  # in the store of the job: how many rows there are
_NAMING = timedelta(seconds=2)  # in which the processes that are left find out which one is missing

Pair = tuple[Any, Tensor]  # inputs, a Tensor or a Shard, and their targets
Sizes = tuple[int | tuple[int, int, int], int]  # of the inputs and of the outputs


class RankLost(RuntimeError):
    """A process of the job is gone, and the others with it."""


@dataclass(frozen=True)
class TrainingRows:
    """What a Trainer gets: inputs and targets, weights and rows to measure on."""

    train: Pair
    weights: Tensor | None = None
    validation: Pair | None = None

    def spread(self, recipe: Recipe, sizes: Sizes, checkpoints: Checkpoints | None) -> TrainingRows:
        """On the first rank: hand every rank its part, and keep one. With one process: all, as it is."""
        if ranks() == 1:
            return self
        A, B = self.train
        known = {name: d for name, d in fingerprint(nn.Identity(), A, B).items() if name != "weights"}
        held = self.validation
        if held is not None and len(held[0]) < ranks():
            held = None
        _store().set(_ROWS, str(len(A)))
        where = None if checkpoints is None else str(checkpoints.directory.resolve())
        _told((recipe, sizes, where, known, self.weights is not None, held is not None))
        return TrainingRows(
            (Shard(_scatter(A), len(A), known), _scatter(B)),
            None if self.weights is None else _scatter(self.weights),
            None if held is None else (Shard(_scatter(held[0]), len(held[0])), _scatter(held[1])),
        )


def take_part() -> tuple[Recipe, Sizes, Checkpoints | None, TrainingRows]:
    """On another rank: the recipe, the sizes of the network, its checkpoints, and this rank's rows."""
    recipe, sizes, where, known, weighted, measured = _told(None)
    train = _received(known), _scatter(None)
    weights = _scatter(None) if weighted else None
    held = (_received({}), _scatter(None)) if measured else None
    return recipe, sizes, None if where is None else Checkpoints(where), TrainingRows(train, weights, held)


def _received(known: dict[str, str]) -> Shard:
    rows = _scatter(None, sized=True)
    return Shard(rows[0], rows[1], known)


def _told(what: Any) -> Any:
    box = [what]
    dist.broadcast_object_list(box, 0)
    return box[0]


def _scatter(T: Tensor | None, sized: bool = False) -> Any:
    """Each rank's rows of a tensor that the first has, sent piece by piece."""
    shape, dtype = _told(None if T is None else (tuple(T.shape), T.dtype))
    device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
    width = max(1, int(torch.Size(shape[1:]).numel()))
    if T is not None:
        for r in range(1, ranks()):
            part = part_of(shape[0], r)
            for span in spans(part.stop - part.start, width):
                piece = T[part.start + span.start : part.start + span.stop]
                dist.send(piece.contiguous().to(device), r)
        return T[part_of(shape[0])].clone()
    part = part_of(shape[0])
    rows = torch.empty((part.stop - part.start, *shape[1:]), dtype=dtype)
    for span in spans(len(rows), width):
        piece = torch.empty_like(rows[span], device=device)
        dist.recv(piece, 0)
        rows[span] = piece.cpu()
    return (rows, shape[0]) if sized else rows


# -- the processes -------------------------------------------------------------------------------------------


@contextmanager
def job() -> Iterator[bool]:
    """Inside, the processes that `torchrun` started know each other; yields whether this one is the first.

    If one is lost, the others end with a RankLost that names it: at once, or after PATIENCE if the network
    reports nothing.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not dist.is_torchelastic_launched():
        yield True
        return
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend, timeout=PATIENCE)
    try:
        begin_together(versions())
        yield rank() == 0
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not _of_network(error):
            raise
        raise RankLost(f"{_missing()} The first sign of it: {str(error).splitlines()[0]}") from error
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist.destroy_process_group()


def _of_network(error: RuntimeError) -> bool:
    said = str(error).lower()
    return any(word in said for word in ("gloo", "connection", "nccl", "timed out", "socket"))


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _missing() -> str:
    """Which ranks no longer answer, by the store that torchrun keeps."""
    store = _store()
    names = [f"equipoise/left/{r}" for r in range(ranks())]
    lost = []
    try:
        store.set(names[rank()], "here")
        for r, name in enumerate(names):
            try:
                store.wait([name], _NAMING)
            except RuntimeError:
                at = part_of(int(store.get(_ROWS)), r) if store.check([_ROWS]) else None
                lost.append(f"rank {r}" + (f", which had rows {at.start} to {at.stop - 1}," if at else ""))
    except RuntimeError:  # the store is gone as well
        pass
    return f"{' and '.join(lost) or 'a rank'} was lost of {ranks()}, and the job with it."
