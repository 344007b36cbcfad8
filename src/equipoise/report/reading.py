"""What the files of a run say, and which of them are missing or damaged: nothing else is ever consulted.

A file that has changed since it was sealed is damaged, and nothing of it is taken for what the run found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..files import read_json
from ..tasks import Run
from ..theory import Certificate

T = TypeVar("T")


@dataclass(frozen=True)
class RunRecord:
    """A run as its files tell it. A file that is not there leaves its part empty; `missing` names it."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    history: dict[str, Any] = field(default_factory=dict)
    findings: dict[str, Any] = field(default_factory=dict)
    fitted: dict[str, Any] = field(default_factory=dict)  # the recipe with all choices made, and why
    certificate: Certificate | None = None  # of the training, or of the network if nothing was promised
    wellposed: Certificate | None = None  # of the network as it ended
    missing: tuple[str, ...] = ()
    damaged: dict[str, str] = field(default_factory=dict)  # file: what is wrong with it
    unsealed: tuple[str, ...] = ()  # files in which a change would not show

    @property
    def recipe(self) -> dict[str, Any]:
        """What was asked and, where it is known, what was chosen."""
        chosen = {name: value for name, value in part(self.fitted, "recipe").items() if value is not None}
        return part(self.config, "recipe") | chosen

    @property
    def clock(self) -> str:
        """What the series run over: "epoch" or "step"."""
        return "epoch" if self.metrics and "epoch" in self.metrics[0] else "step"

    @property
    def running(self) -> bool:
        """Whether the run was still under way when its files were read."""
        return self.status.get("state") == "running"

    def series(self, name: str, of: str = "") -> tuple[np.ndarray, np.ndarray] | None:
        """(x, y) of a series, from the history or, where that has none, from the metrics; None if nowhere."""
        kept = part(self.history, of) if of else self.history
        found = _series(kept.get(name))
        if found is None:
            pairs = [(r.get(self.clock), r[name]) for r in self.metrics if _numeric(r.get(name))]
            found = _series({x: y for x, y in pairs if isinstance(x, int)})
        return found

    def last(self, name: str) -> float | None:
        """The last value of a series."""
        found = self.series(name)
        return None if found is None else float(found[1][-1])


def part(whole: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A table within a table; empty if there is none."""
    inner = whole.get(name)
    return inner if isinstance(inner, dict) else {}


def read(run: Run | str | Path) -> RunRecord:
    """The record of a run, whatever state its directory is in."""
    path = run.path if isinstance(run, Run) else Path(run)
    if not path.is_dir():
        raise FileNotFoundError(f"there is no run at {path}: it is not a directory.")
    run = Run(path)
    missing: list[str] = []
    damaged: dict[str, str] = {}

    def attempt(name: str, reader: Callable[[], T], empty: T) -> T:
        if not (path / name).exists():
            missing.append(name)
            return empty
        if name in damaged:
            return empty
        try:
            return reader()
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            damaged[name] = str(error)
            return empty

    def table(name: str) -> dict[str, Any]:
        return attempt(name, lambda: read_json(path / name), {})

    nothing: Certificate | None = None

    def certificate(name: str) -> Certificate | None:
        return attempt(name, lambda: Certificate.load(path / name), nothing)

    empty: dict[str, Any] = {}
    status = attempt("run.json", lambda: run.status, empty)
    unsealed: list[str] = []
    if status:
        try:
            damaged |= run.alterations()
            unsealed = run.unsealed()
        except (OSError, ValueError) as error:  # a checkpoint of another version
            damaged["checkpoints"] = str(error)
    return RunRecord(
        name=path.resolve().name,
        config=attempt("config.toml", lambda: run.config, {}),
        status=status,
        data=table("data.json"),
        metrics=attempt("metrics.jsonl", run.metrics.read, []),
        history=table("history.json"),
        findings=table("findings.json"),
        fitted=table("fitted.json"),
        certificate=certificate("certificate.json"),
        wellposed=certificate("wellposed.json"),
        missing=tuple(missing),
        damaged=damaged,
        unsealed=tuple(unsealed),
    )


def _series(found: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """A list over 0, 1, … or a map from step to number, as arrays; None of anything else or of nothing."""
    if isinstance(found, list):
        found = dict(enumerate(found))
    if not isinstance(found, dict) or not found:
        return None
    try:
        pairs = sorted((int(k), math.nan if v is None else float(v)) for k, v in found.items())
    except (TypeError, ValueError):
        return None
    x, y = zip(*pairs, strict=True)
    return np.array(x, dtype=float), np.array(y, dtype=float)


def _numeric(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
