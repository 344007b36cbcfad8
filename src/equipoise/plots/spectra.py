"""Eigenvalues and singular values, largest first, on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from .curves import Line, Panel, Series, panels
from .style import LIGHT, Theme

ROUNDING = 1e-12  # share of the largest value below which a value counts as 0


def spectrum(
    values: Mapping[str, ArrayLike | tuple[ArrayLike, ArrayLike]],
    *,
    y: str = "eigenvalue",
    x: str = "rank",
    title: str = "",
    levels: Mapping[str, float] | None = None,
    theme: Theme = LIGHT,
) -> Figure:
    """Each spectrum over its rank 1, 2, …, sorted; or (ranks, values) of one that was thinned.

    What is within rounding of 0 (lost rank) is left out. `levels` are horizontal lines, such as the
    norm 1 of a contraction.
    """
    lines: dict[str, Series | Line | None] = {}
    for name, some in values.items():
        if isinstance(some, tuple):
            ranks, ordered = (np.asarray(part, dtype=float) for part in some)
        else:
            ordered = np.sort(np.asarray(some, dtype=float).ravel())[::-1]
            ranks = np.arange(1.0, len(ordered) + 1)
        rounding = ROUNDING * np.nanmax(ordered, initial=0)
        lines[name] = (ranks, np.where(ordered > rounding, ordered, np.nan))
    return panels(Panel(lines, x, y, title, log_y=True, levels=levels), theme=theme)
