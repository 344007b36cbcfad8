"""x̃ = ((x − mean)/deviation, 1): how raw rows become the network's inputs, and its outputs their answers.

For a convolutional network x̃ = (x − mean)/deviation are images, (N, channels, height, width), without the 1.

The last column is constant, so that no bias is needed: the networks are homogeneous in x̃, z(c x̃) = c z(x̃)
for c > 0. A row of weight w is therefore the row (√w x̃, √w y): the square loss of these rows is the weighted
one, exactly, and whatever is proved of them is proved of it. A row that occurs twice is one row of weight 2.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch
from torch import Tensor, nn

from ..data.encoding import Encoding
from ..data.errors import DataError
from ..data.file_rows import FileRows
from ..files import Damaged, in_fixed_order, write_atomically
from ..memory import room, spans
from ..recipe import Inputs, Kind
from .arrays import LABELS, Array, as_rows, channels_first, moments, refuse_nonfinite

_FORMATS = (  # for plain numbers, for encoded columns, and for images
    "equipoise.preparation.1",
    "equipoise.preparation.2",
    "equipoise.preparation.3",
)


@dataclass(frozen=True, eq=False)
class Preparation:
    """How raw rows become the network's inputs and targets, and its outputs answers.

    Raw rows are numbers, or what `encoding` makes numbers of: the matrix of a table with words, dates and
    missing values, or a data frame.

    Targets that are numbers are standardised by column. Classes become `high` where a row is of the class and
    `low` where it is not, in one column for two classes (for the second one) or in one column for each class.
    """

    mean: Array  # (d,) of the columns, after they are encoded
    scale: Array  # (d,) 1/deviation, 0 for a constant column: it says nothing, whatever it is later
    target_mean: Array  # (k,), of numbers
    target_scale: Array  # (k,), their deviation
    classes: Array | None  # (C,) sorted labels; None for numbers
    outputs: int  # columns of the network's outputs
    flat: bool  # whether the targets came as (N,) rather than (N, k)
    low: float = 0.0
    high: float = 1.0
    sharpness: float = 1.0  # p = softmax(sharpness·ŷ)
    dtype: torch.dtype = torch.float64
    encoding: Encoding | None = None
    image: tuple[int, ...] = ()  # the shape of a raw row, where the network takes images

    # -- made from data -------------------------------------------------------------------------------------

    @classmethod
    def of(
        cls,
        X: Array,
        y: Array,
        kind: Kind,
        weights: Array,
        dtype: torch.dtype = torch.float64,
        loss: str = "square",
        encoding: Encoding | None = None,
    ) -> Preparation:
        """Measured on the rows, each counted with its weight; targets are coded as the loss needs them."""
        if encoding is not None:
            X = _Encoded(X, encoding) if isinstance(X, FileRows) else encoding.transform(X)
        mean, deviation = moments(X, weights, "column", encoding.names if encoding else ())
        with np.errstate(divide="ignore"):
            scale = np.where(deviation > 0, 1 / deviation, 0.0)
        if kind == "classification":
            classes = np.unique(y)
            if len(classes) < 2:
                raise DataError(
                    f"at least two classes are required to tell apart. Got one class, {str(classes[0])!r}, "
                    f"in all {len(y)} rows."
                )
            outputs, low, high = _coding(loss, len(classes))
            none = np.zeros(0)
            made = cls(mean, scale, none, none, classes, outputs, True, low, high, dtype=dtype)
            return replace(made, encoding=encoding)
        columns = y.reshape(len(y), -1).astype(np.float64)
        t_mean, t_scale = moments(columns, weights, "target")
        t_scale = np.where(t_scale > 0, t_scale, 1.0)
        flat = y.ndim == 1
        return cls(mean, scale, t_mean, t_scale, None, columns.shape[1], flat, dtype=dtype, encoding=encoding)

    def in_one_unit(self) -> Preparation:
        """The same with one mean and one deviation for all columns, as images have.

        So a pixel that hardly varies is not scaled up to vary as much as the others.
        """
        if not len(self.mean) or not self.scale.any():
            return self
        variance = np.divide(1.0, self.scale, where=self.scale > 0, out=np.zeros_like(self.scale)) ** 2
        mean = self.mean.mean()
        deviation = np.sqrt(np.mean(variance + (self.mean - mean) ** 2))
        return replace(
            self, mean=np.full_like(self.mean, mean), scale=np.full_like(self.scale, 1 / deviation)
        )

    # -- applied --------------------------------------------------------------------------------------------

    def of_images(self, shape: tuple[int, ...]) -> Preparation:
        """The same for a network that takes images, of raw rows of this shape."""
        channels_first(torch.empty(0, *shape))
        return replace(self.in_one_unit(), image=shape)

    @property
    def inputs(self) -> Inputs:
        """Columns of the network's inputs, or (channels, height, width) of its images."""
        if not self.image:
            return len(self.mean) + 1
        channels, height, width = channels_first(torch.empty(0, *self.image)).shape[1:]
        return channels, height, width

    def apply(self, X: Any) -> Tensor:
        """x̃, (N, d + 1), or images (N, channels, height, width)."""
        rows = X if isinstance(X, FileRows) else as_rows(X, self.encoding)  # those were looked at before
        columns = len(self.mean) if self.encoding is None else len(self.encoding.columns)
        if rows.shape[1] != columns:
            raise DataError(f"rows must have {columns} columns, as in training. Got {rows.shape[1]} instead.")
        width = len(self.mean) + (not self.image)
        found = torch.from_numpy(room((len(rows), width), str(self.dtype).removeprefix("torch.")))
        for span in spans(len(rows), width):
            part = rows[span] if self.encoding is None else self.encoding.transform(rows[span])
            with np.errstate(over="ignore"):
                part = (part - self.mean) * self.scale
            refuse_nonfinite(part, "is too far from the training data to be represented", first=span.start)
            found[span, : len(self.mean)] = torch.from_numpy(part).to(self.dtype)
            found[span, len(self.mean) :] = 1
        return self.shaped(found)

    def shaped(self, rows: Tensor) -> Tensor:
        """Rows of pixels as the images that the network takes; other rows as they are."""
        return channels_first(rows.reshape(len(rows), *self.image)) if self.image else rows

    def targets(self, y: Any) -> Tensor:
        """What the network is to put out, (N,) for one output and else (N, k)."""
        y = np.asarray(y)
        if self.classes is None:
            columns = y.reshape(len(y), -1).astype(np.float64)
            if columns.shape[1] != len(self.target_mean):
                raise DataError(
                    f"targets must have {len(self.target_mean)} columns. Got {columns.shape[1]} instead."
                )
            coded = (columns - self.target_mean) / self.target_scale
        else:
            at = np.searchsorted(self.classes, y).clip(max=len(self.classes) - 1)
            if len(unknown := np.flatnonzero(self.classes[at] != y)):
                known = ", ".join(map(str, self.classes[:10])) + (" …" if len(self.classes) > 10 else "")
                raise DataError(
                    f"labels must be among those trained on ({known}). Got {str(y[unknown[0]])!r} in row "
                    f"{unknown[0]} instead."
                )
            own = at[:, None] == (np.ones(1) if self.outputs == 1 else np.arange(self.outputs))
            coded = np.where(own, self.high, self.low)
        coded = coded[:, 0] if self.outputs == 1 else coded
        return torch.tensor(coded, dtype=self.dtype)

    def answers(self, outputs: Tensor) -> Array:
        """Numbers in the units of the targets, or labels."""
        found = outputs.detach().cpu().double().reshape(len(outputs), self.outputs).numpy()
        if self.classes is None:
            found = found * self.target_scale + self.target_mean
            return found[:, 0] if self.flat else found
        at = (found[:, 0] > 0).astype(int) if self.outputs == 1 else found.argmax(axis=1)
        return self.classes[at]

    def probabilities(self, outputs: Tensor) -> Array:
        """softmax(sharpness·ŷ), (N, C); for two classes the logistic function of sharpness·ŷ."""
        if self.classes is None:
            raise DataError("probabilities are those of classes, and the targets are numbers.")
        sharp = self.sharpness * outputs.detach().cpu().double().reshape(len(outputs), self.outputs)
        return _shares(sharp).numpy()

    def around(self, network: nn.Module) -> nn.Module:
        """A network and its preparation as one module, for export: raw rows in, answers out.

        It takes the matrix (N, d) in float64 that a table is read as: numbers as they are, NaN where a value
        is missing, a category as the place of its word among the levels of `encoding.columns` (−1 for
        another word), a date as days since 1970. It gives numbers in the units of the targets, or the
        probability of each class. Turning words and dates into these numbers is left to its caller.
        """
        return _Around(self, network)

    # -- to and from a file ---------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """One safetensors file: whole, or not at all."""
        tensors = {n: np.ascontiguousarray(getattr(self, n)) for n in _ARRAYS}
        tensors["low, high, sharpness"] = np.array([self.low, self.high, self.sharpness])
        labels = None
        if self.classes is not None:
            labels = {"labels": self.classes.tolist(), "kind": self.classes.dtype.kind}
        about = {
            "format": _FORMATS[2 if self.image else self.encoding is not None],
            "classes": json.dumps(labels),
            "outputs": json.dumps(self.outputs),
            "flat": json.dumps(self.flat),
            "dtype": str(self.dtype).removeprefix("torch."),
        }
        if self.encoding is not None:
            about["encoding"] = json.dumps(self.encoding.to_dict(), allow_nan=False)
        if self.image:
            about["image"] = json.dumps(self.image)
        write_atomically(path, in_fixed_order(safetensors.numpy.save(tensors, about)))

    @classmethod
    def load(cls, path: str | Path) -> Preparation:
        """What `save` wrote."""
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                about: Mapping[str, str] = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in list(file.keys())}
        except safetensors.SafetensorError as error:
            raise Damaged(f"{path} is not a safetensors file: {error}") from None
        if about.get("format") not in _FORMATS:
            known = " or ".join(map(repr, _FORMATS))
            raise ValueError(f"{path} must be of format {known}. Got {about.get('format')!r} instead.")
        try:
            labels = json.loads(about["classes"])
            classes = None if labels is None else np.array(labels["labels"], dtype=LABELS[labels["kind"]])
            low, high, sharpness = arrays.pop("low, high, sharpness").tolist()
            encoding = None
            if about["format"] == _FORMATS[1] or "encoding" in about:
                encoding = Encoding.from_dict(json.loads(about["encoding"]))
            found = cls(
                **arrays,
                classes=classes,
                outputs=json.loads(about["outputs"]),
                flat=json.loads(about["flat"]),
                low=low,
                high=high,
                sharpness=sharpness,
                dtype=_DTYPES[about["dtype"]],
                encoding=encoding,
                image=tuple(json.loads(about["image"])) if about["format"] == _FORMATS[2] else (),
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise Damaged(f"{path} is damaged: its metadata cannot be used ({error!r})") from None
        if found._misfits():
            raise Damaged(f"{path} is damaged: {found._misfits()}")
        return found

    def _misfits(self) -> str:
        """What does not go together in it, or nothing."""
        columns, targets, classes = self.mean.shape, self.target_mean.shape, self.classes
        if self.scale.shape != columns or len(columns) != 1 or self.target_scale.shape != targets:
            return "means and scales are not of the same columns"
        if self.encoding is not None and columns != (len(self.encoding.names),):
            return f"{len(self.encoding.names)} encoded columns have means of shape {columns}"
        if self.image and not (
            all(type(n) is int and n > 0 for n in self.image)
            and len(self.image) in (2, 3)
            and math.prod(self.image) == len(self.mean)
        ):
            return f"images of {self.image} have means of shape {columns}"
        if type(self.flat) is not bool or type(self.outputs) is not int or self.outputs < 1:
            return f"{self.outputs!r} outputs (flat: {self.flat!r}) are not a count of columns"
        if classes is None and targets != (self.outputs,):
            return f"{self.outputs} outputs have target means of shape {targets}"
        if classes is not None and (
            classes.ndim != 1 or self.outputs not in ({1, 2} if len(classes) == 2 else {len(classes)})
        ):
            return f"{self.outputs} outputs cannot tell {classes.size} classes apart"
        return ""


class Prepared:
    """The inputs that a network gets of rows in a file, which are prepared as they are read."""

    def __init__(self, X: FileRows, preparation: Preparation) -> None:
        self.X, self.preparation = X, preparation

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, at: Any) -> Array:
        return self.preparation.apply(self.X[at]).numpy()


