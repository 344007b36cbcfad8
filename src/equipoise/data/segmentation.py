"""Images whose every pixel has a class: digits composited on noisy canvases, or a user's images and masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from equipoise.data.dataset import Array, Provenance, SourceFile
from equipoise.data.errors import DataError, MissingData, refuse, require_memory
from equipoise.data.images import SUFFIXES, opened, pixels_of, sides
from equipoise.data.load import load
from equipoise.files import sha256

IGNORE = 255  # the mask of a pixel that is not to be judged


@dataclass(frozen=True, eq=False)
class SegmentationSet:
    """`x` are uint8 images N × H × W [× 3], `y` int64 masks N × H × W, indices into `classes` or IGNORE."""

    name: str
    x: Array = field(repr=False)
    y: Array = field(repr=False)
    classes: tuple[str, ...]
    provenance: Provenance
    places: tuple[str, ...] = field(default=(), repr=False)  # the names of the images

    def __len__(self) -> int:
        return len(self.x)


def digit_canvases(
    n: int = 1000,
    size: int = 32,
    digits: int = 2,
    noise: float = 0.25,
    part: str = "train",
    seed: int = 0,
    source: str = "digits",
) -> SegmentationSet:
    """`n` noisy grey canvases of `size` × `size` with `digits` handwritten digits each; `seed` decides all.

    A canvas is a smooth random background of grey values 0 … .35 (a bilinear 4 × 4 grid). Each digit, one of
    the `part` ("train" or "test") of `source`, is enlarged to 16 × 16 (those of `digits`, 8 × 8, by 2) or cut
    to its middle 20 × 20 (MNIST), and put at a random place, so that it may cover earlier ones; its contrast
    is uniform in [.5, 1]. White noise of standard deviation `noise` is added last, and the grey values are
    cut to [0, 1]. A pixel where a digit's ink is above ⅓ has class 1 + its label; all others have class 0.
    """
    for name, value, least in (("n", n, 1), ("size", size, 1), ("digits", digits, 0), ("seed", seed, 0)):
        if not isinstance(value, int | np.integer) or value < least:
            raise DataError(f"{name} must be an integer ≥ {least}; got {value!r}")
    if not 0 <= noise < np.inf:
        raise DataError(f"noise must be ≥ 0 and finite; got {noise!r}")
    if part not in ("train", "test"):
        raise DataError(f"part must be 'train' or 'test'; got {part!r}")
    origin = load(source)
    pixels, labels = (origin.x_train, origin.y_train) if part == "train" else (origin.x_test, origin.y_test)
    if pixels.ndim != 3:
        raise DataError(f"source must hold grey images; {source} has images of {pixels.shape[1:]}")
    ink: Array = pixels / float(pixels.max())
    ink = np.kron(ink, np.ones((1, 2, 2))) if ink.shape[1] <= 16 else ink[:, 4:-4, 4:-4]
    side = ink.shape[1]
    if size < side:
        raise DataError(f"size must be at least {side}, that of a digit of {source}; got {size}")
    rng = np.random.default_rng([seed, 0 if part == "train" else 1])
    x, y = np.empty((n, size, size)), np.zeros((n, size, size), dtype=np.int64)
    for i in range(n):
        x[i] = _smooth(0.35 * rng.random((4, 4)), size)
        for _ in range(digits):
            which, contrast = rng.integers(len(ink)), rng.uniform(0.5, 1.0)
            top, left = rng.integers(size - side + 1, size=2)
            window = np.s_[i, top : top + side, left : left + side]
            x[window] += (contrast - x[window]) * ink[which]
            y[window] = np.where(ink[which] > 1 / 3, 1 + labels[which], y[window])
    x += noise * rng.standard_normal(x.shape)
    return SegmentationSet(
        f"{source} on canvases",
        np.round(255 * x.clip(0, 1)).astype(np.uint8),
        y,
        ("background", *origin.classes),
        Provenance(
            source=f"equipoise.data.segmentation.digit_canvases(n={n}, size={size}, digits={digits}, "
            f"noise={noise}, part={part!r}, seed={seed}, source={source!r}); {origin.provenance.source}",
            files=origin.provenance.files,
            licence=origin.provenance.licence,
            split=origin.provenance.split,
            subset=origin.provenance.subset,
        ),
    )


def _smooth(grid: Array, size: int) -> Array:
    """A small grid of values, bilinear to `size` × `size`."""
    at = np.linspace(0, len(grid) - 1, size)
    low = np.minimum(at.astype(int), len(grid) - 2)
    share = at - low
    weights = np.zeros((size, len(grid)))
    weights[np.arange(size), low], weights[np.arange(size), low + 1] = 1 - share, share
    return weights @ grid @ weights.T


def read_masks_folder(path: str | Path, classes: Sequence[str] | None = None) -> SegmentationSet:
    """`path`/images/<name>.<suffix> with `path`/masks/<name>.png: grey or RGB images and masks of their size.

    A mask is a grey or palette image whose values are classes; 255 is left out of training and scores. All
    images have one size. `classes` names the values 0, 1, …, each by another name; by default they are called
    by their numbers, and some pixel must then have one.
    Hidden files are passed over; any other file that is not an image or a mask is an error.
    """
    path = Path(path)
    for folder in (path / "images", path / "masks"):
        if not folder.is_dir():
            raise MissingData(f"{folder} is not there: put the images into images/, the masks into masks/")
    problems: list[str] = []
    images = _by_stem(path / "images", SUFFIXES, problems)
    masks = _by_stem(path / "masks", (".png",), problems)
    problems += [f"images/{images[s].name} has no mask masks/{s}.png" for s in images.keys() - masks.keys()]
    problems += [f"masks/{masks[s].name} has no image" for s in masks.keys() - images.keys()]
    x: list[Array] = []
    y: list[Array] = []
    for stem in sorted(images.keys() & masks.keys()):
        try:
            x.append(pixels_of(images[stem], x[0].shape if x else None))
            y.append(_mask(masks[stem], x[-1].shape[:2]))
        except DataError as error:
            problems.append(f"{stem}: {error}")
        if len(y) == 1:  # all are as large as the first: read, and then stacked
            require_memory(
                2 * len(images) * (x[0].nbytes + y[0].nbytes), f"{path.name}, {len(images)} images,"
            )
    if not images:
        problems.append(f"no image found in {path.name}/images")
    found = max((int(m[m != IGNORE].max(initial=-1)) for m in y), default=-1)
    names = tuple(map(str, range(found + 1))) if classes is None else tuple(classes)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        problems.append(f"each of the classes must have a name of its own, and {', '.join(twice)} came twice")
    if y and found < 0 and not names:
        problems.append(f"no pixel has a class, all are {IGNORE}: name the classes by classes=…")
    elif found >= len(names):
        problems.append(f"a mask holds class {found}, and {len(names)} classes were named")
    if problems:
        raise refuse(path.name, sorted(problems))
    files = tuple(
        SourceFile(f"{f.parent.name}/{f.name}", sha256(f)) for f in (*images.values(), *masks.values())
    )
    provenance = Provenance(str(path), files, "the user's", "none")
    return SegmentationSet(path.name, np.stack(x), np.stack(y), names, provenance, tuple(sorted(images)))


def _by_stem(folder: Path, suffixes: Iterable[str], problems: list[str]) -> dict[str, Path]:
    """The files of a folder by their stems; files of the same stem, and others, are added to the problems."""
    found: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        if file.name.startswith("."):
            continue
        if file.is_dir() or file.suffix.lower() not in suffixes:
            problems.append(f"{folder.name}/{file.name} is not an image of these: {', '.join(suffixes)}")
            continue
        if file.stem in found:
            first = found[file.stem].name
            problems.append(f"{folder.name}/{first} and {folder.name}/{file.name} share a name: keep one")
        found[file.stem] = file
    return found


def _mask(file: Path, shape: tuple[int, ...]) -> Array:
    """H × W, int64."""
    try:
        mode, values = opened(file)
    except DataError as error:
        raise DataError(f"the mask {error}") from error
    if mode not in ("L", "P"):
        raise DataError(
            f"the mask has the mode {mode}: save it as grey (L) or palette (P), one value for each class"
        )
    if values.shape != shape:
        raise DataError(f"the mask is {sides(values.shape)}, the image {sides(shape)}")
    return values.astype(np.int64)
