"""equipoise report RUN: the page of a run, from its files alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .failures import EXIT_CODES, Debug, Json, Quiet, command

EPILOG = f"""[bold]Examples[/bold]

  $ equipoise report runs/digits-auto-1

[bold]Exit codes[/bold]  {EXIT_CODES}
"""


@command
def report(
    run: Annotated[Path, typer.Argument(help="Directory of a run, finished or not.", show_default=False)],
    quiet: Quiet = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write report.html: one file that opens anywhere, without a network.

    It is made from the files of the run alone. What is missing or damaged is said on the page.
    """
    from ..report import write
    from .output import Output
    from .stored import open_run

    output = Output(quiet, json)
    page = write(open_run(run))
    output.say(str(page))
    output.result({"report": str(page)})
