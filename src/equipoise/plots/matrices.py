"""Confusion matrices: true classes in rows, predicted ones in columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from ..plain import plain
from .plane import shorten
from .style import LIGHT, SMALL, Theme, label, single, write

_STRONGEST = 0.55  # the largest opacity of a cell, on which numbers stay readable
_MOST_NUMBERS = 16  # classes beyond which the cells are too small for numbers


def confusion(counts: ArrayLike, names: Sequence[str], *, title: str = "", theme: Theme = LIGHT) -> Figure:
    """Counts (C, C), each cell shaded by its share of its row.

    Right answers have the first colour, wrong ones the second.
    """
    table = np.asarray(counts)
    C = len(names)
    if table.shape != (C, C):
        raise ValueError(f"counts must be ({C}, {C}) like the names. Got shape {table.shape} instead.")
    figure, ax = single(theme, height=4.6 if C > 2 else 3.6)
    share = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    for i, j in np.ndindex(C, C):
        if table[i, j]:
            colour = theme.colour(0 if i == j else 1)
            strength = _STRONGEST * (0.15 + 0.85 * float(share[i, j]))
            ax.add_patch(Rectangle((j, i), 1, 1, facecolor=colour, alpha=strength, linewidth=0))
            if C <= _MOST_NUMBERS:
                write(ax, j + 0.5, i + 0.5, f"{table[i, j]}", theme.ink, min(SMALL, 60 / C + 4))
    ax.set(xlim=(0, C), ylim=(C, 0), aspect="equal")
    ax.grid(False)
    ax.spines[["left", "bottom"]].set_visible(False)
    every = max(1, -(-C // 24))
    words = [shorten(plain(name), 12) for name in names]
    at = np.arange(0, C, every)
    long = max(len(word) for word in words) > max(2, 40 // C)
    ax.set_xticks(at + 0.5, [words[i] for i in at], rotation=90 if long else 0, parse_math=False)
    ax.set_yticks(at + 0.5, [words[i] for i in at], parse_math=False)
    ax.tick_params(length=0)
    label(ax, "predicted class", "true class", title)
    return figure
