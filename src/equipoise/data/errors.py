"""What can be wrong with data, and how it is said: all problems at once, each with its place."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

from equipoise import memory
from equipoise.memory import shortage

SHOWN = 10  # problems listed in a message; `DataError.problems` holds them all


class DataError(ValueError):
    """Data that cannot be used as they are; `problems` lists every reason."""

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems) or (message,)


class MissingData(DataError, FileNotFoundError):
    """Data that are not here; the message says which files to put where."""

    def __str__(self) -> str:
        return str(self.args[0])


class DataWarning(UserWarning):
    """Data that can be used, but not for everything."""


def refuse(what: str, problems: Sequence[str]) -> DataError:
    """The one error that lists the first of all problems found in `what`."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = [f"  - {problem}" for problem in problems[:SHOWN]]
    if len(problems) > SHOWN:
        lines.append(f"  … and {len(problems) - SHOWN} more (DataError.problems lists all)")
    return DataError("\n".join([f"{what}: {count}", *lines]), problems)


def require_memory(need: float, what: str, advice: str = "", on_disk: bool = False) -> None:
    """A DataError, before anything is read, unless so many bytes can be had: in memory, or `on_disk`."""
    if (lacking := shortage(need)) and not (on_disk and need <= memory.disk()):
        raise DataError(f"{what} is too large to be read here: it needs {lacking}.{advice and ' '}{advice}")


def some(places: Sequence[str], shown: int = 3) -> str:
    """The first places, and how many more there are."""
    more = f" and {len(places) - shown} more" if len(places) > shown else ""
    return ", ".join(places[:shown]) + more


def some_names(names: Sequence[str]) -> str:
    """The first ten names, each in quotes, and how many more there are."""
    return some([repr(name) for name in names], 10)


def optional(module: str, purpose: str) -> ModuleType:
    """Import a dependency of the `data` extra at the moment it is needed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = {"PIL": "pillow"}.get(module.partition(".")[0], module.partition(".")[0])
        raise ImportError(
            f"{purpose} requires the package {package}, which is not installed: pip install 'equipoise[data]'"
        ) from error
