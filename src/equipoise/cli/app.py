"""The command `equipoise`. Each command has a file, and nothing heavy is imported before it runs."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from importlib.util import find_spec
from types import TracebackType
from typing import Annotated

import typer

from .. import __version__
from .failures import EXIT_CODES

COMMANDS = {  # panel of the help: its commands, in the order of use
    "Train": ("fit", "sweep", "predict"),
    "What is guaranteed": ("certify", "verify", "suggest", "diagnose"),
    "Look": ("report", "runs", "data", "landscape", "trajectory"),
    "The papers": ("claims", "reproduce"),
}

EPILOG = f"""[bold]Start here[/bold]

  $ equipoise fit digits                            [dim]with a certificate[/dim]
  $ equipoise fit table.csv --target price          [dim]on a table of your own[/dim]
  $ equipoise predict runs/digits-auto-1 new.csv    [dim]answers for new rows[/dim]
  $ equipoise runs                                  [dim]what was trained so far[/dim]

[bold]Exit codes[/bold]  {EXIT_CODES}
"""

app = typer.Typer(
    name="equipoise",
    help="Equilibrium networks you can trust: trained with guarantees that say what they rest on.",
    epilog=EPILOG,
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


for _panel, _names in COMMANDS.items():
    for _name in _names:
        if find_spec(f"{__package__}.{_name}") is not None:
            _module = import_module(f".{_name}", __package__)
            app.command(_name, rich_help_panel=_panel, epilog=getattr(_module, _name).epilog)(
                getattr(_module, _name)
            )


def _show_error(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Show an error for --debug; it may quote labels and names of files, so its words are made plain."""
    from ..plain import plain

    sys.stderr.write(plain("".join(traceback.format_exception(kind, error, where))))


def main() -> None:
    """The console script."""
    sys.excepthook = _show_error
    app(prog_name="equipoise")
