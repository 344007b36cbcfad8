"""An array in a .npy file that is filled part by part, and continued after the process was killed.

While parts are missing the file is called NAME.npy.filling, and NAME.npy once it is whole. NAME.npy.json says
what the array is of and which parts are done. A part is on the disk before it is recorded as done.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .files import make_directory, read_json, sync, write_atomically
from .memory import amount


class Filling:
    """An array of this shape and dtype at `path`, in `parts` parts; `identity` says what it is of, as JSON.

    An array of the same identity that is there already is continued; one of another identity is refused.
    """

    def __init__(
        self, path: str | Path, shape: tuple[int, ...], dtype: Any, parts: int, identity: Mapping[str, Any]
    ) -> None:
        self.path, self.parts = Path(path), parts
        if self.path.suffix != ".npy":
            raise ValueError(f"the file of an array must end in .npy. Got {self.path.name} instead.")
        self._part = self.path.with_name(f"{self.path.name}.filling")
        self._record = self.path.with_name(f"{self.path.name}.json")
        self._about = {"shape": list(shape), "dtype": np.dtype(dtype).str, "parts": parts, **identity}
        self.done: set[int] = set()
        if not self._known():
            self._begin(shape, np.dtype(dtype))

    def _known(self) -> bool:
        """Whether there is an array to continue."""
        if not self._record.exists():
            if self.path.exists():
                raise FileExistsError(
                    f"{self.path} exists, and no record says what it is of: name another file, or remove it."
                )
            return False
        found = read_json(self._record)
        names = {*found.get("about", {}), *self._about}
        other = sorted(n for n in names if found.get("about", {}).get(n) != self._about.get(n))
        if other:
            raise FileExistsError(
                f"{self.path} was begun for something else: it differs in {', '.join(other)}. Name another "
                f"file, or remove it and {self._record.name}."
            )
        self.done = set(range(self.parts)) if self.path.exists() else set(found["done"])
        return self.path.exists() or self._part.exists()

    def _begin(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        make_directory(self.path.parent)
        need, free = (
            int(np.prod(shape, dtype=object)) * dtype.itemsize,
            shutil.disk_usage(self.path.parent).free,
        )
        if need > free:
            raise OSError(f"{self.path} takes {amount(need)}, but only {amount(free)} are free on its disk.")
        self.done = set()
        np.lib.format.open_memmap(self._part, "w+", dtype, shape)
        with open(self._part, "r+b") as file:
            if hasattr(os, "posix_fallocate"):  # so that a full disk is an error here, and no crash later
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        self._write()

    def _write(self) -> None:
        write_atomically(self._record, json.dumps({"about": self._about, "done": sorted(self.done)}).encode())

    def put(self, number: int, *places: tuple[Any, Any]) -> None:
        """Store a part: pairs of an index of the array and its values. The map is closed again at once."""
        array = np.load(self._part, mmap_mode="r+")
        for at, values in places:
            array[at] = values
        array.flush()
        self.done.add(number)
        self._write()

    def left(self) -> list[int]:
        """The numbers of the parts that are still to come."""
        return [number for number in range(self.parts) if number not in self.done]

    def finish(self) -> np.ndarray:
        """The whole array, mapped into memory so that a change of it does not reach the file."""
        if left := self.left():
            raise ValueError(f"{len(left)} of {self.parts} parts of {self.path} are not there yet.")
        if not self.path.exists():
            os.replace(self._part, self.path)
            sync(self.path.parent)
        return np.load(self.path, mmap_mode="c")

    def remove(self) -> None:
        """Remove the array and its record, once its content is stored elsewhere."""
        for path in (self.path, self._part, self._record):
            path.unlink(missing_ok=True)