class _Encoded:
    """Rows in a file with their columns encoded, piece by piece."""

    def __init__(self, X: FileRows, encoding: Encoding) -> None:
        self.X, self.encoding = X, encoding
        self.shape = len(X), len(encoding.names)

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, at: Any) -> Array:
        found = self.encoding.transform(np.atleast_2d(self.X[at]))
        return found if isinstance(at, slice) else found[0]


class _Around(nn.Module):
    mean: Tensor
    scale: Tensor
    target_mean: Tensor
    target_scale: Tensor

    def __init__(self, preparation: Preparation, network: nn.Module) -> None:
        super().__init__()
        self.preparation, self.network = preparation, network
        for name in _ARRAYS:
            self.register_buffer(name, torch.from_numpy(getattr(preparation, name).astype(np.float64)))

    def forward(self, x: Tensor) -> Tensor:
        made = self.preparation
        x = x if made.encoding is None else made.encoding(x)
        x = (x - self.mean) * self.scale
        x = made.shaped(x) if made.image else torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
        found = self.network(x.to(made.dtype)).to(x.dtype).reshape(-1, made.outputs)
        if made.classes is None:
            return found * self.target_scale + self.target_mean
        return _shares(made.sharpness * found)


def _shares(sharp: Tensor) -> Tensor:
    """The probability of each class, (N, C), of outputs (N, C), or (N, 1) for the second of two classes."""
    if sharp.shape[1] == 1:
        sharp = torch.cat([torch.zeros_like(sharp), sharp], dim=1)
    return sharp.softmax(dim=1)


_ARRAYS = ("mean", "scale", "target_mean", "target_scale")
_DTYPES = {"float64": torch.float64, "float32": torch.float32}


def _coding(loss: str, classes: int) -> tuple[int, float, float]:
    """Columns of the targets, and what they hold: low and high."""
    if loss == "cross_entropy":
        return classes, 0.0, 1.0
    columns = 1 if classes == 2 else classes
    if loss == "logistic":
        return columns, 0.0, 1.0
    if loss in ("square", "half_square") and columns > 1:
        return columns, -1 / classes, 1 - 1 / classes
    return columns, -1.0, 1.0
