"""Numbers as one JSON file with their figures beside it, which never show other numbers than it holds."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMATS = "svg", "png"


def publish(
    where: Path, name: str, content: Mapping[str, Any], figures: Mapping[str, Figure], kinds: Collection[str]
) -> list[Path]:
    """Write `name`.json and the figures, in place of those of any of the `kinds` that lay beside such a file.

    The figures are drawn first, in a directory of their own. Then the former ones are removed, the numbers
    replaced, and the new figures put beside them: at no moment do numbers and figures contradict each other.
    """
    from ..files import write_atomically
    from ..plots import save

    where.mkdir(parents=True, exist_ok=True)
    numbers = where / f"{name}.json"
    with TemporaryDirectory(prefix=f".{name}-", dir=where) as part:
        drawn = [f for stem, figure in figures.items() for f in save(figure, Path(part) / stem, _FORMATS)]
        if numbers.exists():
            for stem in kinds:
                for form in _FORMATS:
                    (where / f"{stem}.{form}").unlink(missing_ok=True)
        write_atomically(numbers, json.dumps(content, ensure_ascii=False, allow_nan=False).encode())
        return [numbers, *(file.replace(where / file.name) for file in drawn)]
