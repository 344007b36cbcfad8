"""Finished runs that are looked at again: their files checked, their data read once more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torch import Tensor

from ..data.columns import Column
from ..data.errors import DataError
from ..files import Damaged
from .directory import Run
from .fitted import Fitted
from .keeping import load
from .origin import Origin
from .sources import Asked, Sample, read


class NotFinished(ValueError):
    """A run that left no network: it was interrupted or failed, or still goes on."""


class DataChanged(DataError):
    """The rows that a run was trained on are others now."""


@dataclass(frozen=True)
class Stored:
    """A finished run and the network it left; `sample` reads its data again when they are first asked for."""

    run: Run
    fitted: Fitted
    data_dir: Path | None = None

    @classmethod
    def load(cls, path: Path, data_dir: Path | None = None) -> Stored:
        """The run at this path, refused if it is not finished or a bit of its files has changed since."""
        run = Run.open(path)
        if run.state not in ("finished", "stopped"):
            raise NotFinished(
                f"A finished run is needed, and {path} is {run.state}. {run.status['reason']}\n"
                f"Go on with: equipoise fit --resume {path}"
            )
        if damaged := run.damaged():
            raise Damaged("\n".join(damaged))
        return cls(run, load(run.path), data_dir)

    @cached_property
    def sample(self) -> Sample:
        """The rows that the run was trained on."""
        return stored_sample(self.run, self.data_dir)

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """What the run's certificates are about: X (N, d) and y like the network's output, each row once."""
        return self.fitted.training(*self.sample.train, self.sample.weights)


def stored_origin(run: Run) -> Origin | None:
    """The network that a run began from, where it was not a new one."""
    given = run.config.get("from")
    return None if given is None else Origin.load(run.path, given)


def stored_sample(run: Run, data_dir: Path | None = None) -> Sample:
    """The rows a run was trained on, read again (named data from `data_dir`); refused if they are others."""
    asked = Asked(**run.config["data"])
    if data_dir is not None:
        asked = replace(asked, data_dir=str(data_dir.expanduser().resolve()))
    columns: tuple[Column, ...] = ()
    if "described" not in run.data:  # an earlier version, which knew columns of numbers only
        columns = tuple(Column(name) for name in run.data.get("features") or ())
    if (origin := stored_origin(run)) is not None:
        columns = origin.columns(run.data.get("features"))
    sample = read(asked, columns=columns)
    if sample.provenance["sha256"] != run.data.get("sha256"):
        raise DataChanged(
            f"{sample.provenance['source']} must be as it was when {run.path} began: its content has another "
            f"SHA-256 now. Restore the file, or begin a new run."
        )
    return sample
