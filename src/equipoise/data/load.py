"""`load(name)`: a named data set, from the data directory or the network, checked by hash."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from equipoise.data.dataset import SEEDED_SPLIT, Dataset, Provenance, SourceFile, SplitArrays, seeded_split
from equipoise.data.errors import DataError, MissingData, optional
from equipoise.data.formats import read_subset
from equipoise.data.registry import DIGITS, SOURCES, Source
from equipoise.data.synthetic import SYNTHETIC
from equipoise.files import sha256

VARIABLE = "EQUIPOISE_DATA"


def load(name: str, data_dir: str | os.PathLike[str] | None = None, download: bool = True) -> Dataset:
    """The data set `name` (`available()` lists the names).

    `digits` and the `synthetic-*` sets are always here. The others are looked for in `data_dir`, or in the
    directory named by EQUIPOISE_DATA, or in the user's cache, as `<name>/<file>` or `<file>`; first the
    official files, which are refused unless their SHA-256 is the official one, then a declared subset
    `<name>.npz` or `<name>_partial.npz` (arrays x_train, y_train, x_test, y_test), whose provenance says so.
    Otherwise, with `download`, the official files are fetched into that directory.
    """
    check_name(name)
    if name == "digits":
        return _digits()
    if name in SYNTHETIC:
        return SYNTHETIC[name]()
    return load_source(SOURCES[name], data_directory(data_dir), download)


def names() -> list[str]:
    """What `load` knows by name."""
    return ["digits", *SOURCES, *SYNTHETIC]


def check_name(name: str) -> None:
    """Refuse a name that `load` does not know."""
    known = names()
    if name not in known:
        close = difflib.get_close_matches(str(name), known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise DataError(f"no data set is called {name!r}{hint or '.'} Known: {', '.join(known)}")


class Availability(NamedTuple):
    """What `load(name, download=False)` would find, and where; or what is wrong with it."""

    name: str
    found: Literal["embedded", "official", "subset", "damaged", "incomplete", "missing"]
    where: str


def available(data_dir: str | os.PathLike[str] | None = None) -> list[Availability]:
    """Every name, and whether its data are embedded, official (by hash), a subset (that can be read),
    damaged, incomplete (some official files are here) or missing."""
    directory = data_directory(data_dir)
    embedded = [Availability(name, "embedded", "") for name in ("digits", *SYNTHETIC)]
    return embedded + [_availability(source, directory) for source in SOURCES.values()]


def _availability(source: Source, directory: Path) -> Availability:
    try:
        found = find_official(source, directory)
        missing = [file.name for file in source.files if file.name not in found]
        if not missing:
            return Availability(source.name, "official", ", ".join(str(path) for path in found.values()))
        if subset := find_subset(source, directory):
            _load_subset(source, subset)
            return Availability(source.name, "subset", str(subset))
    except (DataError, OSError) as error:
        return Availability(source.name, "damaged", str(error))
    if found:
        return Availability(source.name, "incomplete", f"missing: {', '.join(missing)}")
    return Availability(source.name, "missing", str(directory))


def data_directory(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """`data_dir`, or what EQUIPOISE_DATA names, or the user's cache."""
    chosen = data_dir or os.environ.get(VARIABLE)
    if chosen:
        path = Path(chosen).expanduser()
        if path.exists() and not path.is_dir():
            raise DataError(f"the data directory must be a directory; {path} is a file")
        return path
    try:
        return Path(optional("pooch", "the platform's cache").os_cache("equipoise"))
    except ImportError:
        return Path.home() / ".cache" / "equipoise"


def load_source(source: Source, directory: Path, download: bool) -> Dataset:
    """The official files of `source` if they are all here, else a declared subset, else a download."""
    found = find_official(source, directory)
    missing = [file for file in source.files if file.name not in found]
    if missing and (subset := find_subset(source, directory)):
        return _load_subset(source, subset)
    if missing and not download:
        raise MissingData(_instructions(source, directory, missing, "download=False"))
    if missing:
        found |= _download(source, directory, missing)
    provenance = Provenance(source.page, source.files, source.licence, source.split)
    return Dataset(source.name, *source.read(found), classes=source.classes, provenance=provenance)


