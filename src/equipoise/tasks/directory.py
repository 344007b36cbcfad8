"""A run is a directory: what was asked, what was measured, what came out.

    config.toml             what was asked: [data], [recipe], and [from] where a trained network goes on
    origin*.safetensors     a copy of that network
    data.json               where the data came from
    run.json                state, reason, advice, exit code, versions, times, results, digests of the files
    metrics.jsonl           what was measured, one line for each step
    checkpoints/            where to go on from
    model.safetensors, preparation.safetensors, certificate.json, history.json, findings.json, report.html

Every file but `metrics.jsonl` is written whole or not at all; a torn last line of that one is left out.

run.json seals itself and, from the beginning, config.toml and data.json; each checkpoint seals the lines of
metrics.jsonl before it; when the run ends run.json seals all files. The sealed files hold no times (run.json
and timing.json do), so that runs with the same results have the same digests.

A run of the format before this one sealed its files only when it ended. It is read as any other. If it has
not ended, it cannot be resumed, and its files are reported as unsealed.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import tomli_w

from .. import __version__
from ..files import (
    Damaged,
    OtherFormat,
    digest,
    make_directory,
    read_json,
    remove_leftovers,
    sha256,
    write_atomically,
)
from ..train.checkpoint import Checkpoints, CheckpointWarning
from ..train.environment import changes, environment
from .keeping import CONFORMAL, FILES
from .lock import locked
from .metrics import Metrics
from .origin import FILES as ORIGIN

State = Literal["running", "finished", "stopped", "interrupted", "failed"]
KILLED = "the process was killed, or the machine went down: there is no record of how the run ended"
_FORMAT = "equipoise.run.2"
_FORMATS = ("equipoise.run.1", _FORMAT)  # those that can be read
_BEGINNING = "beginning"  # the state while the first files are written: nothing is lost if it ends there
_ASKED = ("config.toml", "data.json")
_SEALED = (*_ASKED, "metrics.jsonl", *FILES, *ORIGIN, CONFORMAL, "fitted.json", "findings.json")


class RunBusy(RuntimeError):
    """Another process works in the run's directory."""


class NoRun(FileNotFoundError):
    """There is no run in a directory, or no such directory."""


class NotBegun(NoRun):
    """A process was killed while it began a run in this directory, which can be used as if it were empty."""


