"""A function of two directions: contours and a surface, with what could not be computed shown as such."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib
import numpy as np
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import ArrayLike

from .plane import draw_path
from .style import (
    FINE,
    FONT,
    LIGHT,
    NORMAL,
    SMALL,
    Powers,
    Theme,
    label,
    legend,
    new_figure,
    note,
    scale_axis,
)


def contours(
    u: ArrayLike,
    v: ArrayLike,
    values: ArrayLike,
    *,
    log: bool = False,
    paths: Mapping[str, ArrayLike] | None = None,
    x: str = "first direction",
    y: str = "second direction",
    name: str = "loss",
    title: str = "",
    levels: int = 14,
    masked: str = "no equilibrium",
    theme: Theme = LIGHT,
) -> Figure:
    """`values` (len(v), len(u)) on a grid, with `paths` over them.

    Masked, NaN and infinite values (on a logarithmic scale those ≤ 0 too) are crossed out, not filled in.
    """
    a, b, Z = _grid(u, v, values, log)
    figure, grid = new_figure(height=4.0, theme=theme)
    ax = grid[0, 0]
    ax.grid(False)
    known = ~np.ma.getmaskarray(Z)
    if known.any():
        low, high = float(Z.min()), float(Z.max())
        high = high if high > low else low + max(abs(low), 1.0) * 1e-9
        norm, at = _scale(low, high, log, levels)
        filled = ax.contourf(a, b, Z, levels=at, norm=norm, cmap=colours(theme), corner_mask=False)
        ax.contour(a, b, Z, levels=at, colors=theme.ink, linewidths=0.4, alpha=0.45, corner_mask=False)
        _dress_bar(figure.colorbar(filled, ax=ax, pad=0.02, aspect=28), name, log, theme)
    else:
        note(ax, masked, theme)
    if not known.all():
        ax.set_facecolor(theme.masked)
        A, B = np.meshgrid(a, b)
        ax.scatter(A[~known], B[~known], marker="x", s=10, linewidths=FINE, color=theme.soft, label=masked)
    for i, (words, path) in enumerate((paths or {}).items()):
        draw_path(ax, path, words, at=i + 1, theme=theme)
    ax.set(xlim=(a.min(), a.max()), ylim=(b.min(), b.max()))
    scale_axis(ax, "x", log=False)
    scale_axis(ax, "y", log=False)
    label(ax, x, y, title)
    legend(ax, theme)
    return figure


def surface(
    u: ArrayLike,
    v: ArrayLike,
    values: ArrayLike,
    *,
    log: bool = False,
    x: str = "first direction",
    y: str = "second direction",
    name: str = "loss",
    title: str = "",
    elevation: float = 32.0,
    azimuth: float = -58.0,
    theme: Theme = LIGHT,
) -> Figure:
    """`values` (len(v), len(u)) as a surface seen from an angle; what is not known is a hole in it."""
    a, b, Z = _grid(u, v, values, log)
    with matplotlib.rc_context({"grid.color": theme.rule, "grid.linewidth": 0.5}):  # read only at creation
        figure, grid = new_figure(height=4.4, theme=theme, subplot_kw={"projection": "3d"})
    ax = grid[0, 0]
    ax.set_box_aspect(None, zoom=0.86)
    shown = np.ma.log10(Z) if log else Z
    A, B = np.meshgrid(a, b)
    if shown.count():
        ax.plot_surface(
            A,
            B,
            shown.filled(np.nan),
            cmap=colours(theme),
            vmin=float(shown.min()),
            vmax=float(shown.max()),
            linewidth=0.15,
            edgecolor=theme.ink,
            rcount=80,
            ccount=80,
        )
    ax.view_init(elev=elevation, azim=azimuth)
    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.set_pane_color((0, 0, 0, 0))
        axis.line.set_color(theme.rule)
        axis.set_major_locator(MaxNLocator(5))
    label(ax, x, y, title)
    ax.zaxis.label.set(
        text=f"log₁₀ {name}" if log else name, color=theme.soft, fontsize=NORMAL, fontfamily=FONT
    )
    return figure


def colours(theme: Theme) -> LinearSegmentedColormap:
    """Low to high in one hue: an order that is seen, and printed, without colour."""
    return LinearSegmentedColormap.from_list(f"equipoise-{theme.name}", theme.sequential)


def _grid(
    u: ArrayLike, v: ArrayLike, values: ArrayLike, log: bool
) -> tuple[np.ndarray, np.ndarray, np.ma.MaskedArray]:
    a, b = np.asarray(u, dtype=float), np.asarray(v, dtype=float)
    Z: np.ma.MaskedArray = np.ma.masked_invalid(np.ma.asarray(values, dtype=float))
    if a.ndim != 1 or b.ndim != 1 or Z.shape != (len(b), len(a)) or min(Z.shape) < 2:
        raise ValueError(
            f"values must be (len(v), len(u)), 2 × 2 at least. "
            f"Got {Z.shape} for v {b.shape} and u {a.shape} instead."
        )
    return a, b, np.ma.masked_less_equal(Z, 0) if log else Z


def _scale(low: float, high: float, log: bool, levels: int) -> tuple[Normalize, np.ndarray]:
    if log:
        return LogNorm(low, high), np.geomspace(low, high, levels + 1)
    return Normalize(low, high), np.linspace(low, high, levels + 1)


def _dress_bar(bar: Colorbar, name: str, log: bool, theme: Theme) -> None:
    bar.outline.set_visible(False)
    bar.locator = LogLocator(numticks=7) if log else MaxNLocator(6)
    bar.formatter = Powers()
    bar.minorticks_off()
    bar.update_ticks()
    ax = bar.ax
    ax.tick_params(color=theme.rule, labelcolor=theme.soft, labelsize=SMALL, labelfontfamily=FONT, length=3)
    ax.yaxis.label.set(text=name, color=theme.soft, fontsize=NORMAL, fontfamily=FONT, parse_math=False)
