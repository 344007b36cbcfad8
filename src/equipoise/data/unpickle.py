"""Read a pickle of uint8 arrays and builtin containers, and nothing else, without running any of it.

A pickle is a program. Here the only names it may call are the stand-ins below, which record the shape and the
bytes of an array; no object of numpy is ever built from unread state, and every other name is refused before
it is looked up.
"""

from __future__ import annotations

import pickle
from typing import IO, Any

import numpy as np

from equipoise.data.errors import DataError


class _Ndarray:
    """The name `numpy.ndarray`, which an array's pickle mentions and never calls."""

    __slots__ = ()

    def __init__(self) -> None:
        raise pickle.UnpicklingError("numpy.ndarray called")

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("numpy.ndarray given a state")


class _Dtype:
    """The name `numpy.dtype`: uint8 only, whose byte order carries no information."""

    __slots__ = ()

    def __init__(self, code: object, align: object = 0, copy: object = 1) -> None:
        if code not in (b"u1", "u1"):
            raise pickle.UnpicklingError(f"an array of dtype {code!r}; only 'u1' is read")

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple):
            raise pickle.UnpicklingError("a malformed dtype")


class _Array:
    """The name `numpy.core.multiarray._reconstruct`: an array whose state is checked, then copied."""

    __slots__ = ("value",)

    def __init__(self, subtype: object, shape: object, code: object) -> None:
        if subtype is not _Ndarray:
            raise pickle.UnpicklingError("an array of a foreign type")

    def __setstate__(self, state: tuple[object, ...]) -> None:
        _, shape, dtype, fortran, data = state
        if not (
            isinstance(shape, tuple)
            and all(type(n) is int and n >= 0 for n in shape)
            and isinstance(dtype, _Dtype)
            and isinstance(data, bytes)
        ):
            raise pickle.UnpicklingError("an array with a malformed shape, dtype or content")
        self.value = np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C").copy()


_NAMES = {
    ("numpy", "ndarray"): _Ndarray,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        """The stand-in for a name that pickles of arrays hold; any other name is refused."""
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"the name {module}.{name}; only uint8 arrays are read")
        return _NAMES[module, name]


def read_pickled_dict(stream: IO[bytes], where: str) -> dict[str, Any]:
    """The dictionary in `stream`, keys as text, arrays as numpy arrays; anything unusual is a `DataError`."""
    try:
        content = _Unpickler(stream, encoding="bytes").load()
        if type(content) is not dict:
            raise pickle.UnpicklingError(f"a {type(content).__name__} instead of a dictionary")
        return {
            key.decode("ascii") if isinstance(key, bytes) else str(key): (
                value.value if isinstance(value, _Array) else value
            )
            for key, value in content.items()
        }
    except Exception as error:  # a malformed pickle can raise nearly anything
        raise DataError(
            f"{where} is refused: not a whole pickle of containers and uint8 arrays ({error})"
        ) from error
