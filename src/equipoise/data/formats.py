"""The original file formats, read by code that checks every count before it believes it."""

from __future__ import annotations

import gzip
import math
import struct
import tarfile
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from equipoise.data.archive import read_npz
from equipoise.data.dataset import Array, SplitArrays, seeded_split
from equipoise.data.errors import DataError
from equipoise.data.unpickle import read_pickled_dict

LARGEST = 2**30  # bytes a single array of these data sets may claim; the largest real one is 225 MB

Paths = Mapping[str, Path]  # official file name -> where it lies


def read_idx(path: Path, ndim: int) -> Array:
    """Gzipped IDX: bytes 0, 0, 8 (uint8), ndim; ndim big-endian sizes; exactly their product of bytes."""
    try:
        with gzip.open(path, "rb") as stream:
            header = stream.read(4 + 4 * ndim)
            magic = bytes([0, 0, 8, ndim])
            if header[:4] != magic:
                raise DataError(
                    f"{path.name} must begin with the IDX magic {magic.hex()} "
                    f"(uint8, {ndim} dimensions), and begins with {header[:4].hex() or 'nothing'}"
                )
            if len(header) != 4 + 4 * ndim:
                raise DataError(f"{path.name} ends inside its header of {4 + 4 * ndim} bytes")
            shape = struct.unpack(f">{ndim}I", header[4:])
            size = math.prod(shape)
            if size > LARGEST:
                raise DataError(f"{path.name} claims the shape {shape}: more than {LARGEST} bytes")
            data = stream.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name} is not a whole gzip file: {error}") from error
    if len(data) != size:
        came = f"only {len(data)}" if len(data) < size else "more"
        raise DataError(f"{path.name} claims the shape {shape}, so {size} bytes must follow; {came} came")
    return np.frombuffer(data, np.uint8).reshape(shape).copy()


def checked(x: Array, y: Array, shape: tuple[int, ...], classes: int, where: str) -> tuple[Array, Array]:
    """Images (N, *shape) in uint8 and labels (N,) in 0 … classes−1 as int64, or a `DataError`."""
    if x.dtype != np.uint8 or x.shape[1:] != shape:
        raise DataError(
            f"{where}: images must be uint8 of shape {shape}; got {x.dtype} of shape {x.shape[1:]}"
        )
    if y.shape != (len(x),) or not np.issubdtype(y.dtype, np.integer):
        raise DataError(
            f"{where}: labels must be integers, one for each of {len(x)} images; got {y.dtype}, {y.shape}"
        )
    bad = np.flatnonzero((y < 0) | (y >= classes))
    if bad.size:
        raise DataError(f"{where}: the label of row {bad[0]} is {y[bad[0]]}; it must be in 0 … {classes - 1}")
    return x, y.astype(np.int64)


def read_idx_quartet(paths: Paths) -> SplitArrays:
    """mnist, fashion_mnist, kmnist: 28 × 28 images and labels 0-9, in four IDX files."""
    parts: list[Array] = []
    for part in ("train", "t10k"):
        x = read_idx(paths[f"{part}-images-idx3-ubyte.gz"], 3)
        y = read_idx(paths[f"{part}-labels-idx1-ubyte.gz"], 1)
        parts += checked(x, y, (28, 28), 10, part)
    return SplitArrays(*parts)


def read_svhn(paths: Paths) -> SplitArrays:
    """svhn: Matlab files with X (32, 32, 3, N) and y (N, 1), where the digit 0 is written as label 10."""
    parts: list[Array] = []
    for name in ("train_32x32.mat", "test_32x32.mat"):
        x, y = read_svhn_mat(paths[name])
        parts += checked(x, y, (32, 32, 3), 10, name)
    return SplitArrays(*parts)


