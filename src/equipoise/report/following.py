"""The page of a run that is under way, written again as it goes, so that a reloaded page follows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..tasks import Run
from .page import LIVE, write

FIRST = 5.0  # seconds of training before the first page: a short run has its page soon enough
SHARE = 0.02  # of the time that the pages may take


class Following:
    """Called after each record of a run: writes its page where that is due, at a small share of the time.

    What goes wrong with a page must not end a training: a disk that is full says so soon enough.
    """

    def __init__(self, run: Run, clock: Callable[[], float] = time.monotonic) -> None:
        self.run, self.clock = run, clock
        self.due = clock() + FIRST

    def __call__(self) -> None:
        began = self.clock()
        if began < self.due:
            return
        with suppress(OSError, ValueError):
            write(self.run)
        ended = self.clock()
        self.due = ended + (ended - began) / SHARE


def left_behind(page: Path) -> bool:
    """Whether a page is one of a run under way, which it will not leave by itself."""
    return page.exists() and LIVE.encode() in page.read_bytes()[:8192]
