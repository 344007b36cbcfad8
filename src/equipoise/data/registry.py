"""The official files, which sources.toml lists: names, SHA-256, addresses, licences, and how each is read."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from equipoise.data import formats
from equipoise.data.dataset import SEEDED_SPLIT, SourceFile, SplitArrays

DIGITS = tuple("0123456789")
DIGITS_SHA256 = "65e5b4619795efb40c1082f4c350c049e4ad552200d369b6ae99e21eef5e72c5"


@dataclass(frozen=True)
class Source:
    """One public data set: its official files, and the reader that turns them into arrays."""

    name: str
    page: str
    files: tuple[SourceFile, ...]
    licence: str
    shape: tuple[int, ...]  # of one image
    classes: tuple[str, ...]
    read: Callable[[formats.Paths], SplitArrays]
    split: str = "official"


def _source(name: str, said: dict[str, Any]) -> Source:
    return Source(
        name=name,
        page=said["page"],
        files=tuple(SourceFile(n, sha256, said["base"] + n) for n, sha256 in said["files"].items()),
        licence=said["licence"],
        shape=tuple(said["shape"]),
        classes=tuple(said.get("classes", DIGITS)),
        read=getattr(formats, said["read"]),
        split=SEEDED_SPLIT if said.get("split") == "seeded" else "official",
    )


_LISTED = tomllib.loads(files(__package__).joinpath("sources.toml").read_text(encoding="utf-8"))
SOURCES = {name: _source(name, said) for name, said in _LISTED.items()}
