"""A process belongs to the test that started it: one that is left would be reported in another test.

A process that nobody waited for, and a pipe that nobody closed, raise a ResourceWarning when they are
collected, in the middle of another test. So every test is asked at its end what it left.
"""

from __future__ import annotations

import functools
import subprocess
import weakref

_STARTED: weakref.WeakSet[subprocess.Popen] = weakref.WeakSet()


def watch_processes() -> None:
    """Know of every process that is started from now on."""
    begin = subprocess.Popen.__init__

    @functools.wraps(begin)
    def known(self, *args, **options):
        begin(self, *args, **options)
        _STARTED.add(self)

    subprocess.Popen.__init__ = known  # type: ignore[method-assign]


def forget_processes() -> None:
    """Those so far belong to fixtures of many tests, which end them."""
    _STARTED.clear()


def end_processes() -> list[str]:
    """End every process since then that was not waited for, close its pipes, and name it."""
    left = []
    for process in list(_STARTED):
        if process.returncode is None:
            process.kill()
            process.wait()
            left.append(f"{process.args}")
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    _STARTED.clear()
    return left
