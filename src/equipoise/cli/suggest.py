"""equipoise suggest RUN: what would make a theorem hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .failures import EXIT_CODES, Code, DataDir, Debug, Ended, Failure, Json, Quiet, command

EPILOG = f"""[bold]Examples[/bold]

  $ equipoise suggest runs/digits-auto-1 --theorem ling2023

[bold]Exit codes[/bold]  {EXIT_CODES}
"""


@command
def suggest(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.", show_default=False)],
    theorem: Annotated[
        str, typer.Option("--theorem", help="Which one; equipoise certify --help lists them.")
    ] = "two_timescale",
    data_dir: DataDir = None,
    quiet: Quiet = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what would make a theorem hold of the trained network on its data, and what it would then promise.

    A change that is suggested was made on a copy, and proved. Exits with 1 where none was found.
    """
    from ..theory import suggest as find
    from ..theory.certify import make_theorem
    from .output import Output
    from .prepared import prepared
    from .stored import load_fitted, stored_sample

    output = Output(quiet, json)
    try:
        make_theorem(theorem)
    except (ValueError, TypeError) as error:
        raise Failure("No such theorem", str(error), code=Code.USAGE) from error
    stored, fitted = load_fitted(run)
    found = find(fitted.model, *prepared(fitted, stored_sample(stored, data_dir)), theorem=theorem)
    output.heading(theorem)
    output.say(str(found))
    output.result(
        {
            "theorem": found.theorem,
            "holds": found.holds,
            "changes": {name: _plain(value) for name, value in found.changes.items()},
            "words": list(found.lines),
            "step_size": _plain(found.step_size),
            "efold": found.efold,
        }
    )
    if not found.holds:
        raise Ended(Code.FAILED)


def _plain(value: object) -> object:
    if isinstance(value, str | int | float | type(None)):
        return value
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else str(value)
