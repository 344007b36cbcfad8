"""Series over steps: measured beside promised, and many runs as their mean ± one standard deviation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from .style import DASHES, LIGHT, LINE, MARKERS, Theme, label, legend, note, scale_axis, single, thin

Series: TypeAlias = ArrayLike | Mapping[int, float] | tuple[ArrayLike, ArrayLike]


def points(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """(x, y) of a series: y over 0, 1, …; {step: y}; or (x, y)."""
    if isinstance(series, Mapping):
        steps = sorted(series)
        return np.array(steps, dtype=float), np.array([series[k] for k in steps], dtype=float)
    if isinstance(series, tuple):
        if len(series) != 2:
            raise ValueError(
                f"a series must be y, {{step: y}} or (x, y). Got a tuple of {len(series)} instead."
            )
        x, y = (np.asarray(part, dtype=float) for part in series)
    else:
        y = np.asarray(series, dtype=float)
        x = np.arange(y.shape[-1] if y.ndim else 0, dtype=float)
    if y.ndim != 1 or x.shape != y.shape:
        raise ValueError(
            f"x and y of a series must be equally long. Got shapes {x.shape} and {y.shape} instead."
        )
    return x, y


def draw(
    ax: Axes,
    series: Series,
    name: str = "",
    *,
    at: int = 0,
    theme: Theme = LIGHT,
    dash: Any = None,
    colour: str | None = None,
    marks: bool | None = None,
    log: bool = False,
) -> None:
    """A line in colour and dash number `at`, with marks if its points are few; `log` leaves out y ≤ 0."""
    x, y = points(series)
    shown = np.isfinite(y) & ((y > 0) | (not log))
    few = shown.sum() <= 25 if marks is None else marks
    x, y = thin(x, np.where(shown, y, np.nan))
    ax.plot(
        x,
        y,
        label=name or None,
        color=colour or theme.colour(at),
        linestyle=DASHES[at % len(DASHES)] if dash is None else dash,
        linewidth=LINE,
        marker=MARKERS[at % len(MARKERS)] if few else None,
        markersize=4,
        solid_capstyle="round",
    )


def draw_band(
    ax: Axes,
    runs: ArrayLike,
    name: str = "",
    *,
    x: ArrayLike | None = None,
    at: int = 0,
    theme: Theme = LIGHT,
    log: bool = False,
) -> None:
    """Mean over runs (R, K) with mean ± one standard deviation (over R − 1) shaded.

    On a logarithmic axis, where mean − deviation may be 0 or less, the shade ends at the smallest run.
    """
    values = np.atleast_2d(np.asarray(runs, dtype=float))
    steps = np.arange(values.shape[1], dtype=float) if x is None else np.asarray(x, dtype=float)
    if values.ndim != 2 or steps.shape != values.shape[1:]:
        raise ValueError(f"runs must be (R, {len(steps)}), a run a row. Got shape {values.shape} instead.")
    mean, spread = mean_and_sd(values)
    draw(ax, (steps, mean), name, at=at, theme=theme, log=log)
    low, high = mean - spread, mean + spread
    if log:
        low = np.maximum(low, np.where(values > 0, values, np.inf).min(axis=0))
    steps, low, high = thin(steps, low, high)
    finite = np.isfinite(low) & np.isfinite(high)
    ax.fill_between(steps, low, high, where=finite, color=theme.colour(at), alpha=0.18, linewidth=0)


BAND = "Mean over seeds; shaded, ± one standard deviation, on a logarithmic axis not below the smallest seed."


def _draw_bounds(ax: Axes, bounds: Mapping[str, Series] | None, theme: Theme, log: bool) -> None:
    """Promises: dashed, in ink."""
    for at, (name, bound) in enumerate((bounds or {}).items()):
        dash = DASHES[1 + at % 3]
        draw(ax, bound, name, theme=theme, colour=theme.ink, dash=dash, marks=False, log=log)


def curves(
    series: Mapping[str, Series],
    *,
    x: str = "step",
    y: str = "",
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    bounds: Mapping[str, Series] | None = None,
    levels: Mapping[str, float] | None = None,
    theme: Theme = LIGHT,
) -> Figure:
    """Lines over steps. `bounds` are promises, drawn dashed in ink; `levels` are horizontal lines."""
    figure, ax = single(theme)
    for at, (name, values) in enumerate(series.items()):
        draw(ax, values, name, at=at, theme=theme, log=log_y)
    _draw_bounds(ax, bounds, theme, log_y)
    for at, (name, level) in enumerate((levels or {}).items()):
        ax.axhline(level, color=theme.soft, linestyle=DASHES[2 - at % 2], linewidth=1.2, label=name)
    return finish(figure, ax, x=x, y=y, title=title, log_x=log_x, log_y=log_y, theme=theme)


def bands(
    runs: Mapping[str, ArrayLike],
    *,
    at: ArrayLike | None = None,
    x: str = "step",
    y: str = "",
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    bounds: Mapping[str, Series] | None = None,
    theme: Theme = LIGHT,
) -> Figure:
    """Mean ± one standard deviation of several groups of runs, each (R, K), over the steps `at`."""
    figure, ax = single(theme)
    for i, (name, values) in enumerate(runs.items()):
        draw_band(ax, values, name, x=at, at=i, theme=theme, log=log_y)
    _draw_bounds(ax, bounds, theme, log_y)
    return finish(figure, ax, x=x, y=y, title=title, log_x=log_x, log_y=log_y, theme=theme)


def against_promise(
    measured: Series,
    promised: Series | None = None,
    *,
    others: Mapping[str, Series] | None = None,
    x: str = "step",
    y: str = "loss / first loss",
    theme: Theme = LIGHT,
    **more: Any,
) -> Figure:
    """A loss beside the bound that was promised for it, on a logarithmic axis."""
    bounds = {} if promised is None else {"promised at most": promised}
    lines = {"measured": measured, **(others or {})}
    return curves(lines, x=x, y=y, log_y=True, bounds=bounds, theme=theme, **more)


def finish(
    figure: Figure,
    ax: Axes,
    *,
    x: str = "",
    y: str = "",
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    theme: Theme = LIGHT,
) -> Figure:
    """Scales, words and legend; axes on which nothing could be drawn say so."""
    drawn = any(np.isfinite(np.asarray(line.get_ydata(), dtype=float)).any() for line in ax.get_lines())
    scale_axis(ax, "x", log_x and drawn, integers=x in ("step", "epoch"))
    scale_axis(ax, "y", log_y and drawn)
    label(ax, x, y, title)
    if drawn:
        legend(ax, theme)
    else:
        note(ax, "no finite value to show" + (" on a logarithmic axis" if log_y else ""), theme)
    return figure


def mean_and_sd(runs: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (over R − 1) of R runs at each step."""
    values = np.atleast_2d(np.asarray(runs, dtype=float))
    sd = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
    return values.mean(axis=0), sd
