"""A trained network that another training begins from: what it must agree with, and its place in a new run.

How rows are prepared and what the columns hold stays as it is; only weights are trained. The new run keeps a
copy of network and preparation, named in its config.toml by SHA-256, so that it does not need the first run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from ..data.columns import Column
from ..data.errors import DataError
from ..files import Damaged, sha256
from ..models.base import EquilibriumModel
from ..models.saving import load as load_model
from ..recipe import NETWORK, Kind, Recipe, of_panel
from .preparation import Preparation

FILES = ("origin.safetensors", "origin_preparation.safetensors")
SLOWER = 0.2  # the rate of a network that has learned already, as a share of its first rate
_KEPT = tuple(name for name in of_panel(NETWORK) if name not in ("class_weight", "seed"))


@dataclass(frozen=True, eq=False)
class Origin:
    """The network to begin from and its preparation."""

    model: EquilibriumModel
    preparation: Preparation

    def continued(self, recipe: Recipe, first: Recipe) -> Recipe:
        """The recipe with the network of the `first` one, and a fifth of its rate where none is given."""
        if recipe.path == "safeguarded":
            raise ValueError(
                "a trained network is trained further by theorem anchored or without one. Got safeguarded."
            )
        known = {name: getattr(first, name) for name in _KEPT} | {"loss": first.loss or "half_square"}
        for name, value in known.items():
            given = getattr(recipe, name)
            if given not in (None, "auto", value):
                raise ValueError(
                    f"{name} is that of the network to begin from, {value}. Got {given} instead."
                )
        rate = recipe.rate or SLOWER * (first.rate or 5e-3)
        return replace(recipe, **known, rate=rate)

    def check(self, columns: int, kind: Kind, image: Sequence[int]) -> None:
        """Check that new rows are of the kind and shape that the network knows, with a DataError if not."""
        made = self.preparation
        own = "regression" if made.classes is None else "classification"
        if kind != own:
            raise DataError(f"new rows must be of the kind trained on, {own}. Got {kind} instead.")
        width = len(made.mean) if made.encoding is None else len(made.encoding.columns)
        if columns != width or (made.image and tuple(image) != made.image):
            was = " × ".join(map(str, made.image)) if made.image else f"{width} columns"
            now = " × ".join(map(str, image)) if made.image and image else f"{columns} columns"
            raise DataError(f"new rows must be like those trained on, {was}. Got {now} instead.")

    # -- in a run -------------------------------------------------------------------------------------------

    def save(self, directory: Path) -> dict[str, str]:
        """Copy both into a run, and return their digests."""
        self.model.save(directory / FILES[0])
        self.preparation.save(directory / FILES[1])
        return {name: sha256(directory / name) for name in FILES}

    def digests(self) -> dict[str, str]:
        """The digests that `save` would return."""
        with TemporaryDirectory() as directory:
            return self.save(Path(directory))

    @classmethod
    def load(cls, directory: Path, digests: Mapping[str, Any]) -> Origin:
        """What `save` copied, or a Damaged if it has changed since."""
        for name in FILES:
            if not (directory / name).exists() or sha256(directory / name) != digests.get(name):
                raise Damaged(f"{directory / name} is missing or damaged: the run began from it.")
        model = cast(EquilibriumModel, load_model(directory / FILES[0]))
        return cls(model, Preparation.load(directory / FILES[1]))

    def columns(self, features: Sequence[str] | None) -> tuple[Column, ...]:
        """What the columns of a table hold; `features` are their names where all are numbers."""
        if self.preparation.encoding is not None:
            return self.preparation.encoding.columns
        return tuple(Column(name) for name in features or ())
