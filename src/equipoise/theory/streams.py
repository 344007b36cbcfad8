"""Rows that are read when they are needed, from an array in a file or a torch Dataset, never all at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .shards import Shard

_AT_ONCE = 4096  # rows that are read at a time when all are needed


class Stream:
    """N rows of one shape and dtype, indexed by a slice or by a vector of row numbers."""

    def __init__(self, rows: Any, part: int | None = None) -> None:
        self.rows, self.part = rows, part  # an array, or a Dataset and which entry of its samples
        first = self[slice(0, 1)]
        self.dtype, self.shape = first.dtype, torch.Size((len(rows), *first.shape[1:]))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: slice | Tensor) -> Tensor:
        if self.part is None:
            index = at if isinstance(at, slice) else at.cpu().numpy()
            return torch.from_numpy(np.array(self.rows[index]))  # a copy: what is mapped stays as it is
        numbers = range(*at.indices(len(self.rows))) if isinstance(at, slice) else at.tolist()
        return torch.stack([torch.as_tensor(self.rows[i][self.part]) for i in numbers])

    @property
    def ndim(self) -> int:
        """The number of dimensions, that of the rows included."""
        return len(self.shape)

    def is_floating_point(self) -> bool:
        """As for a tensor."""
        return self.dtype.is_floating_point


Input = Tensor | Stream | Shard


def as_input(X: Any, name: str = "X") -> Input:
    """A tensor, a Stream or a Shard as it is; an array of numpy, perhaps mapped from a file, as a Stream."""
    if isinstance(X, np.ndarray):
        return Stream(X)
    if not isinstance(X, Tensor | Stream | Shard):
        raise TypeError(f"{name} must be a tensor, one row for each sample. Got {type(X).__name__} instead.")
    return X


def as_data(X: Any, y: Any) -> tuple[Input, Any]:
    """X and y of a run. X may be a Dataset of pairs (x, y), without y: then only its targets are held."""
    if y is None and hasattr(X, "__getitem__") and not isinstance(X, Tensor | Stream | Shard | np.ndarray):
        return Stream(X, 0), torch.cat(list(parts(Stream(X, 1))))
    y = torch.as_tensor(y) if isinstance(y, np.ndarray) else y
    if y is not None and not isinstance(y, Tensor):  # torch would read the numbers of a list as float32
        raise TypeError(f"y must be a tensor, one row for each sample. Got {type(y).__name__} instead.")
    return as_input(X), y


def parts(X: Input, size: int = _AT_ONCE) -> Iterator[Tensor]:
    """All rows, one part after the other; where there are none, one part without rows."""
    for i in range(0, max(len(X), 1), size):
        yield X[i : i + size]
