"""Pictures of a loss on a plane of weights, seen from above, and where its minima are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...plots import LIGHT, new_figure
from ...plots.style import dress, label
from ...plots.surfaces import colours

LEVEL = math.log(10) / 2  # half of what guessing gives


@dataclass(frozen=True)
class Slice:
    """A loss on axis × axis, None where it is not known, and its minima (row, column), drawn as stars."""

    title: str
    axis: Sequence[float]
    loss: Any
    minima: Sequence[tuple[int, int]] = ()

    def draw(self, ax: Axes, top: float) -> Any:
        """Draw it from above, light where it is low: a line at LEVEL, + in the middle, crosses if unknown."""
        values = np.ma.masked_invalid(np.array(self.loss, dtype=float))
        hidden, axis = np.ma.getmaskarray(values), np.array(self.axis)
        ax.grid(False)
        ax.set_facecolor(LIGHT.masked)
        filled = None
        if not hidden.all():
            levels = np.linspace(0, top, 17)
            how: dict[str, Any] = {"corner_mask": False}
            filled = ax.contourf(axis, axis, values.clip(0, top), levels=levels, cmap=colours(LIGHT), **how)
            if float(values.min()) < LEVEL < float(values.max()):
                ax.contour(axis, axis, values, levels=[LEVEL], colors=LIGHT.series[1], **how)
        S, T = np.meshgrid(axis, axis)
        size = 16 if len(axis) < 16 else 5  # crosses of a fine grid do not touch
        ax.scatter(S[hidden], T[hidden], marker="x", s=size, linewidths=0.8, color=LIGHT.ink, clip_on=False)
        ax.plot(0, 0, "+", color=LIGHT.ink, markersize=9)
        ax.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1), aspect="equal")
        label(ax, "first direction", "second direction", self.title)
        for row, column in self.minima:
            ax.plot(axis[column], axis[row], "*", color=LIGHT.series[1], markersize=12)
        return filled


def draw_slices(grid: Sequence[Sequence[Slice]], top: float) -> Figure:
    """Rows of slices in one scale of colours, from 0 to `top`, with one colour bar."""
    figure, axes = new_figure(len(grid), len(grid[0]), width=3.8, height=3.6, sharex=True, sharey=True)
    slices = [one for row in grid for one in row]
    filled = [one.draw(ax, top) for one, ax in zip(slices, axes.flat, strict=True)]
    for ax in axes.flat:
        ax.label_outer()
    known = [one for one in filled if one is not None]
    if known:
        bar = figure.colorbar(known[-1], ax=list(axes.flat), pad=0.02, aspect=24, ticks=MaxNLocator(5))
        bar.outline.set_visible(False)
        dress(bar.ax)
        bar.ax.grid(False)
        bar.ax.yaxis.label.set(text="loss")
    return figure
