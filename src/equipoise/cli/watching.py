"""A progress bar with loss, rate, solver steps and remaining time; Ctrl-C waits until a step is complete."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from ..memory import amount
from ..tasks import Forecast
from .output import duration, number

_HANGUP = getattr(signal, "SIGHUP", None)  # which Windows does not have
_QUIET = 5.0  # seconds after which a line says how far the training is
_LINES = 10  # lines of progress, where there is no terminal to draw a bar on


class Watch:
    """Show a run while it goes on: `record` takes what was measured, `progress` passes on an interrupt."""

    def __init__(self, total: int, unit: str, shown: bool, batches: int = 1) -> None:
        self.total, self.unit, self.shown, self.batches = total, unit, shown, batches
        self.begun = self.interrupted = False
        self._steps = 0
        self.console = Console(stderr=True, highlight=False)
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[numbers]}", markup=False),
            TextColumn("{task.fields[left]}", markup=False),
            console=self.console,
            transient=True,
            disable=not (shown and self.console.is_terminal),
        )
        self.task = self.bar.add_task(
            "preparing", total=None, numbers="choosing settings and checking the start", left=""
        )
        self._began = self._told = time.monotonic()

    def record(self, record: Mapping[str, Any]) -> None:
        """Show the numbers of one step or epoch."""
        self.begun = True
        self._told = time.monotonic()
        at = int(record[self.unit])
        where, numbers = f"{self.unit} {at}/{self.total}", _numbers(record)
        self.bar.update(
            self.task, description=where, total=self.total, completed=at, numbers=numbers, refresh=False
        )
        if self.shown and not self.console.is_terminal and self._due(at):
            self._line(f"{where}  {numbers}  {duration(time.monotonic() - self._began)}")

    def begin(self, expected: Forecast) -> None:
        """Say what the training will take, as it was estimated from a few steps."""
        self.console.quiet = not self.shown
        self._line(f"takes about {duration(expected.seconds)} and {amount(expected.bytes)} of memory")
        self._began = self._told = time.monotonic()

    def progress(self, step: int, loss: float) -> None:
        """Called between two steps: raise KeyboardInterrupt if Ctrl-C came during the last one.

        It shows how long the run will still take; without a terminal it prints a line from time to time.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        self._steps += 1
        done = step / (self.total * self.batches)
        left = (time.monotonic() - self._began) / self._steps * (self.total * self.batches - step)
        words = f"about {duration(max(left, 0.0))} left"
        self.bar.update(self.task, total=self.total, completed=step / self.batches, left=words, refresh=False)
        if self.shown and not self.console.is_terminal and time.monotonic() - self._told > _QUIET:
            self._told = time.monotonic()
            self._line(f"{100 * done:.0f} %  loss {number(loss)}  {words}")

    def _line(self, words: str) -> None:
        """One line, however long: what reads a pipe takes a line for a record."""
        self.console.print(words, soft_wrap=True)

    def _due(self, at: int) -> bool:
        """Whether a line is due: at the first and the last step, and at every tenth of the way."""
        return at in (0, self.total) or at % max(1, self.total // _LINES) == 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Draw the bar. Ctrl-C, SIGTERM and SIGHUP ask to stop after this step; a second one stops at once.

        A hangup takes the terminal away: nothing is drawn after it. If it is ignored (nohup), it stays
        ignored.
        """

        def stop(number: int, frame: FrameType | None) -> None:
            if self.interrupted or not self.begun:  # before the first step there is nothing to save
                raise KeyboardInterrupt
            self.interrupted = True
            if self.shown and number != _HANGUP:
                self.bar.console.print("Stopping after this step, to save it. Ctrl-C again stops at once.")
            self.shown = self.shown and number != _HANGUP

        ours = threading.current_thread() is threading.main_thread()  # others may not handle signals
        asked = [signal.SIGINT, signal.SIGTERM]
        if _HANGUP is not None and signal.getsignal(_HANGUP) != signal.SIG_IGN:
            asked.append(_HANGUP)
        before = {s: signal.signal(s, stop) for s in asked if ours}
        try:
            self.bar.start()
            yield
        finally:
            with suppress(OSError):  # where the terminal is gone there is nothing to clear
                self.bar.stop()
                sys.stderr.flush()
            for s, handler in before.items():
                signal.signal(s, handler)


def _numbers(record: Mapping[str, Any]) -> str:
    """The loss, the rate (in certified training the hidden step), and solver steps forward and backward."""
    parts = [f"loss {number(record.get('loss'))}"]
    rate = record.get("learning_rate", record.get("hidden"))
    if rate is not None:
        parts.append(f"rate {number(rate, 2)}")
    for name, words in (("forward_steps", "solver steps"), ("adjoint_steps", "for the gradient")):
        if name in record:
            parts.append(f"{words} {number(record[name])}")
    return "  ".join(parts)
