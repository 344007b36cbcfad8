"""What every command shares: how it is made, and what it does when it cannot do what it was asked."""

from __future__ import annotations

import dataclasses
import errno
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from .output import Output, PlainConsole, as_json


def option(help: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """An option whose default is not shown; it is named after its parameter unless names are given."""
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=False, **more)


RunPath = Annotated[
    Path, typer.Argument(help="Directory of a finished run.", metavar="RUN", show_default=False)
]
DataDir = Annotated[
    Path | None, option("Folder of the named data sets; by default the one used in training.")
]
Out = Annotated[Path | None, option("Folder to write to; by default one inside RUN.")]


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
    """An error that explains itself: a title, what is the matter, and what to try."""

    def __init__(self, title: str, message: str, advice: str = "", code: Code = Code.FAILED) -> None:
        super().__init__(message)
        self.title, self.message, self.advice, self.code = title, message, advice, code


class Ended(Exception):
    """A command ends without success, and has shown why already."""

    def __init__(self, code: Code) -> None:
        super().__init__(code)
        self.code = code


def command(examples: str, more: Sequence[inspect.Parameter] = ()) -> Callable[[Callable[..., None]], Any]:
    """Make a command of a function whose first parameter is its Output.

    It gets --quiet, --json and --debug; its errors become a panel on stderr (with --json an object on stdout)
    and an exit code. Parameters in `more` that were given reach the function as one dictionary, `given`.
    """

    def make(function: Callable[..., None]) -> Any:
        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        taken = {p.name for p in more}
        own = [p for p in own if p.name != "given"]

        @functools.wraps(function)
        def guarded(quiet: bool, json: bool, debug: bool, **values: Any) -> None:
            named = {name: values.pop(name) for name in taken}
            if taken:
                values["given"] = {name: value for name, value in named.items() if value is not None}
            try:
                with _told_warnings():
                    function(Output(quiet, json), **values)
            except typer.Exit:
                raise
            except Ended as ended:
                raise typer.Exit(ended.code) from None
            except (Exception, KeyboardInterrupt) as error:
                if isinstance(error, BrokenPipeError) or debug:
                    raise
                failure = explain(error)
                with suppress(OSError):  # the terminal may be gone
                    _show(failure, to_programs=json)
                raise typer.Exit(failure.code) from None

        every = [p.replace(kind=p.KEYWORD_ONLY) for p in (*own, *more, *_OUTPUT)]
        for flagged in (p.annotation for p in every if get_args(p.annotation)[:1] == (bool,)):
            flagged.__metadata__[0].metavar = ""  # a flag takes no value, so none is shown
        guarded.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        guarded.__annotations__ = {p.name: p.annotation for p in every}
        guarded.__doc__ = "\n\n".join(
            " ".join(part.split()) for part in (function.__doc__ or "").split("\n\n")
        )
        shown = "\n".join(f"  $ equipoise {line}" for line in examples.strip().splitlines())
        guarded.epilog = f"[bold]Examples[/bold]\n\n{shown}\n\n[bold]Exit codes[/bold]  {EXIT_CODES}\n"  # type: ignore[attr-defined]
        return guarded

    return make


def flag(name: str, help: str, *names: str, panel: str = "Output") -> inspect.Parameter:
    """A parameter that is False unless it is given."""
    hint = Annotated[bool, option(help, *names, panel=panel)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=hint)


_OUTPUT = (
    flag("quiet", "Print errors only.", "--quiet", "-q"),
    flag("json", "Print the result as JSON, and nothing else.", "--json"),
    flag("debug", "Show where an error came from.", "--debug"),
)


def parameters_of(options: Any) -> list[inspect.Parameter]:
    """A parameter for every field of a dataclass of options, in its panel and with its words."""
    found = []
    for field in dataclasses.fields(options):
        hint = get_type_hints(options)[field.name]
        words, panel = field.metadata["words"], field.metadata["panel"]
        asked = Annotated[hint | None, option(words, panel=panel)]  # type: ignore[valid-type]
        found.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=asked)
        )
    return found


@dataclasses.dataclass(frozen=True)
class Spread:
    """The options of a command whose work several processes can share."""

    workers: int = dataclasses.field(
        default=1, metadata={"panel": None, "words": "How many processes share the work; 1 by default."}
    )
    engine: str = dataclasses.field(
        default="local", metadata={"panel": None, "words": "local (the default), or ray for a Ray cluster."}
    )


def workers_of(given: dict[str, Any]) -> Any:
    """The Workers that were asked for; None if no option of `Spread` was given."""
    from ..engines import Workers
    from ..tasks import WrongOption

    if not given:
        return None
    asked = Spread(**given)
    try:
        return Workers(asked.workers, asked.engine)
    except ValueError as error:
        raise WrongOption(f"--{error}") from None


def explain(error: BaseException) -> Failure:
    """What to tell the user of an error."""
    if isinstance(error, Failure):
        return error
    said = str(error) or type(error).__name__
    if isinstance(error, KeyboardInterrupt):
        said = "The command was stopped before there was anything to save."
    for kind, title, advice, code in _known():
        if isinstance(error, kind):
            said, _, own = said.partition("\n\n")  # an error may bring its own advice as a second paragraph
            return Failure(title, said, own or advice, code)
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
        advice = (
            "Make room on the disk. Then equipoise fit --resume continues a run that was begun."
            if full
            else ""
        )
        said = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else said
        return Failure("The disk is full" if full else "A file cannot be used", said, advice)
    where = "--debug shows where this came from."
    if isinstance(error, ValueError | TypeError):
        return Failure("That cannot be done", said, where)
    return Failure("Unexpected error", f"{type(error).__name__}: {said}", where)


def _known() -> Iterator[tuple[type[BaseException], str, str, Code]]:
    """Errors with a title of their own, the special before the general."""
    from ..data.errors import DataError
    from ..files import Damaged, OtherFormat
    from ..solve import EquilibriumError
    from ..tasks import DataChanged, NoRun, NotFinished, RunBusy, WrongOption
    from ..tasks.spread import RankLost

    yield KeyboardInterrupt, "Interrupted", "", Code.INTERRUPTED
    yield DataChanged, "The data have changed", "", Code.DATA
    yield DataError, "The data cannot be used as they are", "Nothing was written.", Code.DATA
    yield Damaged, "The run is damaged", "", Code.DAMAGED
    yield OtherFormat, "The run is of another version", "", Code.FAILED
    yield RunBusy, "The run is in use", "", Code.FAILED
    yield NoRun, "There is no such run", "equipoise runs lists the runs of a directory.", Code.USAGE
    yield NotFinished, "The run is not finished", "", Code.FAILED
    yield WrongOption, "An option does not fit", "", Code.USAGE
    lost = "equipoise diagnose says which solver finds it."
    yield EquilibriumError, "An equilibrium was lost", lost, Code.DIVERGED
    yield MemoryError, "There is not enough memory", "", Code.FAILED
    yield RankLost, "A process was lost", "No run was begun: give the command again.", Code.FAILED
    yield ImportError, "A package is missing", "", Code.FAILED


def _show(failure: Failure, to_programs: bool) -> None:
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
    """Show each warning that is meant for the user once, on one line; hide those of other packages."""
    from rich.text import Text

    from ..data.errors import DataWarning
    from ..train.checkpoint import CheckpointWarning

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
