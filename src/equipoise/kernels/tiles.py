"""A kernel by tiles: its memory is asked for once, and each pair of rows is computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ..memory import shortage

ENTRIES = 1 << 20  # of a tile: its few temporaries are 8 MB each

Progress = Callable[[int, int], None]
Tile = Callable[[slice, slice], dict[str, Tensor]]  # rows, columns -> blocks (n, n2), or (n, k, n2, k)


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
    """Slices of `size` from start to stop, the last one shorter; `progress` hears of each that is done."""
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))
        if progress is not None:
            progress(min(first + size, stop), stop)


def sides(block: int | None, outputs: int) -> tuple[int, int]:
    """Rows and columns of a tile: `block` rows if given, and about ENTRIES entries.

    A tile is wider than high: of a symmetric kernel little is computed below the diagonal.
    """
    rows = block or max(1, int(ENTRIES**0.5) // (4 * outputs))
    return rows, max(rows, ENTRIES // (rows * outputs**2))


def require_memory(like: Tensor, N: int, N2: int, outputs: int, names: Sequence[str]) -> None:
    """A MemoryError in words unless the blocks of these names fit into the memory of the device of `like`."""
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
