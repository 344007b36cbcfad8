"""Answers for many rows, shared by workers in parts: the same to the last bit for any number of workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engines import Workers, each
from ..filling import Filling
from .arrays import Array
from .fitted import BATCH, Fitted
from .keeping import load
from .sources import digest_of_arrays
from .stored import Stored


@dataclass
class Decided(Fitted):
    """A network whose outputs for the rows at hand are known already."""

    outputs: Tensor | None = None
    filling: Filling | None = None  # where outputs are kept until the answers are written

    def decide(self, X: Any) -> Tensor:
        """The known outputs."""
        return super().decide(X) if self.outputs is None else self.outputs

    def written(self) -> None:
        """Remove what was kept for the case of a kill."""
        if self.filling is not None:
            self.filling.remove()


def decided(stored: Stored, X: Array, workers: Workers | None, out: Path | None = None) -> Decided:
    """The network of a run with its outputs for the rows X; without workers they are found when asked for.

    With `out` every part that is done is kept beside that file until the answers are there, so that the same
    call continues after the process was killed. The parts are the batches of one process.
    """
    network = Decided(**vars(stored.fitted))
    if workers is None or not len(X):
        return network
    k, dtype = network.preparation.outputs, torch.empty(0, dtype=network.answers_in).numpy().dtype
    parts = [slice(i, i + BATCH) for i in range(0, len(X), BATCH)]
    shared = str(stored.run.path.resolve()), X
    if out is None:
        outputs = np.empty((len(X), k), dtype)
        for number, part in each(_outputs, shared, parts, workers):
            outputs[parts[number]] = part
    else:
        known = {"rows": digest_of_arrays(X), "files": stored.run.status["files"]}
        path = out.with_name(f".{out.name}.npy")
        network.filling = filling = Filling(path, (len(X), k), dtype, len(parts), known)
        left = filling.left()
        for number, part in each(_outputs, shared, [parts[n] for n in left], workers):
            filling.put(left[number], (parts[left[number]], part))
        outputs = filling.finish()
    found = torch.from_numpy(outputs)
    network.outputs = found[:, 0] if k == 1 else found
    return network


def _outputs(shared: tuple[str, Array], part: slice) -> np.ndarray:
    path, X = shared
    return _network(path).decide(X[part]).reshape(len(X[part]), -1).numpy()


@lru_cache(maxsize=1)
def _network(path: str) -> Fitted:
    return load(path)
