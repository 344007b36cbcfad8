"""A folder of images: a sub-folder a class."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from equipoise.data.dataset import Array
from equipoise.data.errors import DataError, optional, refuse
from equipoise.data.validate import Table

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def read_image_folder(path: Path, labelled: bool) -> Table:
    """`path/<class>/<image>`, or without labels any images below `path`; all of one size, grey or RGB.

    Rows are in the order of the file names. Hidden files are passed over, any other that is no image is an
    error, as is an image that must be converted first.
    """
    optional("PIL.Image", "reading images")
    problems: list[str] = []
    images: dict[str, Array] = {}  # relative name -> pixels
    shape = None
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.is_dir() or any(part.startswith(".") for part in name.split("/")):
            continue
        try:
            if labelled and name.count("/") != 1:
                raise DataError(f"must lie in the sub-folder of its class, {path.name}/<class>/")
            images[name] = _pixels(file, shape)
            shape = images[name].shape
        except DataError as error:
            problems.append(f"{name} {error}")
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


def _pixels(file: Path, shape: tuple[int, ...] | None) -> Array:
    """H × W or H × W × 3, uint8; `shape` is that of the images before it."""
    if file.suffix.lower() not in SUFFIXES:
        raise DataError(f"is no image ({', '.join(SUFFIXES)})")
    Image = optional("PIL.Image", "reading images")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow only warns of a decompression bomb
            with Image.open(file) as image:
                mode, pixels = image.mode, np.array(image)
    except Exception as error:  # Pillow raises many kinds for a malformed file
        raise DataError(f"cannot be read: {error}") from error
    if mode not in ("L", "RGB"):
        raise DataError(f"has the mode {mode}: convert it to grey (L) or RGB")
    if shape is not None and pixels.shape != shape:
        came, required = (" × ".join(map(str, size)) for size in (pixels.shape, shape))
        raise DataError(f"is {came}; the images before it are {required}")
    return pixels
