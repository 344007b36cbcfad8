"""What ranks keep of their own rows: a directory of checkpoints for each part, beside those of the run.

A part is written before the checkpoint that it belongs to, so that one that counts has all its parts. Any
number of ranks reads them: each takes the rows that it holds.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from ..files import Damaged
from ..theory.shards import gathered
from .checkpoint import Checkpoint, Checkpoints, CheckpointWarning

Groups = dict[str, dict[str, Tensor]]
_SINGLE = "single"  # the one entry that has no row for a sample


def save_part(checkpoints: Checkpoints, step: int, groups: Groups, at: slice) -> None:
    """Write the rows of this rank; returns when all ranks have."""
    path = checkpoints.directory / "rows" / f"{at.start:012d}-{at.stop:012d}"
    tensors = {f"{group}/{name}": t for group, named in groups.items() for name, t in named.items()}
    if tensors:
        Checkpoints(path, checkpoints.keep + 1).save(step, tensors, {"rows": [at.start, at.stop]})
    gathered(None)


def remove_former_parts(checkpoints: Checkpoints, step: int) -> None:
    """Remove the parts without this step, which another number of ranks wrote before."""
    for path in checkpoints.parts():
        if step not in Checkpoints(path).steps():
            shutil.rmtree(path, ignore_errors=True)


def cut_part(groups: Groups, at: slice) -> Groups:
    """The rows `at` of what one process wrote for all rows."""
    return {
        group: {name: t if name == _SINGLE else t[at] for name, t in named.items()}
        for group, named in groups.items()
    }


def read_parts(checkpoints: Checkpoints, step: int, at: slice) -> Groups:
    """The rows `at` of what several ranks wrote; none, with a warning, if a part is missing or damaged."""
    found: dict[str, list[Tensor]] = {}
    reached = at.start
    for one in _at_step(checkpoints, step):
        first, last = one.facts["rows"]
        if first <= reached < last:
            own = slice(reached - first, min(at.stop, last) - first)
            for key, t in one.tensors.items():
                found.setdefault(key, []).append(t if key.endswith(f"/{_SINGLE}") else t[own])
            reached = min(at.stop, last)
    if reached < at.stop:
        warnings.warn(
            f"{checkpoints.directory} has no equilibria of rows {reached} to {at.stop - 1} at step {step}: "
            f"rows {at.start} to {at.stop - 1} start cold, and the last bits may differ.",
            CheckpointWarning,
            stacklevel=2,
        )
        return {}
    groups: Groups = {}
    for key, tensors in found.items():
        group, name = key.rsplit("/", 1)
        groups.setdefault(group, {})[name] = tensors[0] if name == _SINGLE else torch.cat(tensors)
    return groups


def _at_step(checkpoints: Checkpoints, step: int) -> Iterator[Checkpoint]:
    for part in map(Checkpoints, checkpoints.parts()):
        if step in part.steps():
            try:
                yield part.read(step)
            except Damaged as problem:
                warnings.warn(str(problem), CheckpointWarning, stacklevel=3)
