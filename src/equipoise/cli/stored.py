"""Runs that other commands look at: opened, their files checked, their data read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import Damaged
from ..tasks import Run
from .failures import Code, Failure
from .sources import Asked, Sample, read

if TYPE_CHECKING:
    from ..tasks import Fitted


def open_run(path: Path) -> Run:
    """The run at a path; a missing one is a wrong use of the command, a damaged one is said to be so."""
    try:
        return Run.open(path)
    except FileNotFoundError as error:
        raise Failure(
            "There is no such run", str(error), "equipoise runs lists those in a directory.", Code.USAGE
        ) from error


def load_fitted(path: Path) -> tuple[Run, Fitted]:
    """The run and the network it left, refused if a bit of its files has changed since."""
    from ..tasks import load

    run = open_run(path)
    if run.state not in ("finished", "stopped"):
        raise Failure(
            "The run is not finished",
            f"A network is needed, and {path} left none: it is {run.state}. {run.status['reason']}".rstrip(),
            f"Go on with: equipoise fit --resume {path}",
        )
    if damaged := run.damaged():
        raise Damaged("\n".join(damaged))
    return run, load(run.path)


def stored_sample(run: Run, data_dir: Path | None = None) -> Sample:
    """The rows a run was trained on, read again (named data from `data_dir`); refused if they are others."""
    asked = Asked(**run.config["data"])
    if data_dir is not None:
        asked = replace(asked, data_dir=str(data_dir.expanduser().resolve()))
    sample = read(asked)
    if sample.provenance["sha256"] != run.data.get("sha256"):
        raise Failure(
            "The data have changed",
            f"{sample.provenance['source']} must be as it was when {run.path} began: its content has another "
            f"SHA-256 now.",
            "Restore the file, or begin a new run.",
            Code.DATA,
        )
    return sample
