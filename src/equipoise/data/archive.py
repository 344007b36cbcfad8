"""An .npz file: what it claims to hold is read and checked first, then only the rows that are wanted."""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from equipoise.data.dataset import Array
from equipoise.data.errors import DataError, require_memory
from equipoise.data.file_rows import Mapped
from equipoise.memory import room
from equipoise.plain import hidden

_PIECE = 1 << 22  # bytes read at a time
_LOCAL = 30  # bytes of the header before a member of a zip


class Header(NamedTuple):
    """What a member says of its array before the numbers begin."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        """The length of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name, read without pickle: arrays of objects are refused unread."""
    headers = read_headers(path)
    require_memory(sum(header.bytes for header in headers.values()), path.name)
    return {name: read_member(path, name, header) for name, header in headers.items()}


def read_headers(path: Path) -> dict[str, Header]:
    """The shape and type of each array by name; nothing as large as an array is read.

    A member must be called `<name>.npy`, by a name that no program could take for a path, and be as long as
    its shape says.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found: dict[str, Header] = {}
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if name == info.filename:
                    raise DataError(f"its member {name!r} is not an array: their names end in .npy")
                if why := unsafe(name):
                    raise DataError(f"the name of its array {name!r} {why}")
                if name in found:
                    raise DataError(f"two of its arrays are called {name!r}")
                with archive.open(info) as stream:
                    found[name] = header = _header(stream)
                    if info.file_size != stream.tell() + header.bytes:
                        raise DataError(f"{name} claims the shape {header.shape} and has another length")
            return found
    except Exception as error:  # a damaged zip raises many kinds
        raise _not_plain(path, error) from error


def _header(stream: IO[bytes]) -> Header:
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise DataError(f"an array is of format {version}, and only 1.0 and 2.0 can be read")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    header = Header(*read(stream))
    if header.dtype.hasobject:
        raise DataError("it holds objects, which are never unpickled")
    return header


def read_member(path: Path, name: str, header: Header, rows: Array | None = None, dtype: Any = None) -> Array:
    """The array `name`, or those of its rows that `rows` lists (ascending), read piece by piece.

    A large one lies in a file that is mapped into memory; its numbers are of `dtype`, or of their own.
    """
    count = header.shape[0] if header.shape else 1
    rows = np.arange(count) if rows is None else rows
    width = math.prod(header.shape[1:])
    out = room((len(rows), width), dtype or header.dtype)
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as stream:
            _header(stream)
            if header.fortran:  # one column after another
                for column in np.arange(width).reshape(header.shape[1:]).ravel(order="F"):
                    out[:, column] = _piece(stream, header.dtype, count)[rows]
            else:
                size = max(1, _PIECE // max(1, width * header.dtype.itemsize))
                for start in range(0, count, size):
                    stop = min(start + size, count)
                    piece = _piece(stream, header.dtype, (stop - start) * width).reshape(stop - start, width)
                    low, high = np.searchsorted(rows, (start, stop))
                    out[low:high] = piece[rows[low:high] - start]
            stream.read(1)  # at the end the checksum is compared
    except Exception as error:
        raise _not_plain(path, error) from error
    return out.reshape(len(rows), *header.shape[1:]) if header.shape else out.reshape(())


def mapped(path: Path, name: str, header: Header) -> Mapped | None:
    """Where the rows of an array lie in the file; None for one that is compressed or laid out by columns."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        info = archive.getinfo(f"{name}.npy")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or header.fortran:
            return None
        file.seek(info.header_offset)
        local = file.read(_LOCAL)  # the header of the member itself, which ends with the sizes of two texts
        file.seek(sum(int.from_bytes(local[at : at + 2], "little") for at in (26, 28)), os.SEEK_CUR)
        if local[:4] != b"PK\x03\x04" or _header(file) != header:
            raise DataError(f"{path.name} is not an .npz of plain arrays: {name} lies elsewhere than it says")
        shape = header.shape[0], math.prod(header.shape[1:])
        return Mapped(path.resolve(), file.tell(), shape, header.dtype)


def _piece(stream: IO[bytes], dtype: np.dtype, count: int) -> Array:
    data = stream.read(count * dtype.itemsize)
    if len(data) < count * dtype.itemsize:
        raise DataError("it ends inside an array")
    return np.frombuffer(data, dtype, count) if dtype.itemsize else np.empty(count, dtype)


def _not_plain(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} is not an .npz of plain arrays: {error}")


def unsafe(name: str) -> str | None:
    """Why a member must not have this name, which programs extract it by; None for a safe one."""
    if any(hidden(c) for c in name):
        return "holds a control character"
    parts = name.split("/")
    if "\\" in name or not all(parts) or {".", ".."} & set(parts) or parts[0][1:2] == ":":
        return "is a path that may lead out of a directory"
    return None


def safe_name(name: str) -> str:
    """A name that a member may have: characters that file names cannot hold, and %, are written as in %2F."""
    quoted = lambda c: "".join(f"%{byte:02X}" for byte in c.encode("utf-8", "surrogatepass"))
    dot = quoted(".") if name.startswith(".") else ""  # such a file would be hidden, or lead upwards
    rest = name.removeprefix(".") if dot else name
    return dot + "".join(quoted(c) if c in '%/\\:*?"<>|' or hidden(c) else c for c in rest)
