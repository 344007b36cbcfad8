"""A lock that the system takes back from a killed process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[bool]:
    """Yield whether this process got the lock of a file or directory, which must not be removed meanwhile."""
    if os.name != "posix":
        yield True
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield _got(descriptor, patience)
    finally:
        os.close(descriptor)


def _got(descriptor: int, patience: float) -> bool:
    import fcntl

    deadline = time.monotonic() + patience  # a process that only looks holds it for a moment
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        else:
            return True
