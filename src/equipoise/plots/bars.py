"""Bars and patches: how reliable probabilities are, and which inputs matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from ..plain import plain
from .plane import shorten
from .style import DASHES, LIGHT, SMALL, Theme, label, linear, note, scale_axis, single, write

_FAINT, _FULL = 0.06, 0.95  # the least and the largest opacity of a patch


def reliability(bins: Sequence[Mapping[str, Any]], *, title: str = "", theme: Theme = LIGHT) -> Figure:
    """For each range of probability the share that was right, beside the line where the two are equal.

    A bin has `low`, `high`, `count`, `said` and `right`; its count stands at the foot of its bar.
    """
    figure, ax = single(theme)
    for one in bins:
        low, width, right = one["low"], one["high"] - one["low"], one["right"]
        middle = low + width / 2
        ax.bar(middle, right, width=0.92 * width, color=theme.colour(0), alpha=0.45, linewidth=0)
        write(ax, middle, 0.02, f"{one['count']}", theme.ink, SMALL, va="bottom")
    ax.plot([0, 1], [0, 1], color=theme.ink, linestyle=DASHES[1], linewidth=1.2)
    lowest = min((one["low"] for one in bins), default=0.0)
    ax.set(xlim=(min(lowest, 0.5), 1.0), ylim=(0, 1.09))
    linear(ax, "probability of the answer", "share that is right", title)
    ax.set_xticks(np.arange(round(10 * min(lowest, 0.5)), 11) / 10)
    ax.set_yticks(np.arange(0, 11, 2) / 10)
    return figure


def ranked(
    values: Mapping[str, float],
    *,
    spread: Sequence[float] = (),
    x: str = "",
    title: str = "",
    theme: Theme = LIGHT,
) -> Figure:
    """Horizontal bars, the first on top; whiskers of ± `spread` where it is known."""
    figure, ax = single(theme, height=1.1 + 0.28 * max(len(values), 3))
    if not values:
        note(ax, "nothing to show", theme)
    at = np.arange(len(values))
    ax.barh(at, list(values.values()), height=0.7, color=theme.colour(0), alpha=0.75, linewidth=0)
    if len(spread) == len(values) > 0:
        ax.errorbar(
            list(values.values()), at, xerr=list(spread), fmt="none", ecolor=theme.ink, elinewidth=1.2
        )
    ax.axvline(0, color=theme.soft, linewidth=1)
    ax.set_yticks(at, [shorten(plain(name), 24) for name in values], parse_math=False)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(max(len(values), 1) - 0.4, -0.6)
    ax.grid(False, axis="y")
    scale_axis(ax, "x", log=False)
    label(ax, x, "", title)
    return figure


def patches(values: ArrayLike, *, title: str = "", theme: Theme = LIGHT) -> Figure:
    """A grid (rows, columns) in the place of an image: the larger a value, the fuller its patch."""
    table = np.asarray(values, dtype=float)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"values must be (rows, columns). Got shape {table.shape} instead.")
    figure, ax = single(theme, height=4.2)
    most = max(float(np.nanmax(table)), 1e-300)
    for i, j in np.ndindex(*table.shape):
        strength = _FAINT + (_FULL - _FAINT) * float(np.clip(np.nan_to_num(table[i, j] / most), 0, 1))
        ax.add_patch(
            Rectangle((j, i), 1, 1, facecolor=theme.colour(0), alpha=round(strength, 3), linewidth=0)
        )
    ax.set(xlim=(0, table.shape[1]), ylim=(table.shape[0], 0), aspect="equal", xticks=[], yticks=[])
    ax.grid(False)
    ax.spines[["left", "bottom"]].set_visible(False)
    label(ax, title=title)
    return figure
