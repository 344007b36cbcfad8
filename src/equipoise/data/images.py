"""A folder of images, with a sub-folder for each class."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from equipoise.data.dataset import Array
from equipoise.data.errors import DataError, optional, refuse, require_memory
from equipoise.data.kinds import Targets
from equipoise.data.validate import Table

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def read_image_folder(
    path: Path, labelled: bool, choose: Callable[[Targets, int], Array] | None = None
) -> Table:
    """`path/<class>/<image>`, or without labels any images below `path`; all of one size, grey or RGB.

    Rows are in the order of the file names. Hidden files are passed over; any other file that is not an image
    is an error, as is an image that must be converted first. `choose` is that of `read_table`.
    """
    optional("PIL.Image", "reading images")
    problems: list[str] = []
    files: dict[str, Path] = {}  # relative name: path
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.is_dir() or any(part.startswith(".") for part in name.split("/")):
            continue
        if labelled and name.count("/") != 1:
            problems.append(f"{name} must lie in the sub-folder of its class, {path.name}/<class>/")
        else:
            files[name] = file
    if choose is not None and files and not problems:
        files = _chosen(files, choose)
    images: dict[str, Array] = {}
    shape = None
    for name, file in files.items():
        try:
            images[name] = pixels_of(file, shape)
        except DataError as error:
            problems.append(f"{name} {error}")
            continue
        if shape is None:
            shape = images[name].shape
            require_memory(9 * len(files) * images[name].size, f"{path.name}, {len(files)} images,")
    if not images:
        problems.append(f"no image found as {path.name}/{'<class>/' if labelled else ''}<image>")
    if problems:
        raise refuse(path.name, problems)
    X = np.stack(list(images.values())).astype(np.float64)  # (N, H, W) or (N, H, W, 3)
    folders = [name.split("/")[0] for name in images]
    classes = tuple(sorted(set(folders))) if labelled else ()
    return Table(
        X=X.reshape(len(X), -1),
        y=np.array([classes.index(folder) for folder in folders], dtype=np.int64) if labelled else None,
        features=tuple(f"x{j}" for j in range(X[0].size)),
        target="folder" if labelled else None,
        kind="classification" if labelled else None,
        classes=classes,
        source=path.name,
        places=tuple(f"image {name}" for name in images),
        image_shape=X.shape[1:],
    )


def _chosen(files: dict[str, Path], choose: Callable[[Targets, int], Array]) -> dict[str, Path]:
    """The files that are wanted of all; the first says how many pixels an image has."""
    folders = [name.split("/")[0] for name in files]
    classes = tuple(sorted(set(folders)))
    y = np.array([classes.index(folder) for folder in folders], dtype=np.int64)
    try:
        columns = pixels_of(next(iter(files.values())), None).size
    except DataError as error:
        raise DataError(f"{next(iter(files))} {error}") from error
    wanted = choose(Targets(y, classes, "classification", {}), columns)
    names = list(files)
    return {names[i]: files[names[i]] for i in wanted.tolist()}


def pixels_of(file: Path, shape: tuple[int, ...] | None) -> Array:
    """H × W or H × W × 3, uint8; `shape` is that of the images before it."""
    if file.suffix.lower() not in SUFFIXES:
        raise DataError(f"is not an image ({', '.join(SUFFIXES)})")
    mode, pixels = opened(file)
    if mode not in ("L", "RGB"):
        raise DataError(f"has the mode {mode}: convert it to grey (L) or RGB")
    if shape is not None and pixels.shape != shape:
        raise DataError(f"is {sides(pixels.shape)}; the images before it are {sides(shape)}")
    return pixels


def opened(file: Path) -> tuple[str, Array]:
    """The mode of an image file as Pillow names it, and its pixels."""
    Image = optional("PIL.Image", "reading images")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow only warns of a decompression bomb
            with Image.open(file) as image:
                return image.mode, np.array(image)
    except Exception as error:  # Pillow raises many kinds for a malformed file
        raise DataError(f"cannot be read: {error}") from error


def sides(shape: tuple[int, ...]) -> str:
    """The sides of an image in words."""
    return " × ".join(map(str, shape))
