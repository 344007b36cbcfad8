"""What a training will take: its time, and the memory without which it is not begun."""

from __future__ import annotations

from dataclasses import dataclass

from .. import memory
from ..recipe import Recipe
from ..theory.shards import ranks


@dataclass(frozen=True)
class Forecast:
    """What a training will take, from the time of a few steps: seconds, and bytes beside the data."""

    seconds: float
    bytes: float


def check_memory(recipe: Recipe, rows: int, columns: int) -> None:
    """Raise a MemoryError if training would not fit into memory, before anything large is made of the
    rows.

    Of several processes each trains on its own part of them.
    """
    recipe, rows = recipe.resolved(rows), -(-rows // ranks())
    need, have = memory_needed(recipe, rows, columns), memory.available()
    if lacking := memory.shortage(need, have):
        raise MemoryError(
            f"Training on {rows} rows at width {recipe.width or columns} needs about "
            f"{lacking}. About {int(rows * 0.5 * have / need)} rows would fit."
        )


def memory_needed(recipe: Recipe, rows: int, columns: int) -> float:
    """Bytes that training needs beside the raw rows.

    With every row at each step: about a dozen equilibria and adjoints, (N, m) each. In batches: the inputs,
    each row's last equilibrium, features of a checkpoint while they fit, and a few matrices (m, m).
    """
    width = recipe.built.numbers(recipe.width, columns)
    if recipe.path == "safeguarded":
        return 8.0 * rows * width * 12
    size = 4.0 if recipe.dtype == "float32" else 8.0
    return size * rows * (2 * columns + width) + min(8.0 * rows * width, 2**28) + 80.0 * width * width
