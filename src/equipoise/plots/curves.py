"""Series over steps: measured beside promised, and many runs as their mean ± one standard deviation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from .style import (
    DASHES,
    HEIGHT,
    LIGHT,
    LINE,
    MARKERS,
    Theme,
    in_pairs,
    label,
    legend,
    note,
    scale_axis,
    shared_legend,
    thin,
)

Series: TypeAlias = ArrayLike | Mapping[int, float] | tuple[ArrayLike, ArrayLike]

BAND = (
    "Mean over seeds; shaded, or where lines are many as whiskers, ± one standard deviation, on a "
    "logarithmic axis not below the smallest seed."
)
CROWD = 3  # bands that can lie over each other and still be told apart
_WHISKERS = 7  # on a line
_COUNTED = ("step", "epoch", "layer l", "draw")  # axes of whole numbers


# -- one line ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A series with a look of its own: a colour and dash number, or either by itself; marks or none."""

    series: Series | None
    at: int | None = None  # None: its place among the lines of the panel
    dash: Any = None
    colour: str | None = None
    marks: bool | None = None  # None: if its points are few


def points(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """(x, y) of a series: y over 0, 1, …; {step: y}; or (x, y)."""
    x, y = _coordinates(series)
    if y.ndim != 1 or x.shape != y.shape:
        raise ValueError(
            f"x and y of a series must be equally long. Got shapes {x.shape} and {y.shape} instead."
        )
    return x, y


def _coordinates(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """x (K,) and y, (K,) or (R, K); whether they fit is not checked."""
    if isinstance(series, Mapping):
        steps = sorted(series)
        return np.array(steps, dtype=float), np.array([series[k] for k in steps], dtype=float)
    if isinstance(series, tuple):
        if len(series) != 2:
            raise ValueError(
                f"a series must be y, {{step: y}} or (x, y). Got a tuple of {len(series)} instead."
            )
        return np.asarray(series[0], dtype=float), np.asarray(series[1], dtype=float)
    y = np.asarray(series, dtype=float)
    return np.arange(y.shape[-1] if y.ndim else 0, dtype=float), y


def draw(
    ax: Axes,
    series: Series,
    name: str = "",
    *,
    at: int = 0,
    theme: Theme = LIGHT,
    log: bool = False,
    **look: Any,
) -> None:
    """A line in colour and dash number `at`, with marks if its points are few; `log` leaves out y ≤ 0.

    `look` are fields of a `Line`: dash, colour, marks.
    """
    line = Line(series, at, **look)
    x, y = points(series)
    shown = np.isfinite(y) & ((y > 0) | (not log))
    few = shown.sum() <= 25 if line.marks is None else line.marks
    x, y = thin(x, np.where(shown, y, np.nan))
    ax.plot(
        x,
        y,
        label=name or None,
        color=line.colour or theme.colour(at),
        linestyle=DASHES[at % len(DASHES)] if line.dash is None else line.dash,
        linewidth=LINE,
        marker=MARKERS[at % len(MARKERS)] if few else None,
        markersize=4,
        solid_capstyle="round",
    )


def draw_band(
    ax: Axes,
    runs: Series,
    name: str = "",
    *,
    at: int = 0,
    theme: Theme = LIGHT,
    log: bool = False,
    whiskers: bool = False,
) -> None:
    """Mean over runs (R, K), or (x, runs), with mean ± one standard deviation (over R − 1) shaded.

    On a logarithmic axis, where mean − deviation may be 0 or less, the shade ends at the smallest run. If so
    many bands overlap that they blur, `whiskers` are drawn at a few steps instead, different on each line.
    """
    steps, values = _coordinates(runs)
    values = np.atleast_2d(values)
    if values.ndim != 2 or steps.shape != values.shape[1:]:
        raise ValueError(f"runs must be (R, {len(steps)}), one per row. Got shape {values.shape} instead.")
    mean, spread = mean_and_sd(values)
    draw(ax, (steps, mean), name, at=at, theme=theme, log=log)
    low, high = mean - spread, mean + spread
    if log:
        low = np.maximum(low, np.where(values > 0, values, np.inf).min(axis=0))
    steps, low, high = thin(steps, low, high)
    finite = np.isfinite(low) & np.isfinite(high)
    if whiskers:
        few = np.flatnonzero(finite)
        few = few[np.unique((np.arange(_WHISKERS) + 0.2 * (at % 5 + 0.5)) / _WHISKERS * len(few)).astype(int)]
        ax.vlines(steps[few], low[few], high[few], color=theme.colour(at), linewidth=1.1, alpha=0.85)
        return
    ax.fill_between(steps, low, high, where=finite, color=theme.colour(at), alpha=0.18, linewidth=0)


def mean_and_sd(runs: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (over R − 1) of R runs at each step."""
    values = np.atleast_2d(np.asarray(runs, dtype=float))
    sd = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
    return values.mean(axis=0), sd


# -- panels --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Panel:
    """Lines by name on one pair of axes, with the words around them and their scales.

    Runs (R, K), one in each row, are drawn as their mean with a band. A series that is None is left out, and
    the others keep their colours. A name that starts with _ is not in the legend. `bounds` are promises,
    dashed in ink, `levels` are horizontal lines, `rules` thin solid ones. The legend stands where it covers
    least, or `above` crowded axes.
    """

    lines: Mapping[str, Series | Line | None]
    x: str = ""
    y: str = ""
    title: str = ""
    log_x: bool = False
    log_y: bool = False
    bounds: Mapping[str, Series] | None = None
    levels: Mapping[str, float] | None = None
    rules: Mapping[str, float] | None = None
    above: bool = False

    def draw(self, ax: Axes, theme: Theme = LIGHT) -> None:
        """Draw the lines, then the bounds, levels and rules, and finish the axes."""
        given = {n: one if isinstance(one, Line) else Line(one) for n, one in self.lines.items()}
        bands = sum(g.series is not None and _coordinates(g.series)[1].ndim > 1 for g in given.values())
        for place, (name, line) in enumerate(given.items()):
            at = place if line.at is None else line.at
            if line.series is not None and _coordinates(line.series)[1].ndim > 1:
                crowd = bands > CROWD
                draw_band(ax, line.series, name, at=at, theme=theme, log=self.log_y, whiskers=crowd)
            elif line.series is not None:
                look = {"dash": line.dash, "colour": line.colour, "marks": line.marks}
                draw(ax, line.series, name, at=at, theme=theme, log=self.log_y, **look)
        for at, (name, bound) in enumerate((self.bounds or {}).items()):
            look = {"colour": theme.ink, "dash": DASHES[1 + at % 3], "marks": False}
            draw(ax, bound, name, theme=theme, log=self.log_y, **look)
        for at, (name, level) in enumerate((self.levels or {}).items()):
            ax.axhline(level, color=theme.soft, linestyle=DASHES[2 - at % 2], linewidth=1.2, label=name)
        for name, level in (self.rules or {}).items():
            ax.axhline(level, color=theme.soft, linewidth=1, label=name or None)
        self.finish(ax, theme)

    def finish(self, ax: Axes, theme: Theme = LIGHT) -> None:
        """Scales, words and legend; axes on which nothing could be drawn say so."""
        drawn = any(np.isfinite(np.asarray(line.get_ydata(), dtype=float)).any() for line in ax.get_lines())
        scale_axis(ax, "x", self.log_x and drawn, integers=self.x in _COUNTED)
        scale_axis(ax, "y", self.log_y and drawn)
        label(ax, self.x, self.y, self.title)
        if drawn:
            legend(ax, theme, self.above)
        else:
            note(ax, "no finite value to show" + (" on a logarithmic axis" if self.log_y else ""), theme)


def finish(figure: Figure, ax: Axes, *, theme: Theme = LIGHT, **words: Any) -> Figure:
    """Scales, words and legend of axes that were drawn on; `words` are fields of a `Panel`: x, y, title, …"""
    Panel({}, **words).finish(ax, theme)
    return figure


def panels(*some: Panel, height: float = HEIGHT, one_legend: bool = False, theme: Theme = LIGHT) -> Figure:
    """A figure of panels in rows of two, of that height; with `one_legend` above all of them."""
    figure, axes = in_pairs(len(some), height, theme)
    for panel, ax in zip(some, axes, strict=True):
        panel.draw(ax, theme)
    if one_legend:
        shared_legend(figure, axes)
    return figure


def curves(series: Mapping[str, Series], *, theme: Theme = LIGHT, **panel: Any) -> Figure:
    """Lines over steps. `panel` are fields of a `Panel`: x, y, title, log_x, log_y, bounds, levels, …"""
    return panels(Panel(series, **{"x": "step", **panel}), theme=theme)
