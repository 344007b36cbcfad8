"""The page of a run that is under way, written again as it goes, so that a reloaded page follows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..tasks import Run
from .page import LIVE, write

FIRST = 5.0  # seconds of training before the first page: a short run has its page soon enough
SHARE = 0.02  # share of the time that writing pages may take


class Following:
    """Called after each record of a run: writes its page from time to time, at a small share of the time.

    An error in writing a page must not end the training: a full disk is noticed soon enough elsewhere.
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
    """Whether a page still shows its run as under way, and would reload itself for ever."""
    return page.exists() and LIVE.encode() in page.read_bytes()[:8192]
