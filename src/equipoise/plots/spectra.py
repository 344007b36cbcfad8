"""Eigenvalues and singular values, largest first, on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from .curves import draw, finish
from .style import LIGHT, Theme, single

ROUNDING = 1e-12  # of the largest value: what is below is lost rank


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
    figure, ax = single(theme)
    for at, (name, some) in enumerate(values.items()):
        if isinstance(some, tuple):
            ranks, ordered = (np.asarray(part, dtype=float) for part in some)
        else:
            ordered = np.sort(np.asarray(some, dtype=float).ravel())[::-1]
            ranks = np.arange(1.0, len(ordered) + 1)
        rounding = ROUNDING * np.nanmax(ordered, initial=0)
        draw(ax, (ranks, np.where(ordered > rounding, ordered, np.nan)), name, at=at, theme=theme, log=True)
    for name, level in (levels or {}).items():
        ax.axhline(level, color=theme.soft, linestyle=(0, (1, 1.4)), linewidth=1.2, label=name)
    return finish(figure, ax, x=x, y=y, title=title, log_y=True, theme=theme)
