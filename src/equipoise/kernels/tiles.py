"""A kernel computed by tiles: its memory is allocated once, and each pair of rows is computed once.

A kernel in memory is computed by this process. A kernel in a file can be computed by several workers: the
file holds only the sum of the blocks, and a run that was killed is resumed with the tiles that are missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..checks import integer
from ..engines import Workers, each
from ..filling import Filling
from ..memory import shortage

ENTRIES = 1 << 20  # of a tile: its few temporaries are 8 MB each
SIDE = 2048  # rows times outputs of the square tiles of a file: 34 MB in float64

Progress = Callable[[int, int], None]
Tile = Callable[[slice, slice], dict[str, Tensor]]  # rows, columns -> blocks (n, n2), or (n, k, n2, k)


class KernelRows(Protocol):
    """The factors of a kernel for the rows of a data set; any slice of the rows can be taken."""

    @property
    def outputs(self) -> int:
        """k."""

    def __len__(self) -> int: ...

    def take(self, rows: slice) -> Any:
        """Some of the rows."""

    def blocks(self, two: Any) -> dict[str, Tensor]:
        """⟨∂ŷ_ip/∂θ, ∂ŷ_jq/∂θ⟩ by parameter: (N, N2), or (N, k, N2, k) for k > 1."""

    def pull(self, R: Tensor) -> dict[str, Tensor]:
        """Σ_ip R_ip ∂ŷ_ip/∂θ by parameter, for R (N, k)."""


@dataclass(frozen=True)
class PairTiles:
    """Tiles of the kernel between the rows `one` and the rows `two`, by default the same."""

    one: KernelRows
    two: KernelRows | None = None

    def __call__(self, at: slice, over: slice) -> dict[str, Tensor]:
        with torch.no_grad():
            rows = self.one.take(at)
            return rows.blocks(rows if self.two is None and at == over else (self.two or self.one).take(over))


def by_tiles(
    tile: Tile, N: int, N2: int | None, rows: int, columns: int, progress: Progress | None
) -> dict[str, Tensor]:
    """The blocks between N and N2 rows, `rows` by `columns` ≥ `rows` at a time.

    Without N2 the rows are paired with themselves, ⟨i, j⟩ = ⟨j, i⟩: tiles below the diagonal are copied from
    those above it, so that the blocks are symmetric to the last bit.
    """
    symmetric, N2 = N2 is None, N if N2 is None else N2
    if N == 0 or N2 == 0:
        return tile(slice(0, N), slice(0, N2))
    found: dict[str, Tensor] = {}
    for at in slices(0, N, rows, progress):
        for over in slices(at.start if symmetric else 0, N2, columns):
            part = tile(at, over)
            if not found:
                first = next(iter(part.values()))
                require_memory(first, N, N2, first.shape[1] if first.ndim == 4 else 1, list(part))
                shape = (N, N2) if first.ndim == 2 else (N, first.shape[1], N2, first.shape[3])
                found = {name: block.new_empty(shape) for name, block in part.items()}
            for name, block in part.items():
                _place(found[name], block, at, over, symmetric)
    return found


@dataclass(frozen=True)
class TileFile:
    """The .npy file that a kernel is written to by tiles, and who computes them.

    Args:
        path: of the file. If it already holds the same kernel, it is completed, or read if it is complete.
        workers: how many processes of this machine, or tasks of Ray, work at a time.
        engine: "local" or "ray".
        side: rows and columns of a tile.
    """

    path: str | Path
    workers: int = 1
    engine: str = "local"
    side: int | None = None

    def __post_init__(self) -> None:
        integer("side", 1 if self.side is None else self.side, other=", or None")
        Workers(self.workers, self.engine)

    @classmethod
    def of(cls, out: str | Path | TileFile) -> TileFile:
        """A TileFile as it is; a path becomes one that this process fills."""
        return out if isinstance(out, TileFile) else cls(out)


def to_file(
    tile: Tile,
    shape: tuple[int, int | None, int],
    dtype: torch.dtype,
    out: str | Path | TileFile,
    identity: Mapping[str, Any],
    progress: Progress | None = None,
) -> Tensor:
    """The total of the blocks between N and N2 rows of k outputs, (N k, N2 k), mapped from the file.

    `shape` is (N, N2, k), with N2 None for rows that are paired with themselves: then tiles below the
    diagonal are those above it, transposed. `progress` is called with the numbers of tiles done and in all.
    """
    file, (N, N2, k) = TileFile.of(out), shape
    side = file.side or max(1, SIDE // k)
    symmetric, columns = N2 is None, N if N2 is None else N2
    if not (N and columns):
        raise ValueError(f"a kernel in a file needs rows. Got {N} and {columns}.")
    pairs = [
        (at, over)
        for at in slices(0, N, side)
        for over in slices(at.start if symmetric else 0, columns, side)
    ]
    like = torch.empty(0, dtype=dtype).numpy().dtype
    filling = Filling(file.path, (N * k, columns * k), like, len(pairs), {"side": side, **identity})
    left = filling.left()
    workers = Workers(file.workers, file.engine)
    for index, matrix in each(_total, tile, (pairs[number] for number in left), workers):
        at, over = (slice(k * s.start, k * s.stop) for s in pairs[left[index]])
        places = [((at, over), matrix)]
        if symmetric and at == over:
            places = [((at, over), np.triu(matrix) + np.triu(matrix, 1).T)]
        elif symmetric:
            places.append(((over, at), matrix.T))
        filling.put(left[index], *places)
        if progress is not None:
            progress(len(filling.done), len(pairs))
    return torch.from_numpy(filling.finish())


def _total(tile: Tile, pair: tuple[slice, slice]) -> np.ndarray:
    """The sum of the blocks of one tile, as a matrix."""
    with torch.no_grad():
        first, *others = tile(*pair).values()
        for block in others:
            first = first + block
    return first.reshape(first.shape[0] * (first.shape[1] if first.ndim == 4 else 1), -1).cpu().numpy()


def _place(whole: Tensor, block: Tensor, at: slice, over: slice, symmetric: bool) -> None:
    k = whole.shape[1] if whole.ndim == 4 else 1
    matrix = whole.view(len(whole) * k, -1)
    rows, columns = (slice(k * s.start, k * s.stop) for s in (at, over))
    matrix[rows, columns] = block.reshape(rows.stop - rows.start, -1)
    if symmetric:
        if over.start == at.start:
            square = matrix[rows, rows]
            square.copy_(square.triu() + square.triu(1).mT)
        beyond = slice(max(columns.start, rows.stop), columns.stop)
        matrix[beyond, rows] = matrix[rows, beyond].mT


def slices(start: int, stop: int, size: int, progress: Progress | None = None) -> Iterator[slice]:
    """Slices of `size` from start to stop, the last one shorter; `progress` is called after each of them."""
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))
        if progress is not None:
            progress(min(first + size, stop), stop)


def sides(block: int | None, outputs: int) -> tuple[int, int]:
    """Rows and columns of a tile: `block` rows if given, and about ENTRIES entries.

    A tile is wider than high, so that little of a symmetric kernel is computed below the diagonal.
    """
    rows = block or max(1, int(ENTRIES**0.5) // (4 * outputs))
    return rows, max(rows, ENTRIES // (rows * outputs**2))


def require_memory(like: Tensor, N: int, N2: int, outputs: int, names: Sequence[str]) -> None:
    """Raise a MemoryError unless the blocks of these names fit into the memory of the device of `like`."""
    need = len(names) * N * N2 * outputs**2 * like.element_size()
    on_gpu = like.device.type == "cuda"
    if lacking := shortage(need, torch.cuda.mem_get_info(like.device)[0] if on_gpu else None):
        kernels = f"{len(names)} kernels ({', '.join(names)})" if len(names) > 1 else "a kernel"
        each = f", {outputs} outputs each" if outputs > 1 else ""
        dtype = str(like.dtype).removeprefix("torch.")
        raise MemoryError(
            f"{kernels} of {N} × {N2} pairs of rows{each}, {dtype}, would need {lacking}. "
            "Take fewer rows, or a part of the pairs at a time (X2), or float32."
        )


def digest_of(T: Tensor) -> str:
    """The SHA-256 of a tensor: of its dtype, its shape and its entries."""
    digest = hashlib.sha256(f"{T.dtype}|{tuple(T.shape)}|".encode())
    digest.update(T.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