def find_official(source: Source, directory: Path) -> dict[str, Path]:
    """Those official files that are here, each with the right hash; a wrong file is refused."""
    found = {}
    for file in source.files:
        for path in (directory / source.name / file.name, directory / file.name):
            if not path.is_file():
                continue
            got = sha256(path)
            if got == file.sha256:
                found[file.name] = path
                break
            if path.parent == directory and _belongs_to_another(got):
                continue
            raise DataError(
                f"{path} is not the official {file.name} of {source.name}: damaged, or another file.\n"
                f"  expected sha256 {file.sha256}\n  got      sha256 {got}\n"
                f"Delete it and fetch {file.url} again."
            )
    return found


def _belongs_to_another(got: str) -> bool:
    """mnist, fashion_mnist and kmnist share file names: lying side by side, one is not a damaged other."""
    return any(got == other.sha256 for source in SOURCES.values() for other in source.files)


def find_subset(source: Source, directory: Path) -> Path | None:
    """The file of a declared subset, if there is one."""
    names = (f"{source.name}.npz", f"{source.name}_partial.npz")
    places = [folder / name for name in names for folder in (directory / source.name, directory)]
    return next((path for path in places if path.is_file()), None)


def _load_subset(source: Source, path: Path) -> Dataset:
    parts = read_subset(path, source.shape, len(source.classes))
    if not (len(parts.x_train) and len(parts.x_test)):
        got = f"{len(parts.x_train)} and {len(parts.x_test)}"
        raise DataError(f"{path} must hold images to train on and to test on. Got {got} instead.")
    provenance = Provenance(
        source=source.page,
        files=(SourceFile(path.name, sha256(path)),),
        licence=source.licence,
        split=f"as in {path.name}",
        subset=f"subset of {len(parts.x_train)} training and {len(parts.x_test)} test images "
        f"from {path.name}, not the official files",
    )
    return Dataset(source.name, *parts, classes=source.classes, provenance=provenance)


def _download(source: Source, directory: Path, missing: Sequence[SourceFile]) -> dict[str, Path]:
    """Fetch by hash; pooch writes to a temporary file and moves it into place only when the hash is right."""
    found = {}
    try:
        for file in missing:
            found[file.name] = _fetch(file, directory / source.name)
    except (ImportError, OSError, ValueError) as error:  # OSError: no answer; ValueError: a wrong hash
        missing = [file for file in missing if file.name not in found]
        raise MissingData(_instructions(source, directory, missing, str(error))) from error
    return found


def _fetch(file: SourceFile, folder: Path) -> Path:
    pooch, requests = (optional(package, "downloading") for package in ("pooch", "requests"))
    try:
        path = pooch.retrieve(
            file.url,
            known_hash=f"sha256:{file.sha256}",
            fname=file.name,
            path=folder,
            downloader=pooch.HTTPDownloader(timeout=60),
        )
    except (requests.ConnectionError, requests.Timeout) as error:  # whose own message is about sockets
        raise OSError(f"no connection to {urlsplit(file.url).hostname}") from error
    return Path(path)


def _instructions(source: Source, directory: Path, missing: Sequence[SourceFile], reason: str) -> str:
    lines = [f"  {file.name}  sha256 {file.sha256}\n    {file.url}" for file in missing]
    return "\n".join(
        [
            f"{source.name} is not in {directory} and was not downloaded ({reason}).",
            f"Put into {directory / source.name}{os.sep}:",
            *lines,
            f"or, for a part of it, {source.name}.npz with the arrays {', '.join(SplitArrays._fields)};",
            f"or name a directory that holds {source.name}{os.sep} or {source.name}.npz by data_dir= (on the "
            f"command line --data-dir) or {VARIABLE}.",
        ]
    )


def _digits() -> Dataset:
    """1797 images of 8 × 8 in 0 … 16, inside scikit-learn."""
    from sklearn.datasets import load_digits

    content = load_digits()
    images, labels = content.images.astype(np.uint8), content.target.astype(np.int64)
    digest = hashlib.sha256(images.tobytes() + labels.astype("<i8").tobytes()).hexdigest()
    provenance = Provenance(
        source="sklearn.datasets.load_digits; https://archive.ics.uci.edu/dataset/80 (test part)",
        files=(SourceFile("images as uint8, then labels as int64", digest),),
        licence="CC BY 4.0 (UCI); E. Alpaydin and C. Kaynak, 1998",
        split=SEEDED_SPLIT,
    )
    return Dataset("digits", *seeded_split(images, labels), classes=DIGITS, provenance=provenance)
