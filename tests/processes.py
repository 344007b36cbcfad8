"""Processes that get a signal at a moment no load can shift, and files that grow no further: a full disk."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import equipoise as eq

# Before the program itself: a signal to this process at the n-th use of a file in a directory.
_SIGNAL = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which tests that were started by nohup hand down as ignored
_directory, _name, _left, _number = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
del sys.argv[1:5]

def _count(event, args):
    global _left
    if event in ("open", "os.rename", "os.remove", "os.mkdir") and isinstance(args[0], str):
        if os.path.abspath(args[0]).startswith(_directory) and args[0].endswith(_name):
            _left -= 1
            if _left == 0:
                os.kill(os.getpid(), _number)

sys.addaudithook(_count)
"""


def start(*args: object, **options: Any) -> subprocess.Popen[str]:
    """Python with this library and as many threads as here, on whose number the bits of a run depend."""
    paths = os.pathsep.join([str(Path(eq.__file__).parents[1]), str(Path(__file__).parent)])
    return subprocess.Popen(
        [sys.executable, *map(str, args)],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def start_signalled(
    program: str, *args: object, number: int, at: int, within: Path, name: str = "", **options: Any
) -> subprocess.Popen[str]:
    """A program that gets a signal at its `at`-th use of files `within` a directory whose names end so."""
    return start("-c", _SIGNAL + program, within, name, at, int(number), *args, **options)


def finish(process: subprocess.Popen[str]) -> str:
    """What it said to stderr until it ended."""
    return process.communicate()[1]


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """No file of this process grows beyond `size` bytes: to write more fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
