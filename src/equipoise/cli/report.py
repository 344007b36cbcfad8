"""equipoise report RUN: the page of a run, or of several side by side, from their files alone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from .failures import Code, Ended, Failure, command, option
from .output import Output


@command("report runs/digits-auto-1\nreport runs/digits-auto-1 runs/digits-monotone-1 --out comparison.html")
def report(
    output: Output,
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Directory of a run, finished or not. Give several to compare them.",
            metavar="RUN",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        option("File of the comparison; by default comparison.html beside the first run."),
    ] = None,
) -> None:
    """Write report.html: one file that opens anywhere, without a network.

    The page is made from the files of the run alone, and each is checked against its seal. A file that was
    changed is named on the page and on stderr, nothing of it is shown, and the exit code is 5. For several
    runs one page sets them side by side: scores, the options that differ, losses and certificates.
    """
    from ..files import Damaged
    from ..plain import plain
    from ..report import compare, write
    from ..report.reading import read
    from ..tasks import Run

    for run in runs:
        with suppress(Damaged):  # the page says what is damaged
            Run.open(run)
    if len(runs) == 1 and out is not None:
        message = f"--out says where a comparison of runs is written. Got one run only, {runs[0]}."
        raise Failure("Nothing to compare", message, "Leave it out, or name another run.", Code.USAGE)
    alone = len(runs) == 1
    try:
        page = write(runs[0]) if alone else compare(runs, out or runs[0].parent / "comparison.html")
    except ValueError as error:
        raise Failure("Nothing to compare", str(error), code=Code.USAGE) from error
    damaged = {
        name if alone else str(run / name): why for run in runs for name, why in read(run).damaged.items()
    }
    output.say(str(page))
    output.result({"report": str(page), "damaged": damaged})
    for name, why in damaged.items():
        typer.echo(plain(f"{name} is not shown: {why}"), err=True)
    if damaged:
        raise Ended(Code.DAMAGED)
