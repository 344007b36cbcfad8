"""How much memory is available, asked before anything large is allocated, so that a message can name both.

Large arrays are kept in temporary files instead (`room`) and worked on piece by piece (`spans`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

HELD = 1 << 28  # bytes: larger arrays are kept on the disk
PIECE = 1 << 22  # numbers worked on at a time
_LARGEST_KEPT = (1 << 25) - (1 << 13)  # bytes, a little less than the 32 MB up to which glibc learns
_GROUPS = (  # (limit, in use) of a container: control groups of version 2, then of version 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def keep_freed_memory() -> None:
    """Let up to 64 MB of freed memory stay with the process instead of going back to the system at once.

    glibc returns what tensors of some 100 kB or more have left and gets it back zeroed, page by page, at the
    next operation, which costs more than the operation does. It stops this for all sizes up to that of the
    largest block that was ever freed, at most 32 MB, so one such block is asked for here and not touched.
    Where another allocator is at work nothing happens.
    """
    bytes(_LARGEST_KEPT)


def available() -> float:
    """Bytes that this process can still allocate, given the machine's memory and the limits set on it."""
    return min(_machine(), *(_group(limit, used) for limit, used in _GROUPS), _address_space())


def shortage(need: float, have: float | None = None) -> str | None:
    """None if `need` bytes fit into `have` (by default those available), else words that compare the two."""
    have = available() if have is None else have
    return None if need <= have else f"{amount(need)} of memory; {amount(have)} can be had"


def disk() -> float:
    """Bytes that are free where temporary files go."""
    return float(shutil.disk_usage(tempfile.gettempdir()).free)


def room(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array to be filled: in memory or, if large, in a file that is gone with the last reference to it."""
    import numpy as np

    size = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
    if size <= HELD or (size > disk() and not shortage(size)):
        return np.empty(shape, dtype)
    if size > disk():
        raise MemoryError(f"{amount(size)} are needed in memory or on the disk of {tempfile.gettempdir()}")
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        if hasattr(os, "posix_fallocate"):  # so that a full disk is an error here, and no crash later
            os.posix_fallocate(file.fileno(), 0, size)
        return np.memmap(file, dtype, "r+", shape=shape).view(np.ndarray)


def spans(rows: int, width: int) -> Iterator[slice]:
    """The rows of a matrix of this width, some millions of numbers at a time."""
    step = max(1, PIECE // max(1, width))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def taken(X: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """X[rows], in a `room`."""
    found = room((len(rows), *X.shape[1:]), X.dtype)
    for span in spans(len(rows), X[:1].size):
        found[span] = X[rows[span]]
    return found


def amount(size: float) -> str:
    """A number of bytes as people read it: 5.3 GB."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} bytes"


def _machine() -> float:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return 1024 * float(line.split()[1])
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # a system that does not say
        return float("inf")


def _group(limit: str, used: str) -> float:
    most, now = (_number(path) for path in (limit, used))
    return max(most - now, 0.0) if now < float("inf") else float("inf")


def _address_space() -> float:
    try:
        import resource
    except ImportError:  # not a POSIX system
        return float("inf")
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    held = _lines("/proc/self/statm")
    if most == resource.RLIM_INFINITY or not held:
        return float("inf")
    return max(most - float(held[0].split()[0]) * os.sysconf("SC_PAGE_SIZE"), 0.0)


def _number(path: str) -> float:
    """The number in a file; infinity for a file that is not there, and for "max"."""
    try:
        return float(_lines(path)[0])
    except (IndexError, ValueError):
        return float("inf")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return []