def read_svhn_mat(path: Path) -> tuple[Array, Array]:
    """Images (N, 32, 32, 3) and digits (N,). scipy believes the tags inside a file: check its hash before."""
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["X", "y"])
        x, y = content["X"], content["y"]
    except Exception as error:  # scipy raises many kinds for a malformed file
        raise DataError(f"{path.name} is not a Matlab file with the variables X and y: {error}") from error
    if x.ndim != 4 or y.ndim != 2 or y.shape[1] != 1 or y.dtype != np.uint8:
        raise DataError(
            f"{path.name} must hold X (32, 32, 3, N) and y (N, 1), uint8; got {x.shape}, {y.shape}, {y.dtype}"
        )
    bad = np.flatnonzero((y < 1) | (y > 10))
    if bad.size:
        raise DataError(
            f"{path.name}: the label of row {bad[0]} is {y[bad[0], 0]}; the file's labels are 1 … 10"
        )
    return np.ascontiguousarray(x.transpose(3, 0, 1, 2)), y[:, 0] % 10


def read_cifar10(paths: Paths) -> SplitArrays:
    """cifar10: five training batches and one test batch, pickled, in one tar."""
    path = paths["cifar-10-python.tar.gz"]
    batches = [f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)]
    train = [_cifar_batch(path, name, "labels", 10) for name in batches]
    x_test, y_test = _cifar_batch(path, "cifar-10-batches-py/test_batch", "labels", 10)
    return SplitArrays(
        np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train]), x_test, y_test
    )


def read_cifar100(paths: Paths) -> SplitArrays:
    """cifar100: one training and one test batch, pickled, in one tar; the fine labels are read."""
    path = paths["cifar-100-python.tar.gz"]
    x_train, y_train = _cifar_batch(path, "cifar-100-python/train", "fine_labels", 100)
    x_test, y_test = _cifar_batch(path, "cifar-100-python/test", "fine_labels", 100)
    return SplitArrays(x_train, y_train, x_test, y_test)


def _cifar_batch(path: Path, member: str, labels: str, classes: int) -> tuple[Array, Array]:
    where = f"{path.name}:{member}"
    try:
        with tarfile.open(path, "r:gz") as archive:  # read in place: nothing is ever extracted to disk
            stream = archive.extractfile(member)
            if stream is None:
                raise DataError(f"{where} is not a regular file")
            content = read_pickled_dict(stream, where)
    except KeyError as error:
        raise DataError(f"{path.name} must hold {member}, which is not in it") from error
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name} is not a whole tar.gz file: {error}") from error
    x, y = content.get("data"), content.get(labels)
    if not isinstance(x, np.ndarray) or x.ndim != 2 or x.shape[1] != 3072:
        raise DataError(f"{where} must hold 'data', a uint8 array (N, 3072)")
    if not isinstance(y, list) or not all(type(label) is int for label in y):
        raise DataError(f"{where} must hold '{labels}', a list of integers")
    images = np.ascontiguousarray(
        x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    )  # planes R, G, B -> channels last
    return checked(images, np.array(y), (32, 32, 3), classes, where)


def read_semeion(paths: Paths) -> SplitArrays:
    """semeion: one line of text for each digit, 16 × 16 pixels 0/1 and the class one-hot."""
    path = paths["semeion.data"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy only warns of an empty file
            values = np.loadtxt(path, dtype=np.float64, ndmin=2)
    except (ValueError, UserWarning) as error:
        raise DataError(f"{path.name} must hold 266 numbers on each line: {error}") from error
    if values.shape[1] != 266 or not np.isin(values, (0, 1)).all() or (values[:, 256:].sum(1) != 1).any():
        raise DataError(
            f"each line of {path.name} must hold 256 pixels 0/1 and 10 of a one-hot class; got {values.shape}"
        )
    x = values[:, :256].reshape(-1, 16, 16).astype(np.uint8)
    return seeded_split(x, values[:, 256:].argmax(1).astype(np.int64))


def read_subset(path: Path, shape: tuple[int, ...], classes: int) -> SplitArrays:
    """A declared subset: an .npz with x_train, y_train, x_test, y_test."""
    arrays = read_npz(path)
    missing = [key for key in SplitArrays._fields if key not in arrays]
    if missing:
        raise DataError(f"{path} must hold {', '.join(SplitArrays._fields)}; missing: {', '.join(missing)}")
    return SplitArrays(
        *checked(arrays["x_train"], arrays["y_train"], shape, classes, f"{path}, training"),
        *checked(arrays["x_test"], arrays["y_test"], shape, classes, f"{path}, test"),
    )
