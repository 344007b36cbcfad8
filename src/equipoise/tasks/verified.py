"""Predictions of a run or a model file verified row by row, in a folder from which a stopped task goes on."""

from __future__ import annotations

import hashlib
import json
import math
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
from ..theory import VerifiedPredictions, fingerprint, verify_predictions
from ..theory.verify import bisected, distances
from .preparation import Preparation
from .robust_sets import reach
from .rows import read_rows
from .sources import WrongOption, flat, is_named
from .stored import Stored

PART = 50  # rows after which what was found is written
RADII = 10  # the same for radii, each of which takes many questions
STEPS = 8  # of the bisection of a radius
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)  # of rows
_COLUMNS = {
    "epsilons": ("proved", "refuted", "margin", "nodes", "time"),
    "radii": ("proved", "refuted", "nodes", "time"),
}


@dataclass(frozen=True)
class RowSets:
    """Raw rows, in the units that are asked about, as the network takes them, and the sets around them."""

    preparation: Preparation
    scale: float

    def __call__(self, X: Tensor) -> Tensor:
        return self.preparation.apply((self.scale * X).numpy())

    def undone(self, x: Tensor, like: Tensor) -> Tensor:
        """About the raw row that becomes the input x; columns that no network sees are those of `like`."""
        p, shape = self.preparation, self.preparation.inputs
        if not isinstance(shape, int) and p.image[-1] == shape[0]:  # colours were last
            x = x.reshape(shape).permute(1, 2, 0).flatten()
        mean, scale = (torch.from_numpy(np.asarray(t, dtype=np.float64)) for t in (p.mean, p.scale))
        return torch.where(scale > 0, (x[: len(mean)] / scale + mean) / self.scale, like)

    def moving(self, X: Tensor, far: Tensor, task: VerifyTask) -> dict[str, Any]:
        """The sets of inputs that rows become when they move by ε (N,) in raw units, rounded outward."""
        ends = (X - far[:, None], -torch.inf), (X + far[:, None], torch.inf)
        low, high = (torch.nextafter(end, torch.full_like(end, out)) for end, out in ends)
        if task.box is not None:
            low, high = low.clamp_min(task.box[0]), high.clamp_max(task.box[1])
        box = self(low), self(high)
        if task.norm == "linf":
            return {"box": box}
        rows = zip(self(X).split(1), (self.scale * far).tolist(), strict=True)
        ball = [float(reach(self.preparation, row, epsilon, "l2")[0]) for row, epsilon in rows]
        return {"epsilon": torch.tensor(ball, dtype=torch.float64), "norm": "l2", "box": box}

    def deviating(self, X: Tensor, far: Tensor, task: VerifyTask) -> dict[str, Any]:
        """The sets where inputs themselves move by ε (N,), but for columns that are constant."""
        inputs = self(X)
        moves = torch.from_numpy(np.append(self.preparation.scale > 0, False))
        ends = (-torch.inf, torch.inf) if task.box is None else task.box
        low, high = (
            self(torch.full_like(X, end)) if task.box else torch.full_like(inputs, end) for end in ends
        )
        box = torch.where(moves, low, inputs), torch.where(moves, high, inputs)
        return {"epsilon": far, "norm": task.norm, "box": box}


