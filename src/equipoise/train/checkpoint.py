"""Checkpoints: tensors and facts of a run, on disk whole or not at all.

A checkpoint is a pair of files, `step-00000120.safetensors` and `step-00000120.json`. The second is written
last and holds the SHA-256 of the first and of itself: a pair that a kill, a full disk or a flipped bit has
spoiled is recognised, named, and the one before it used. Nothing is ever unpickled.

It also says what it was computed with. If a run continues with another number of threads, another processor
or other versions, its last bits may differ, and a CheckpointWarning says so.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from ..checks import integer
from ..files import Damaged, OtherFormat, make_directory, remove_leftovers, write_atomically
from .environment import changes, environment

_FORMAT = "equipoise.checkpoint.2"
_NAME = re.compile(r"step-(\d{8,})\.(?:safetensors|json)")
_SEALED = '{{"sha256": "{digest}", "checkpoint": {content}}}\n'


class CheckpointWarning(UserWarning):
    """A checkpoint is damaged or incomplete, or was computed with other threads, processor or versions."""


@dataclass(frozen=True)
class Checkpoint:
    """What was saved after `step` steps."""

    step: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    path: Path  # of the JSON file
    seal: dict[str, Any]  # of the files beside, as they were then


class Checkpoints:
    """A directory of checkpoints, of which the last `keep` are kept. It has one writer at a time.

    Each holds what `seal` returns when it is saved: hashes of files beside it that have no seal themselves.
    """

    def __init__(
        self, directory: str | Path, keep: int = 2, seal: Callable[[], dict[str, Any]] = dict
    ) -> None:
        integer("keep", keep)
        self.directory, self.keep, self.seal = Path(directory), keep, seal

    def save(self, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Path:
        """Write a checkpoint, and only then remove the oldest.

        Tensors are read back on the CPU and in the same order in memory, on which the last bit of a product
        may depend. Facts are JSON: numbers come back exactly, tuples as lists and every key as a string. If
        it cannot be written (a full disk), those before it are as they were.
        """
        integer("step", step, 0)
        clones = {n: t.detach().cpu().clone() for n, t in tensors.items()}  # of their own memory, dense
        layouts = {n: _layout(t) for n, t in clones.items() if not t.is_contiguous()}
        content = safetensors.torch.save(
            {n: t.permute(layouts[n]) if n in layouts else t for n, t in clones.items()}
        )
        known = {
            "format": _FORMAT,
            "step": step,
            "tensors": hashlib.sha256(content).hexdigest(),
            "layouts": layouts,
            "environment": environment(),
            "seal": self.seal(),
            "facts": dict(facts),
        }
        sealed = _seal(json.dumps(known))
        make_directory(self.directory)
        remove_leftovers(self.directory)
        path = self._path(step)
        path.unlink(missing_ok=True)  # a pair is never of two saves
        write_atomically(path.with_suffix(".safetensors"), content)
        write_atomically(path, sealed.encode())
        known_steps = self.steps()
        later = [s for s in known_steps if s > step]  # of an abandoned run: this one is the newest
        for old in later + [s for s in known_steps if s <= step][: -self.keep]:
            self._path(old).unlink(missing_ok=True)  # first the file that makes it count
            self._path(old).with_suffix(".safetensors").unlink(missing_ok=True)
        return path

    def steps(self) -> list[int]:
        """The steps of which there is any file, the newest last."""
        if not self.directory.is_dir():
            return []
        found = (_NAME.fullmatch(p.name) for p in self.directory.iterdir())
        return sorted({int(match[1]) for match in found if match})

    def parts(self) -> list[Path]:
        """The directories in which the ranks of a run keep checkpoints of their own rows."""
        return sorted((self.directory / "rows").glob("*"))

    def latest(self) -> Checkpoint | None:
        """The newest that is intact, or None; a CheckpointWarning names each newer one."""
        return next(self._intact(), None)

    def _intact(self) -> Iterator[Checkpoint]:
        for step in reversed(self.steps()):
            try:
                yield self.read(step)
            except Damaged as problem:
                warnings.warn(
                    f"{problem}; the checkpoint before it is used.", CheckpointWarning, stacklevel=3
                )

    def read(self, step: int) -> Checkpoint:
        """The checkpoint of a step; Damaged says what is the matter with one that cannot be used."""
        path = self._path(step)
        beside = path.with_suffix(".safetensors")
        if not path.exists():
            raise Damaged(f"{beside} stands alone, without {path.name}: its writing was interrupted")
        if not beside.exists():
            raise Damaged(f"{path} stands alone: {beside.name} is missing")
        known = _unseal(path)
        if known.get("format") != _FORMAT:
            raise OtherFormat(
                f"{path} is of format {known.get('format')!r}; this version of equipoise reads {_FORMAT!r}. "
                f"Go on with the version that wrote it, or begin a new run."
            )
        if known["step"] != step:
            raise Damaged(f"{path} holds step {known['step']} instead of {step}")
        content = beside.read_bytes()
        if hashlib.sha256(content).hexdigest() != known["tensors"]:
            raise Damaged(f"{beside} is damaged: its SHA-256 is not the one in {path.name}")
        try:
            tensors = safetensors.torch.load(content)
        except SafetensorError as error:
            raise Damaged(f"{beside} is not a safetensors file: {error}") from None
        for name, t in tensors.items():
            t = t.clone()  # aligned as torch aligns
            order = known["layouts"].get(name)
            tensors[name] = t if order is None else t.permute([order.index(i) for i in range(t.ndim)])
        if changed := changes(known["environment"]):
            said = "; ".join(f"{name}: {words}" for name, words in changed.items())
            warnings.warn(
                f"{path} was computed otherwise ({said}). The run goes on, and its last bits may differ from "
                f"those of a run that was never interrupted.",
                CheckpointWarning,
                stacklevel=5,
            )
        return Checkpoint(step, tensors, known["facts"], path, known["seal"])

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step:08d}.json"


def _layout(t: Tensor) -> list[int]:
    """The order of dimensions in which the dense tensor is contiguous."""
    return sorted(range(t.ndim), key=lambda i: -t.stride()[i])


def _seal(content: str) -> str:
    return _SEALED.format(digest=hashlib.sha256(content.encode()).hexdigest(), content=content)


def _unseal(path: Path) -> dict[str, Any]:
    """What `_seal` was given, if not one bit of the file has changed since."""
    text = path.read_bytes().decode(errors="replace")
    before = len(_SEALED.format(digest="0" * 64, content="")) - len("}\n")
    content = text[before : -len("}\n")]
    if text != _seal(content):
        raise Damaged(f"{path} is damaged: it does not hold what its SHA-256 says")
    return dict(json.loads(content))
