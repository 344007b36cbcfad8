"""What a command does when it cannot do what it was asked: one panel, and an exit code that says why."""

from __future__ import annotations

import errno
import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

F = TypeVar("F", bound=Callable[..., Any])

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say nothing but errors.", rich_help_panel="Output")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, and nothing else.", rich_help_panel="Output")
]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show where an error came from.", rich_help_panel="Output")
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where named data lie; else as in training.", show_default=False),
]


class Code(IntEnum):
    """Exit codes."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DATA = 3
    DIVERGED = 4
    DAMAGED = 5
    INTERRUPTED = 130


EXIT_CODES = (
    "0 done · 1 failed, or not proved · 2 wrong usage · 3 data that cannot be used · "
    "4 training diverged or lost its equilibria · 5 damaged run · 130 interrupted"
)


class Failure(Exception):
    """An error that is explained already: a title, what is the matter, and what to try."""

    def __init__(self, title: str, message: str, advice: str = "", code: Code = Code.FAILED) -> None:
        super().__init__(message)
        self.title, self.message, self.advice, self.code = title, message, advice, code


class Ended(Exception):
    """The end of a command whose result is not a success and is shown already."""

    def __init__(self, code: Code) -> None:
        super().__init__(code)
        self.code = code


def command(function: F) -> F:
    """A command whose errors become a panel on stderr (with --json an object on stdout) and an exit code."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            with _told_warnings():
                function(*args, **kwargs)
        except typer.Exit:
            raise
        except Ended as ended:
            raise typer.Exit(ended.code) from None
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, BrokenPipeError) or kwargs.get("debug"):
                raise
            failure = explain(error)
            with suppress(OSError):  # the terminal may be gone
                _show(failure, to_programs=bool(kwargs.get("json")))
            raise typer.Exit(failure.code) from None

    guarded.__doc__ = "\n\n".join(" ".join(part.split()) for part in (function.__doc__ or "").split("\n\n"))
    return guarded  # type: ignore[return-value]


def explain(error: BaseException) -> Failure:
    """What to tell the user of an error."""
    from ..data.errors import DataError
    from ..files import Damaged, OtherFormat
    from ..solve import EquilibriumError
    from ..tasks import RunBusy

    said = str(error) or type(error).__name__
    if isinstance(error, Failure):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Failure(
            "Interrupted", "It was stopped before there was anything to save.", code=Code.INTERRUPTED
        )
    if isinstance(error, DataError):
        return Failure("The data cannot be used as they are", said, "Nothing was written.", Code.DATA)
    if isinstance(error, Damaged):
        return Failure("The run is damaged", said, code=Code.DAMAGED)
    if isinstance(error, OtherFormat):
        return Failure("The run is of another version", said)
    if isinstance(error, RunBusy):
        return Failure("The run is in use", said)
    if isinstance(error, EquilibriumError):
        return Failure(
            "An equilibrium was lost", said, "equipoise diagnose says which solver would do.", Code.DIVERGED
        )
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
        advice = "Make room on the disk; a run that was begun goes on by fit --resume." if full else ""
        where = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else said
        return Failure("The disk is full" if full else "A file cannot be used", where, advice)
    if isinstance(error, MemoryError):
        return Failure("More memory would be needed than there is", said)
    if isinstance(error, ImportError):
        return Failure("A package is missing", said)
    if isinstance(error, ValueError | TypeError):
        return Failure("That cannot be done", said, "--debug shows where this came from.")
    return Failure(
        "Unexpected error", f"{type(error).__name__}: {said}", "--debug shows where this came from."
    )


def _show(failure: Failure, to_programs: bool) -> None:
    from .output import PlainConsole, as_json

    if to_programs:
        told = {"error": failure.title, "message": failure.message, "advice": failure.advice}
        print(as_json(told | {"exit_code": int(failure.code)}))
        return
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    parts = [Text(failure.message)]
    if failure.advice:
        parts += [Text(), Text(failure.advice, style="bold")]
    title = Text(failure.title)
    PlainConsole(stderr=True).print(
        Panel(Group(*parts), title=title, title_align="left", border_style="red", padding=(0, 1))
    )


@contextmanager
def _told_warnings() -> Iterator[None]:
    """Warnings meant for the user are one line each, once; those of other packages are for developers."""
    from rich.text import Text

    from ..data.errors import DataWarning
    from ..train.checkpoint import CheckpointWarning
    from .output import PlainConsole

    told: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *_: Any) -> None:
        if str(message) not in told and issubclass(category, DataWarning | CheckpointWarning):
            told.add(str(message))
            PlainConsole(stderr=True).print(Text.assemble(("Note  ", "yellow"), str(message)))

    with warnings.catch_warnings():
        for ours in (DataWarning, CheckpointWarning):
            warnings.simplefilter("always", ours)
        warnings.showwarning = show  # type: ignore[assignment]
        yield