@dataclass(frozen=True, eq=False)
class VerifyTask:
    """A network, rows with their classes, and the boxes around them that are asked about."""

    model: nn.Module
    X: Tensor  # (N, d) float64, as the data have them
    y: Tensor  # (N,) classes
    classes: tuple[str, ...]
    shape: tuple[int, ...]  # of a row, if it is an image
    box: tuple[float, float] | None
    prepare: RowSets | None = None  # raw rows as the network takes them, if that is not as they are
    norm: str = "linf"
    nodes: int = 2000
    unit: str = "raw"  # of ε: "raw", or "deviations" of each column of a table

    @staticmethod
    def of(
        source: Path,
        data: str,
        *,
        rows: int | None = None,
        box: tuple[float, float] | str | None = "auto",
        unit: str | None = None,
        normalised: tuple[float, float] | None = None,
        data_dir: Path | None = None,
        **how: Any,
    ) -> VerifyTask:
        """The task for a finished run and rows like its own, or for a model file and a named data set.

        `how` are `norm` and `nodes`. Pixels of a named set that are stored as bytes are divided by the
        largest of them. By default `box` is (0, 1) for images and None for tables, and `unit` is that of
        `fit --robust`: for a run on a table "deviations" of each column, and else "raw".
        """
        common: dict[str, Any] = {"norm": "linf", **how, "box": box}
        if source.is_dir():
            return _of_run(source, data, rows, data_dir, {**common, "unit": unit})
        if unit == "deviations":
            raise WrongOption(
                "a model file takes inputs as they are, and knows no deviations: leave --unit out."
            )
        if not is_named(data):
            raise WrongOption(f"--data must be the name of a data set for a model file. Got {data}.")
        mean, std = normalised or (0.0, 1.0)
        try:
            model: nn.Module = load_model(source)
        except ValueError:  # not of this library
            model = load_mondeq(source, mean=mean, std=std)
        found = load(data, data_dir)
        common["box"] = _box(box, image=found.x_test.ndim > 2)
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

    def seen(self, row: int, values: Sequence[float]) -> Tensor:
        """A counterexample of a row in the units of the data, up to rounding: to be looked at."""
        x = torch.tensor(values, dtype=torch.float64)
        return x if self.prepare is None else self.prepare.undone(x, self.X[row])

    def run(
        self,
        epsilons: Sequence[float],
        out: Path,
        progress: Callable[[int, int], None] | None = None,
        workers: Workers | None = None,
        radius: float | None = None,
    ) -> dict[str, Any]:
        """Verify every row for every ε, and find how far each may move if a largest `radius` is given.

        verified.json is written after each part, and continued from.
        """
        asked = self._asked()
        file = out / "verified.json"
        known = parse_json(file.read_text("utf-8"), str(file)) if file.exists() else {}
        if known and {"unit": "raw", **known.get("asked", {})} != asked:
            raise WrongOption(
                f"{file} belongs to another network, other rows or other options: give another --out."
            )
        found: dict[str, Any] = {"asked": asked, **{kind: known.get(kind, {}) for kind in _COLUMNS}}
        N, wanted = len(self.X), [("epsilons", repr(float(epsilon))) for epsilon in dict.fromkeys(epsilons)]
        wanted += [] if radius is None else [("radii", repr(float(radius)))]
        for kind, name in wanted:
            begun: dict[str, Any] = {column: [] for column in _COLUMNS[kind]}
            found[kind].setdefault(name, begun | ({"broken": {}} if kind == "epsilons" else {}))
        sizes = {"epsilons": PART, "radii": RADII}
        parts = [
            (kind, name, slice(i, i + sizes[kind]))
            for kind, name in wanted
            for i in range(len(found[kind][name]["proved"]), N, sizes[kind])
        ]
        results = in_order(each(_part_of, self, parts, workers or Workers()))
        for (kind, name, _), part in zip(parts, results, strict=True):
            at = found[kind][name]
            for column in _COLUMNS[kind]:
                at[column] += part[column]
            if kind == "epsilons":
                at["broken"] |= part["broken"]
            write_atomically(file, json.dumps(strict(found)).encode())
            if progress is not None:
                progress(wanted.index((kind, name)) * N + len(at["proved"]), len(wanted) * N)
        return strict(found)

    def part(self, epsilon: float, rows: slice) -> dict[str, Any]:
        """The results of some rows."""
        result = self._verified(torch.arange(len(self.X))[rows], epsilon, self.nodes)
        refuted = torch.nonzero(result.refuted).flatten().tolist()
        broken = {str(rows.start + row): result.counterexample[row].flatten().tolist() for row in refuted}
        return {name: getattr(result, name).tolist() for name in _COLUMNS["epsilons"]} | {"broken": broken}

    def radii(self, most: float, rows: slice) -> dict[str, Any]:
        """How far some rows may move, up to `most`: in the units of ε, whatever the network takes."""
        some = torch.arange(len(self.X))[rows]

        def far(at: Tensor, x: Tensor) -> Tensor:
            X = self.X[some[at]]
            if self.prepare is None:
                return distances(X, x, self.norm)
            same = (x == self.prepare(X)).all(dim=1)  # x is where the network takes it, each column scaled
            return torch.where(same, 0.0, torch.inf).double()

        def verify(at: Tensor, epsilon: Tensor, thorough: bool) -> VerifiedPredictions:
            return self._verified(some[at], epsilon, max(1, self.nodes // STEPS) if thorough else 1)

        found = bisected(verify, len(some), most=most, steps=STEPS, far=far)
        return {name: getattr(found, name).tolist() for name in _COLUMNS["radii"]}

    def _verified(self, rows: Tensor, epsilon: float | Tensor, nodes: int) -> VerifiedPredictions:
        """Some rows for one ε, or for one ε of each, (P,)."""
        X, y = self.X[rows], self.y[rows]
        if self.prepare is None:
            return verify_predictions(
                self.model, X, y, epsilon=epsilon, norm=self.norm, box=self.box, nodes=nodes
            )
        far = torch.as_tensor(epsilon, dtype=torch.float64).expand(len(X))
        sets = (self.prepare.deviating if self.unit == "deviations" else self.prepare.moving)(X, far, self)
        return verify_predictions(self.model, self.prepare(X), y, **sets, nodes=nodes)

    def _asked(self) -> dict[str, Any]:
        data = hashlib.sha256(self.X.numpy().tobytes() + self.y.numpy().tobytes()).hexdigest()
        weights = fingerprint(self.model, self.X[:1])
        box = None if self.box is None else list(self.box)
        how = {"norm": self.norm, "box": box, "nodes": self.nodes, "unit": self.unit}
        return {"weights": dict(weights), "data": data, **how}

    @property
    def counted(self) -> str:
        """How ε is counted, in words."""
        if self.unit == "deviations":
            return "in standard deviations of each column"
        return "as a share of the brightest pixel" if self.shape else "in the units of the data"


def _of_run(
    source: Path, data: str, rows: int | None, data_dir: Path | None, common: dict[str, Any]
) -> VerifyTask:
    stored = Stored.load(source, data_dir)
    preparation = stored.fitted.preparation
    encoding = preparation.encoding
    columns = encoding.columns if encoding else ()
    plain = encoding is None or [c.type for c in columns] == ["number"] * len(encoding.names)
    shape = tuple(stored.run.data.get("image_shape") or ())
    unit = common["unit"] or ("raw" if shape else "deviations")
    if unit not in ("raw", "deviations") or (unit == "deviations" and shape):
        raise WrongOption(f"--unit must be raw, or deviations for a table. Got {unit}.")
    common |= {"unit": unit, "box": _box(common["box"], image=bool(shape))}
    if preparation.classes is None or not plain:
        raise WrongOption("a run can be verified if it predicts classes from columns that are all numbers.")
    if unit == "raw" and common["norm"] == "l2" and not shape:
        raise WrongOption(
            "each column has its own scale, so that an l2 ball of raw units is none of the network's: count "
            "in --unit deviations."
        )
    found = read_rows(data, stored.run.data, columns, None, data_dir)
    if found.y is None or np.isnan(found.X[:rows]).any():
        raise DataError(f"{data} must hold the class of every row, and no missing value.")
    unknown = np.flatnonzero(~np.isin(found.y[:rows], preparation.classes))
    if len(unknown):
        raise DataError(
            f"{data} must hold classes that the network was trained on. Got {found.y[unknown[0]]!s} in row "
            f"{unknown[0]} instead, which it can never answer: leave such rows out."
        )
    labels = np.searchsorted(preparation.classes, found.y[:rows])
    scale = _brightest(load(data, data_dir)) if is_named(data) else 1.0
    X = torch.from_numpy(np.asarray(found.X[:rows], dtype=np.float64) / scale)
    y = torch.from_numpy(labels.astype(np.int64))
    if len(preparation.classes) == 2 and preparation.outputs == 1:
        y = 2 * y - 1
    names = tuple(map(str, preparation.classes.tolist()))
    prepare = RowSets(preparation, scale)
    return VerifyTask(stored.fitted.model, X, y, names, shape, prepare=prepare, **common)


def _part_of(task: VerifyTask, part: tuple[str, str, slice]) -> dict[str, Any]:
    kind, far, rows = part
    return task.part(float(far), rows) if kind == "epsilons" else task.radii(float(far), rows)


def _box(box: tuple[float, float] | str | None, image: bool) -> tuple[float, float] | None:
    if isinstance(box, str):
        return (0.0, 1.0) if image else None
    return box


def _brightest(data: Dataset) -> float:
    """The largest pixel of images that are stored as bytes; 1 of all else."""
    return float(data.x_train.max()) if data.x_train.dtype == np.uint8 else 1.0


def as_epsilon(text: str, name: str = "--epsilon") -> float:
    """A number or a fraction such as 2/255."""
    try:
        value = float(Fraction(text))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise WrongOption(f"{name} must be a number or a fraction such as 2/255. Got {text}.") from None
    if not value >= 0:
        raise WrongOption(f"{name} must be ≥ 0. Got {text}.")
    return value


def shares(found: dict[str, Any]) -> list[dict[str, float]]:
    """For every ε, ascending: the shares of rows proved and not refuted, and the cost per row."""
    table: list[dict[str, float]] = []
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


def spread(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Of every radius asked about: for shares of the rows, how far all but these may move with a proof.

    "proved" and "refuted" hold for each share of `SHARES` the ε that this share of the rows does not exceed.
    """
    table = []
    for most, at in sorted(found["radii"].items(), key=lambda item: float(item[0])):
        N = len(at["proved"])
        proved, refuted = (
            np.array([math.inf if v is None else v for v in at[n]]) for n in ("proved", "refuted")
        )
        ends = {
            n: np.quantile(v, SHARES, method="lower").tolist()
            for n, v in (("proved", proved), ("refuted", refuted))
        }
        cost = {"parts a row": sum(at["nodes"]) / N, "seconds a row": sum(at["time"]) / N}
        table.append({"most": float(most), "rows": N, "wrong": float((refuted == 0).mean()), **ends, **cost})
    return table
