"""Parallel coordinates: an axis for each option, and a line for each configuration, strong for good ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..plain import plain
from .plane import shorten
from .style import FONT, LIGHT, SMALL, Theme, label, note, power, single

_APART = 0.12  # distance between two labels, as a share of the height of an axis


def parallel(
    rows: Sequence[Mapping[str, Any]], scores: Sequence[float], score: str, *, theme: Theme = LIGHT
) -> Figure:
    """Lines through the values of every row and, on the last axis, its score; the best is drawn last."""
    names = list(rows[0]) if rows else []
    figure, ax = single(theme, width=max(5.0, 1.5 * (len(names) + 1)))
    ax.grid(False)
    ax.spines[["left", "bottom"]].set_visible(False)
    if not rows or not np.isfinite(scores).any():
        note(ax, "nothing to show", theme)
        return figure
    columns = [[row[name] for row in rows] for name in names] + [list(scores)]
    heights = np.empty((len(columns), len(rows)))
    for j, values in enumerate(columns):
        heights[j], ticks = _axis(values)
        ax.axvline(j, color=theme.rule, linewidth=1)
        for at, words in ticks:
            ax.text(
                j + 0.03,
                at,
                shorten(plain(words), 14),
                color=theme.soft,
                fontsize=SMALL,
                fontfamily=FONT,
                va="bottom",
                parse_math=False,
            )
    order = np.argsort(scores)
    best = order[-1]
    for rank, i in enumerate(order):
        strength = 0.4 + 0.4 * rank / max(1, len(order) - 1)
        style: dict[str, Any] = (
            {"color": theme.colour(1), "linewidth": 2.4} if i == best else {"alpha": round(strength, 2)}
        )
        ax.plot(range(len(columns)), heights[:, i], **{"color": theme.colour(0), "linewidth": 1.2, **style})
    ax.set(xlim=(-0.1, len(columns) - 0.6), ylim=(-0.08, 1.12), yticks=[])
    ax.set_xticks(range(len(columns)), [plain(name) for name in [*names, score]], parse_math=False)
    label(ax)
    return figure


def _axis(values: Sequence[Any]) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Heights in [0, 1] of values, and a few labels: numbers over more than a decade by their logarithm."""
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    known = sorted(set(values)) if numbers else sorted({str(v) for v in values})
    if not numbers:
        at = {v: (i + 0.5) / len(known) for i, v in enumerate(known)}
        return np.array([at[str(v)] for v in values]), [(h, v) for v, h in at.items()]
    x, ends = np.array(values, dtype=float), np.array(known, dtype=float)
    if ends[0] > 0 and ends[-1] > 10 * ends[0]:
        x, ends = np.log(x), np.log(ends)
    low, size = ends[0], (ends[-1] - ends[0]) or 1.0
    one = len(known) == 1
    places = np.full(len(ends), 0.5) if one else (ends - low) / size
    shown: list[tuple[float, str]] = []
    for value, at in zip(known, places.tolist(), strict=True):
        if not shown or at >= shown[-1][0] + _APART:  # labels that do not cover each other
            shown.append((at, power(float(f"{value:.4g}"))))
    return np.full(len(x), 0.5) if one else (x - low) / size, shown
