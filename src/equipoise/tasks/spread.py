"""One job in several processes: the first looks at the rows, and each gets or reads a part to train on."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..memory import spans
from ..recipe import Recipe
from ..theory.certificate import fingerprint
from ..theory.shards import Shard, part_of, rank, ranks
from ..theory.streams import Stream
from ..train.checkpoint import Checkpoints
from ..train.distributed import begin_together, versions

PATIENCE = timedelta(minutes=30)  # how long a process waits for the others before it gives up
_ROWS = "equipoise/rows"  # in the store of the job: how many rows there are
_NAMING = timedelta(seconds=3)  # in which a rank that is left must answer when the others look who is

Pair = tuple[Any, Tensor]  # inputs, a Tensor, a Stream or a Shard, and their targets
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
        """On the first rank: hand every rank its part, and keep one. With one process: all, as it is.

        Of rows in a file the others are told which are theirs, and how they are prepared, and read them.
        """
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
            (_handed(A, known), _scatter(B)),
            None if self.weights is None else _scatter(self.weights),
            None if held is None else (_handed(held[0], {}), _scatter(held[1])),
        )


def take_part() -> tuple[Recipe, Sizes, Checkpoints | None, TrainingRows]:
    """On another rank: the recipe, the sizes of the network, its checkpoints, and this rank's rows."""
    recipe, sizes, where, known, weighted, measured = _told(None)
    train = _handed(None, known), _scatter(None)
    weights = _scatter(None) if weighted else None
    held = (_handed(None, {}), _scatter(None)) if measured else None
    return recipe, sizes, None if where is None else Checkpoints(where), TrainingRows(train, weights, held)


def _handed(A: Tensor | Stream | None, known: dict[str, str]) -> Shard:
    """This rank's part of inputs that the first has, or of rows in a file that all can read."""
    file = A.rows if isinstance(A, Stream) else None
    about = None if file is None else (replace(file.X, rows=file.X.rows[:0]), file.preparation)
    N, about = _told(None if A is None else (len(A), about))
    if about is None:
        return Shard(_scatter(None if isinstance(A, Stream) else A), N, known)
    X, preparation = about
    mine = _scatter(None if file is None else torch.from_numpy(file.X.rows))
    return Shard(preparation.apply(replace(X, rows=mine.numpy())), N, known)


def _told(what: Any) -> Any:
    box = [what]
    dist.broadcast_object_list(box, 0)
    return box[0]


def _scatter(T: Tensor | None) -> Tensor:
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
    return rows


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
    signal.signal(signal.SIGTERM, _asked_to_end)
    dist.init_process_group(backend, timeout=PATIENCE)
    try:
        with naming():
            begin_together(versions())
            yield rank() == 0
    except BaseException:
        with suppress(RuntimeError):  # the store may be gone
            _answer()
        raise
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist.destroy_process_group()


@contextmanager
def naming() -> Iterator[None]:
    """Inside, what a lost rank brings about here becomes a RankLost that names it.

    That is an error of the network, or that torchrun asks the rest of a broken job to end.
    """
    try:
        yield
    except (RuntimeError, KeyboardInterrupt) as error:
        asked = isinstance(error, KeyboardInterrupt)
        if ranks() == 1 or isinstance(error, RankLost) or not (asked or _of_network(error)):
            raise
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this process ends, once it has said why
        lost = _missing()
        if asked and not lost:
            raise
        named = f"{' and '.join(lost)} no longer answer{'s' * (len(lost) == 1)}"
        named = named if lost else "another rank failed, which says why itself"
        first = "" if asked else f" The first sign of it: {str(error).splitlines()[0]}"
        raise RankLost(f"{named}, and the job of {ranks()} ends.{first}") from error


def _asked_to_end(*_: Any) -> None:
    """On SIGTERM: end by an exception, so that the others hear from this rank and do not take it for lost."""
    raise KeyboardInterrupt


def _of_network(error: BaseException) -> bool:
    said = str(error).lower()
    named = any(word in said for word in ("gloo", "connection", "nccl", "timed out", "socket"))
    return named or isinstance(error, dist.DistError)


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _left(r: int) -> str:
    """Where a rank says that it still was there when the job ended."""
    return f"equipoise/left/{r}"


def _answer() -> None:
    _store().set(_left(rank()), "here")


def _missing() -> list[str]:
    """The ranks that no longer answer, and their rows, by the store that torchrun keeps."""
    store, lost = _store(), []
    with suppress(RuntimeError):  # the store may be gone as well
        _answer()
        for r in range(ranks()):
            try:
                store.wait([_left(r)], _NAMING)
            except RuntimeError:
                at = part_of(int(store.get(_ROWS)), r) if store.check([_ROWS]) else None
                lost.append(f"rank {r}" + (f", which had rows {at.start} to {at.stop - 1}," if at else ""))
    return lost
