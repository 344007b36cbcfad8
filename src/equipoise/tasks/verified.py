"""Predictions of a run or a model file verified row by row, in a folder from which a stopped task goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data import DataError, Dataset, load
from ..engines import Workers, each, in_order
from ..files import parse_json, strict, write_atomically
from ..models import load as load_model
from ..models import load_mondeq
from ..theory import fingerprint, verify_predictions
from .preparation import Preparation
from .rows import read_rows
from .sources import WrongOption, flat, is_named
from .stored import Stored

PART = 50  # rows after which what was found is written
_COLUMNS = ("proved", "refuted", "margin", "nodes", "time")


@dataclass(frozen=True, eq=False)
class VerifyTask:
    """A network, rows with their classes, and the boxes around them that are asked about."""

    model: nn.Module
    X: Tensor  # (N, d) float64, as the data have them
    y: Tensor  # (N,) classes
    classes: tuple[str, ...]
    shape: tuple[int, ...]  # of a row, if it is an image
    box: tuple[float, float] | None
    prepare: Callable[[Tensor], Tensor] | None = None  # raw rows as the network takes them
    norm: str = "linf"
    nodes: int = 2000

    @staticmethod
    def of(
        source: Path,
        data: str,
        *,
        rows: int | None = None,
        box: tuple[float, float] | None = (0.0, 1.0),
        norm: str = "linf",
        nodes: int = 2000,
        normalised: tuple[float, float] | None = None,
        data_dir: Path | None = None,
    ) -> VerifyTask:
        """The task for a finished run and rows like its own, or for a model file and a named data set.

        Pixels of a named set that are stored as bytes are divided by the largest of them.
        """
        common: dict[str, Any] = {"box": box, "norm": norm, "nodes": nodes}
        if source.is_dir():
            return _of_run(source, data, rows, data_dir, common)
        if not is_named(data):
            raise WrongOption(f"--data must be the name of a data set for a model file. Got {data}.")
        mean, std = normalised or (0.0, 1.0)
        try:
            model: nn.Module = load_model(source)
        except ValueError:  # not of this library
            model = load_mondeq(source, mean=mean, std=std)
        found = load(data, data_dir)
        if not found.classes:
            raise DataError(f"predictions of classes are verified, and {data} has numbers as targets.")
        X = torch.from_numpy(np.asarray(flat(found.x_test[:rows]), dtype=np.float64) / _brightest(found))
        y = torch.from_numpy(np.asarray(found.y_test[:rows], dtype=np.int64))
        return VerifyTask(
            model, X, y, tuple(map(str, found.classes)), tuple(found.x_test.shape[1:]), **common
        )

    def label(self, row: int) -> str:
        """The class of a row, in words."""
        y = int(self.y[row])
        return self.classes[y if len(self.classes) > 2 else max(y, 0)]

    def run(
        self,
        epsilons: Sequence[float],
        out: Path,
        progress: Callable[[int, int], None] | None = None,
        workers: Workers | None = None,
    ) -> dict[str, Any]:
        """Verify every row for every ε; verified.json is written after each part, and continued from."""
        asked = self._asked()
        file = out / "verified.json"
        known = parse_json(file.read_text("utf-8"), str(file)) if file.exists() else {}
        if known and known.get("asked") != asked:
            raise WrongOption(
                f"{file} belongs to another network, other rows or other options: give another --out."
            )
        found: dict[str, Any] = {"asked": asked, "epsilons": known.get("epsilons", {})}
        N = len(self.X)
        asked_for = [repr(float(epsilon)) for epsilon in epsilons]
        for name in asked_for:
            found["epsilons"].setdefault(name, {column: [] for column in _COLUMNS} | {"broken": {}})
        done = {name: len(found["epsilons"][name]["proved"]) for name in asked_for}
        parts = [(name, slice(i, i + PART)) for name in asked_for for i in range(done[name], N, PART)]
        results = in_order(each(_part_of, self, parts, workers or Workers()))
        for (name, _), part in zip(parts, results, strict=True):
            at = found["epsilons"][name]
            for column in _COLUMNS:
                at[column] += part[column]
            at["broken"] |= part["broken"]
            write_atomically(file, json.dumps(strict(found)).encode())
            if progress is not None:
                progress(asked_for.index(name) * N + len(at["proved"]), len(asked_for) * N)
        return found

    def part(self, epsilon: float, rows: slice) -> dict[str, Any]:
        """The results of some rows."""
        X, y = self.X[rows], self.y[rows]
        how: dict[str, Any] = {"nodes": self.nodes}
        if self.prepare is None:
            result = verify_predictions(
                self.model, X, y, epsilon=epsilon, norm=self.norm, box=self.box, **how
            )
        else:
            ends = (X - epsilon, -torch.inf), (X + epsilon, torch.inf)
            low, high = (torch.nextafter(end, torch.full_like(end, out)) for end, out in ends)
            if self.box is not None:
                low, high = low.clamp_min(self.box[0]), high.clamp_max(self.box[1])
            box = self.prepare(low), self.prepare(high)
            result = verify_predictions(self.model, self.prepare(X), y, box=box, **how)
        refuted = torch.nonzero(result.refuted).flatten().tolist()
        broken = {str(rows.start + row): result.counterexample[row].flatten().tolist() for row in refuted}
        return {name: getattr(result, name).tolist() for name in _COLUMNS} | {"broken": broken}

    def _asked(self) -> dict[str, Any]:
        data = hashlib.sha256(self.X.numpy().tobytes() + self.y.numpy().tobytes()).hexdigest()
        weights = fingerprint(self.model, self.X[:1])
        box = None if self.box is None else list(self.box)
        return {"weights": dict(weights), "data": data, "norm": self.norm, "box": box, "nodes": self.nodes}


def _of_run(
    source: Path, data: str, rows: int | None, data_dir: Path | None, common: dict[str, Any]
) -> VerifyTask:
    stored = Stored.load(source, data_dir)
    preparation = stored.fitted.preparation
    encoding = preparation.encoding
    columns = encoding.columns if encoding else ()
    plain = encoding is None or [c.type for c in columns] == ["number"] * len(encoding.names)
    if preparation.classes is None or not plain or common["norm"] != "linf":
        raise WrongOption(
            "a run can be verified if it predicts classes from columns that are all numbers, with --norm "
            "linf: each column has its own scale, so that an l2 ball of the data is none of the network's."
        )
    found = read_rows(data, stored.run.data, columns, None, data_dir)
    if found.y is None or np.isnan(found.X[:rows]).any():
        raise DataError(f"{data} must hold the class of every row, and no missing value.")
    labels = np.searchsorted(preparation.classes, found.y[:rows])
    scale = _brightest(load(data, data_dir)) if is_named(data) else 1.0
    X = torch.from_numpy(np.asarray(found.X[:rows], dtype=np.float64) / scale)
    shape = tuple(stored.run.data.get("image_shape") or ())
    y = torch.from_numpy(labels.astype(np.int64))
    if len(preparation.classes) == 2 and preparation.outputs == 1:
        y = 2 * y - 1
    names = tuple(map(str, preparation.classes.tolist()))
    prepare = _Prepared(preparation, scale)
    return VerifyTask(stored.fitted.model, X, y, names, shape, prepare=prepare, **common)


@dataclass(frozen=True)
class _Prepared:
    """Raw rows, in the units that are asked about, as the network takes them."""

    preparation: Preparation
    scale: float

    def __call__(self, X: Tensor) -> Tensor:
        return self.preparation.apply((self.scale * X).numpy())


def _part_of(task: VerifyTask, part: tuple[str, slice]) -> dict[str, Any]:
    return task.part(float(part[0]), part[1])


def _brightest(data: Dataset) -> float:
    """The largest pixel of images that are stored as bytes; 1 of all else."""
    return float(data.x_train.max()) if data.x_train.dtype == np.uint8 else 1.0


def as_epsilon(text: str) -> float:
    """A number or a fraction such as 2/255."""
    try:
        value = float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise WrongOption(f"--epsilon must be a number or a fraction such as 2/255. Got {text}.") from None
    if not value >= 0:
        raise WrongOption(f"--epsilon must be ≥ 0. Got {text}.")
    return value


def shares(found: dict[str, Any]) -> list[dict[str, float]]:
    """For every ε, ascending: the shares of rows proved and not refuted, and the cost per row."""
    table = []
    for epsilon, at in sorted(found["epsilons"].items(), key=lambda item: float(item[0])):
        N = len(at["proved"])
        table.append(
            {
                "epsilon": float(epsilon),
                "rows": N,
                "proved": sum(at["proved"]) / N,
                "not refuted": 1 - sum(at["refuted"]) / N,
                "parts a row": sum(at["nodes"]) / N,
                "seconds a row": sum(at["time"]) / N,
            }
        )
    return table
