"""equipoise report RUN: the page of a run, from its files alone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from .failures import Code, Ended, command
from .output import Output


@command("report runs/digits-auto-1")
def report(
    output: Output,
    run: Annotated[Path, typer.Argument(help="Directory of a run, finished or not.", show_default=False)],
) -> None:
    """Write report.html: one file that opens anywhere, without a network.

    It is made from the files of the run alone, each checked against its seal. A file that has changed is
    named on the page and on stderr, nothing of it is shown, and the command exits with 5.
    """
    from ..files import Damaged
    from ..plain import plain
    from ..report import write
    from ..report.reading import read
    from ..tasks import Run

    with suppress(Damaged):  # which the page says
        Run.open(run)
    page, damaged = write(run), read(run).damaged
    output.say(str(page))
    output.result({"report": str(page), "damaged": damaged})
    for name, why in damaged.items():
        typer.echo(plain(f"{name} is not shown: {why}"), err=True)
    if damaged:
        raise Ended(Code.DAMAGED)