class Run:
    """One run on disk. `create` begins it, `open` finds it again, `working` keeps it to one process."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics = Metrics(self.path / "metrics.jsonl")
        self.checkpoints = Checkpoints(self.path / "checkpoints", seal=self._seal_metrics)
        self._made = False  # whether this object made the directory
        self._inode: int | None = None  # of the directory, while this object works in it

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.path.name

    # -- its beginning --------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, Any], data: Mapping[str, Any]) -> Run:
        """A new run in an absent or empty directory: `config` is tables of plain values, `data` is JSON.

        A directory in which a run was killed before its first files were whole counts as empty.
        """
        run = cls(path)
        taken = FileExistsError(
            f"the directory of a new run must be absent or empty. {run.path} is not: "
            f"name another, or resume the run that is there."
        )
        if run.path.exists() and not unused(run.path):
            raise taken
        content = to_toml(config).encode(), json.dumps(data, indent=1, ensure_ascii=False).encode()
        run._made = make_directory(run.path)
        with locked(run.path) as got:  # if two processes come here at once, one of them continues
            if not (got and unused(run.path)):
                raise taken
            remove_leftovers(run.path)
            first = {"state": _BEGINNING, "versions": environment(), "times": {"created": _now()}}
            try:
                run._write(first)
                for name, text in zip(_ASKED, content, strict=True):
                    write_atomically(run.path / name, text)
                run._write(
                    {**first, "state": "running", "reason": "", "advice": "", "exit_code": None, "resumed": 0}
                    | {"results": {}, "changed": {}, "files": run._digests(_ASKED)}
                )
            except BaseException:
                run.discard()
                raise
        return run

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run in this directory, if its own files can be read."""
        path = Path(path)
        if not path.is_dir():
            raise NoRun(f"there is no run at {path}: it is not a directory.")
        if not (path / "run.json").exists():
            raise NoRun(f"there is no run at {path}: it holds no run.json.")
        run = cls(path)
        if run._stored()["state"] == _BEGINNING:
            raise NotBegun(
                f"there is no run at {path}: the process that was to begin it was killed, or the disk was "
                f"full, before the first step. Nothing is lost: begin again, in this directory or another."
            )
        _ = run.status, run.config, run.data
        return run

    def discard(self) -> None:
        """Remove the files of a run that failed before its first step, and the directory if this made it."""
        for name in (*ORIGIN, *_ASKED, "run.json"):  # the last one says that the others are ours
            (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):  # a directory that holds files of others stays
            (self.path / "checkpoints").rmdir()
        if self._made:
            with suppress(OSError):
                self.path.rmdir()

    # -- what it says of itself -----------------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        """The recipe and the options that the run was begun with."""
        try:
            return tomllib.loads((self.path / "config.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise Damaged(f"{self.path / 'config.toml'} cannot be read: {error}") from None

    @property
    def data(self) -> dict[str, Any]:
        """Where its data came from and how they were divided."""
        return read_json(self.path / "data.json")

    @property
    def status(self) -> dict[str, Any]:
        """What run.json holds; a run that seems to be running but has no process counts as interrupted."""
        found = self._stored()
        if found["state"] == "running" and not self.busy:
            found |= {"state": "interrupted", "reason": found["reason"] or KILLED}
        return found

    @property
    def state(self) -> State:
        """How far the run has come."""
        found: State = self.status["state"]
        return found

    def _stored(self) -> dict[str, Any]:
        path = self.path / "run.json"
        found = read_json(path)
        seal, form = found.pop("sha256", None), str(found.get("format"))
        if form in _FORMATS and seal == digest(found):
            return {"changed": {}, **found}
        flipped = any(seal == digest({**found, "format": known}) for known in _FORMATS)  # a bit of its number
        if form in _FORMATS or flipped or not re.fullmatch(r"equipoise\.run\.\d+", form):
            raise Damaged(f"{path} is damaged: its content does not agree with its SHA-256")
        versions = found.get("versions")
        wrote = versions.get("equipoise", "") if isinstance(versions, dict) else ""
        raise OtherFormat(
            f"{path} is of format {form!r}, written by equipoise {wrote or 'of another version'}; "
            f"this is equipoise {__version__}, which reads {' and '.join(map(repr, _FORMATS))}. "
            f"Use the version that wrote it, or begin a new run with what its config.toml asks for."
        )

    def _write(self, content: Mapping[str, Any]) -> None:
        content = {**content, "format": _FORMAT}
        text = json.dumps({**content, "sha256": digest(content)}, indent=1, ensure_ascii=False)
        write_atomically(self.path / "run.json", text.encode())

    def _digests(self, names: tuple[str, ...]) -> dict[str, str]:
        return {name: sha256(self.path / name) for name in sorted(names) if (self.path / name).exists()}

    def damaged(self) -> list[str]:
        """The files that are not what they were when they were sealed."""
        return list(self.alterations().values())

    def alterations(self) -> dict[str, str]:
        """What is wrong with each file that is not what it was when it was sealed, by name."""
        known: dict[str, str] = self._stored().get("files", {})
        now = self._digests(tuple(known))
        changed = "damaged: it has changed since it was sealed"
        found = {
            name: f"{self.path / name} is {changed if name in now else 'missing'}"
            for name, was in known.items()
            if now.get(name) != was
        }
        if "metrics.jsonl" not in known and not self.earlier:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CheckpointWarning)
                saved = self.checkpoints.latest()
            if saved is not None and not self.metrics.agrees(saved.seal):
                path = self.metrics.path
                found[path.name] = f"{path} is damaged: it is not what it was at step {saved.step}"
        return found

    @property
    def earlier(self) -> bool:
        """Whether an earlier version wrote it, in the format before this one."""
        return bool(self._stored()["format"] != _FORMAT)

    def unsealed(self) -> list[str]:
        """The files in which no change would show: an earlier version sealed them when the run ended."""
        known = self._stored()["files"]
        return [n for n in _SEALED if self.earlier and n not in known and (self.path / n).exists()]

    # -- its work -------------------------------------------------------------------------------------------

    @contextmanager
    def working(self) -> Iterator[None]:
        """Keep the directory for this process; RunBusy if another one holds it. A killed one holds nothing.

        The lock is on the directory itself: no file in it can be removed to let a second writer in.
        """
        with locked(self.path, patience=1.0) as got:
            if not got:
                raise RunBusy(
                    f"another process works in {self.path}: wait for it, or name another directory."
                )
            self._inode = os.stat(self.path).st_ino
            try:
                remove_leftovers(self.path)
                yield
            finally:
                self._inode = None

    @property
    def busy(self) -> bool:
        """Whether a process works in it now."""
        with locked(self.path) as got:
            return not got

    def record(self, measured: Mapping[str, Any]) -> None:
        """Add a line to what was measured; how long it took is not a result, and is left out."""
        self._check_place()
        self.metrics.append({name: value for name, value in measured.items() if name != "seconds"})

    def _seal_metrics(self) -> dict[str, Any]:
        self._check_place()
        return self.metrics.seal()

    def _check_place(self) -> None:
        """A directory that was removed and made again belongs to whoever made it."""
        if self._inode is not None and (not self.path.is_dir() or os.stat(self.path).st_ino != self._inode):
            raise RunBusy(
                f"{self.path} was removed or replaced while this run was writing to it: the run stops here, "
                f"and leaves what is there now alone."
            )

    def resume(self) -> None:
        """Say that the run goes on, and leave out what was measured after its last checkpoint."""
        if damaged := self.damaged():
            raise Damaged("; ".join(damaged))
        if self.earlier:
            raise OtherFormat(
                f"{self.path} cannot be resumed: an earlier version began it, whose unfinished runs hold no "
                f"seal of what was asked and measured, and not the number of threads that computed them. So "
                f"nothing would show whether it goes on as it began. What it measured can still be read; "
                f"begin a new run with what its config.toml asks for."
            )
        latest, stored = self.checkpoints.latest(), self._stored()
        stored["times"].pop("ended", None)
        again: dict[str, Any] = {
            "state": "running",
            "reason": "",
            "advice": "",
            "exit_code": None,
            "files": {name: stored["files"][name] for name in _ASKED},
            "resumed": stored["resumed"] + 1,
        }
        if latest is None:  # all is computed here and now
            again |= {"versions": environment(), "changed": {}}
        else:
            again["changed"] = stored["changed"] | changes(stored["versions"])
        self._write(stored | again)
        self.metrics.truncate(None if latest is None else latest.seal)
        (self.path / "report.html").unlink(missing_ok=True)  # it shows the run as it was

    def finish(
        self,
        state: State,
        reason: str = "",
        advice: str = "",
        exit_code: int = 0,
        results: Mapping[str, Any] | None = None,
    ) -> None:
        """Record how the run ended, its headline `results`, and the digests of its files."""
        if state not in get_args(State) or state == "running":
            ends = ", ".join(get_args(State)[1:])
            raise ValueError(f"a run ends as one of {ends}. Got {state!r} instead.")
        stored = self._stored()
        stored["times"]["ended"] = _now()
        said = {"state": state, "reason": reason, "advice": advice, "exit_code": exit_code}
        asked = {name: was for name, was in stored["files"].items() if name in _ASKED}  # sealed once for all
        files = self._digests(_SEALED) | asked
        self._write(stored | said | {"results": dict(results or {}), "files": files})


def unused(path: Path) -> bool:
    """Whether a new run may begin in this directory: it is empty, or one was killed there before it began."""
    if not path.is_dir():
        return False
    names = {p.name for p in path.iterdir() if not re.fullmatch(r"\..*\.\d+\.part", p.name)}
    if "run.json" not in names or not names <= {"run.json", *_ASKED}:
        return not names
    with suppress(ValueError):
        return bool(Run(path)._stored()["state"] == _BEGINNING)
    return False


def free_directory(root: str | Path, stem: str) -> Path:
    """`root`/`stem`-1, or the first number that is not taken."""
    number = 1
    while (path := Path(root) / f"{stem}-{number}").exists():
        number += 1
    return path


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of plain values, for tomllib to read back exactly. None, which TOML lacks, is left out."""

    def known(value: Any) -> Any:
        if isinstance(value, str):  # halves of surrogate pairs, as in paths, are in no file
            return value.encode("utf-8", "backslashreplace").decode()
        return list(map(known, value)) if isinstance(value, list | tuple) else value

    named = {n: {k: known(v) for k, v in t.items() if v is not None} for n, t in tables.items()}
    return tomli_w.dumps(named)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
