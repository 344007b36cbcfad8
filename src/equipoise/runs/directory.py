"""A run is a directory: what was asked, what was measured, what came out.

    config.toml             what was asked: [data] and [recipe]
    data.json               where the data came from
    run.json                state, reason, advice, exit code, versions, times, results, digests of the files
    metrics.jsonl           what was measured, a line a step
    checkpoints/            where to go on from
    model.safetensors, preparation.safetensors, certificate.json, history.json, findings.json, report.html

Every file but `metrics.jsonl` is written whole or not at all; a torn last line of that one is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

from .. import __version__
from ..files import Damaged, remove_leftovers, write_atomically
from ..train.checkpoint import Checkpoints
from .metrics import Metrics
from .toml import to_toml

State = Literal["running", "finished", "stopped", "interrupted", "failed"]
KILLED = "the process ended without a word: killed, or the machine went down"
_FORMAT = "equipoise.run.1"
_CHANGING = ("run.json", "report.html")  # no digest is kept of these


class RunBusy(RuntimeError):
    """Another process works in the run's directory."""


class Run:
    """One run on disk. `create` begins it, `open` finds it again, `working` keeps it to one process."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics = Metrics(self.path / "metrics.jsonl")
        self.checkpoints = Checkpoints(self.path / "checkpoints")

    @property
    def name(self) -> str:
        return self.path.name

    # -- its beginning --------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, Any], data: Mapping[str, Any]) -> Run:
        """A new run in an absent or empty directory: `config` is tables of plain values, `data` is JSON."""
        path = Path(path)
        taken = FileExistsError(
            f"the directory of a new run must be absent or empty. {path} is not: "
            f"name another, or resume the run that is there."
        )
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise taken
        content = to_toml(config), json.dumps(data, indent=1, ensure_ascii=False)
        path.mkdir(parents=True, exist_ok=True)
        try:
            (path / ".lock").touch(exist_ok=False)  # of two that come here at once, one goes on
        except FileExistsError:
            raise taken from None
        write_atomically(path / "config.toml", content[0].encode())
        write_atomically(path / "data.json", content[1].encode())
        run = cls(path)
        run._write(
            {"state": "running", "versions": versions(), "times": {"created": _now()}, "resumed": 0}
            | {"reason": "", "advice": "", "exit_code": None, "results": {}, "files": {}}
        )
        return run

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run in this directory, if its own files can be read."""
        path = Path(path)
        if not path.is_dir():
            raise FileNotFoundError(f"there is no run at {path}: it is no directory.")
        if not (path / "run.json").exists():
            raise FileNotFoundError(f"there is no run at {path}: it holds no run.json.")
        run = cls(path)
        _ = run.status, run.config, run.data
        return run

    def discard(self) -> None:
        """Remove the run altogether: one that failed before its first step."""
        shutil.rmtree(self.path)

    # -- what it says of itself -----------------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        try:
            return tomllib.loads((self.path / "config.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Damaged(f"{self.path / 'config.toml'} cannot be read: {error}") from None

    @property
    def data(self) -> dict[str, Any]:
        return _read_json(self.path / "data.json")

    @property
    def status(self) -> dict[str, Any]:
        """What run.json holds; of a run that says it runs and does not, as interrupted."""
        found = self._stored()
        if found["state"] == "running" and not self.busy:
            found |= {"state": "interrupted", "reason": found["reason"] or KILLED}
        return found

    @property
    def state(self) -> State:
        found: State = self.status["state"]
        return found

    def _stored(self) -> dict[str, Any]:
        path = self.path / "run.json"
        found = _read_json(path)
        if found.pop("sha256", None) != _digest(found):
            raise Damaged(f"{path} is damaged: its content does not agree with its SHA-256")
        if found.get("format") != _FORMAT:
            raise Damaged(f"{path} must be of format {_FORMAT!r}. Got {found.get('format')!r} instead")
        return found

    def _write(self, content: Mapping[str, Any]) -> None:
        content = {"format": _FORMAT, **content}
        text = json.dumps({**content, "sha256": _digest(content)}, indent=1, ensure_ascii=False)
        write_atomically(self.path / "run.json", text.encode())

    def damaged(self) -> list[str]:
        """The files that are not what they were when the run ended."""
        known: dict[str, str] = self._stored()["files"]
        return [
            f"{self.path / name} is {'damaged' if (self.path / name).exists() else 'missing'}"
            for name, digest in known.items()
            if not (self.path / name).exists() or _sha256(self.path / name) != digest
        ]

    # -- its work -------------------------------------------------------------------------------------------

    @contextmanager
    def working(self) -> Iterator[None]:
        """Keep the directory to this process; RunBusy if another one has it. A killed one has not."""
        (self.path / ".lock").touch()
        with locked(self.path / ".lock", patience=1.0) as got:
            if not got:
                raise RunBusy(
                    f"another process works in {self.path}: wait for it, or name another directory."
                )
            remove_leftovers(self.path)
            yield

    @property
    def busy(self) -> bool:
        """Whether a process works in it now."""
        if not (self.path / ".lock").exists():
            return False
        with locked(self.path / ".lock") as got:
            return not got

    def resume(self) -> None:
        """Say that the run goes on, and leave out what was measured after its last checkpoint."""
        latest = self.checkpoints.latest()
        self.metrics.truncate(-1 if latest is None else latest.step)
        stored = self._stored()
        stored["times"].pop("ended", None)
        again: dict[str, Any] = {
            "state": "running",
            "reason": "",
            "advice": "",
            "exit_code": None,
            "files": {},
        }
        self._write(stored | again | {"resumed": stored["resumed"] + 1})

    def finish(
        self,
        state: State,
        reason: str = "",
        advice: str = "",
        exit_code: int = 0,
        results: Mapping[str, Any] | None = None,
    ) -> None:
        """Say how the run ended, with its headline `results`; of its files a digest is kept."""
        if state not in get_args(State) or state == "running":
            ends = ", ".join(get_args(State)[1:])
            raise ValueError(f"a run ends as one of {ends}. Got {state!r} instead.")
        stored = self._stored()
        stored["times"]["ended"] = _now()
        files = sorted(p for p in self.path.iterdir() if p.is_file() and not p.name.startswith("."))
        said = {"state": state, "reason": reason, "advice": advice, "exit_code": exit_code}
        digests = {p.name: _sha256(p) for p in files if p.name not in _CHANGING}
        self._write(stored | said | {"results": dict(results or {}), "files": digests})


@dataclass(frozen=True)
class Listed:
    """A run in a list: `problem` says why one cannot be read."""

    path: Path
    state: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def list_runs(root: str | Path) -> list[Listed]:
    """The runs directly in `root`, the oldest first; damaged ones are among them and say what is wrong."""
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is no directory of runs.")
    inside = (p for p in root.iterdir() if p.is_dir())
    found = [_listed(p) for p in sorted(inside) if (p / "run.json").exists() or (p / "config.toml").exists()]
    return sorted(found, key=lambda run: run.status.get("times", {}).get("created", ""))


def _listed(path: Path) -> Listed:
    try:
        run = Run.open(path)
        status = run.status
        problems = run.damaged()
        return Listed(path, status["state"], run.config, run.data, status, "; ".join(problems))
    except (OSError, ValueError) as error:
        return Listed(path, "damaged", problem=str(error))
    except KeyError as error:
        return Listed(path, "damaged", problem=f"run.json has no {error}")


def free_directory(root: str | Path, stem: str) -> Path:
    """`root`/`stem`-1, or the first number that is not taken."""
    number = 1
    while (path := Path(root) / f"{stem}-{number}").exists():
        number += 1
    return path


def versions() -> dict[str, str]:
    """Of all that decides the numbers of a run."""
    packages = {name: metadata.version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")}
    return {
        "equipoise": __version__,
        **packages,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


@contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[bool]:
    """Whether this process has the lock, which the system takes back from a killed one."""
    if os.name != "posix":
        yield True
        return
    import fcntl

    deadline = time.monotonic() + patience  # one who only looks holds it for a moment
    with path.open("rb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    yield False
                    return
                time.sleep(0.05)
            else:
                yield True
                return


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise Damaged(f"{path} must hold a JSON object. Got {type(found).__name__} instead")
    return found


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
