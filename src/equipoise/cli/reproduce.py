"""equipoise reproduce list | KEY … | PAPER | all: the papers' figures and tables, run again and judged."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .failures import Code, Ended, Failure, command, explain, option, parameters_of
from .output import Output, PlainConsole, duration, table

if TYPE_CHECKING:
    from rich.progress import TaskID

    from ..papers.framework.experiments import Experiment, Result

_OUT = Path("gallery")


@dataclass(frozen=True)
class _Jobs:
    """How the work is spread."""

    jobs: int = field(
        default=0,
        metadata={
            "panel": None,
            "words": "How many experiments to run at a time; by default one for each core, up to 8.",
        },
    )
    engine: str = field(
        default="local", metadata={"panel": None, "words": "local (the default), or ray for a Ray cluster."}
    )


@command(
    """reproduce list
reproduce gao2022.fig1 --scale small --data mnist,fashion_mnist --seeds 5
reproduce all --out gallery           [dim]then open gallery/index.html[/dim]
reproduce all --engine ray --jobs 64""",
    more=parameters_of(_Jobs),
)
def reproduce(
    output: Output,
    given: dict[str, Any],
    what: Annotated[
        list[str],
        typer.Argument(
            help="Keys such as gao2022.fig1, a paper such as gao2022, or all. With list nothing is run.",
            metavar="WHAT",
        ),
    ],
    scale: Annotated[
        str,
        typer.Option(
            help="Size of the experiments: tiny (a smoke test), small, medium or paper.", metavar="SCALE"
        ),
    ] = "small",
    data: Annotated[
        str | None,
        option("Names of data sets, separated by commas; by default those of the paper that can be found."),
    ] = None,
    seeds: Annotated[int | None, option("Number of seeds; by default the scale decides.", min=1)] = None,
    out: Annotated[Path, option("Folder to write to; gallery by default.")] = _OUT,
    data_dir: Annotated[Path | None, option("Folder of the data; by default $EQUIPOISE_DATA.")] = None,
) -> None:
    """Run the figures, tables and numerical claims of the papers again, and judge each by its numbers.

    What was computed before with the same settings and the same code is not computed again, so that an
    interrupted run can be continued. What must be computed again is named, with the reason.
    """
    from ..engines import Workers
    from ..papers import catalogue
    from ..papers.framework.gallery import check_place

    named = [name for name in what if name != "list"]
    sets = () if data is None else tuple(name.strip() for name in data.split(","))
    try:
        chosen = catalogue.select(named or ["all"])
        settings = catalogue.Settings(scale, sets, seeds, str(data_dir) if data_dir else None)
        if named != what:
            _list(chosen, output)
            return
        check_place(out)
        Workers(given.get("jobs", 1), given.get("engine", "local"))
    except ValueError as error:
        raise Failure("That cannot be run", str(error), "Nothing was run.", Code.USAGE) from None
    except KeyError as error:
        raise Failure("No such experiment", str(error.args[0]), code=Code.USAGE) from None
    try:
        with _Bar(output, out) as bar:
            results = catalogue.reproduce(what, settings, out, bar, **{"jobs": None, **given})
    except KeyboardInterrupt:
        raise Failure("Interrupted", _kept(out), code=Code.INTERRUPTED) from None
    except OSError as error:
        told = explain(error)  # for example that the disk is full
        advice = "When that is put right, the same command continues from what is stored."
        raise Failure(told.title, told.message, advice, told.code) from error
    output.say(f"\nThe gallery: {out / 'index.html'}")
    _tell(results, output)


def _tell(results: Sequence[Result], output: Output) -> None:
    """Print what came of each experiment; the command fails if an experiment did."""
    output.result(
        [
            {"key": r.key, "verdict": r.verdict, "seconds": r.seconds, "error": r.error}
            | {"warnings": list(r.warnings), "recomputed": list(r.recomputed)}
            for r in results
        ]
    )
    failed = [r for r in results if r.error]
    if failed:
        raise Ended(Code.DATA if all(r.data_error for r in failed) else Code.FAILED)


def _kept(out: Path) -> str:
    stored = sum(1 for _ in (out / "units").rglob("*.json"))
    if not stored:
        return "Stopped before the first unit was finished: nothing is stored."
    units = "1 unit of work is" if stored == 1 else f"{stored} units of work are"
    return f"{units} stored in {out / 'units'}: the same command goes on from there."


def _list(entries: Sequence[Experiment], output: Output) -> None:
    shown = table("experiment", "what", "the paper's claim", "minutes", fold=("what", "the paper's claim"))
    shown.columns[0].no_wrap = True  # a key is there to be copied
    for entry in entries:
        minutes = f"{entry.minutes:g}" if entry.minutes else "< 1"
        shown.add_row(entry.key, entry.title, entry.claim, minutes)
    output.say(shown)
    output.say("Minutes are approximate: on one core, at --scale small, with every data set at hand.")
    output.result([{"key": e.key, "title": e.title, "claim": e.claim, "minutes": e.minutes} for e in entries])


class _Bar:
    """Progress bars of the experiments and of each unit at work, and a line when an experiment is done."""

    def __init__(self, output: Output, out: Path) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.output, self.out = output, out
        console = PlainConsole(stderr=True, highlight=False)
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not (output.talks and console.is_terminal),
        )
        self.all = self.bars.add_task("", total=1)
        self.units: dict[str, TaskID] = {}

    def __enter__(self) -> _Bar:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def experiment(self, key: str, at: int, total: int) -> None:
        self.bars.update(self.all, description=f"{key} ({at + 1} of {total})", completed=at, total=total)

    def unit(self, name: str, share: float) -> None:
        if share >= 1:
            if name in self.units:
                self.bars.remove_task(self.units.pop(name))
            return
        if name not in self.units:
            self.units[name] = self.bars.add_task(f"  {name}", total=1)
        self.bars.update(self.units[name], completed=share)

    def finished(self, result: Result) -> None:
        from rich.text import Text

        from ..data.errors import DataWarning
        from ..papers.framework.gallery import computed_again, counts

        verdict = result.verdict
        colour = {"agree": "green", "differs": "yellow", "failed": "red"}.get(verdict, "dim")
        line = Text.assemble(
            (f"{verdict:<22}", colour),
            (f"{result.key:<24}", "bold"),
            f"{counts(result.judgements)}  ",
            (duration(result.seconds), "dim"),
        )
        self.output.say(line)
        for judgement in result.judgements:
            if judgement.verdict == "differs":
                self.output.say(Text(f"    ≠ {judgement.claim}: {judgement.measured}", style="dim"))
        for words in computed_again(result):
            self.output.say(Text(f"    {words}", style="dim"))
        for words in result.warnings:
            warnings.warn(f"{result.key}: {words}", DataWarning, stacklevel=2)
        if result.error:
            self._fail(result)

    def _fail(self, result: Result) -> None:
        from rich.text import Text

        where = "" if result.data_error else f"\nThe traceback: {self.out / result.key / 'error.txt'}"
        if not self.output.json:  # the JSON result holds it
            PlainConsole(stderr=True).print(Text(f"{result.key}: {result.error}{where}", style="red"))
