"""A function of one direction or two as a line, contours or a surface, with marks where it is not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, Locator, LogLocator, MaxNLocator
from mpl_toolkits.mplot3d.art3d import Poly3DCollection  # type: ignore[import-untyped]
from numpy.typing import ArrayLike

from .curves import draw
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
    linear,
    new_figure,
    note,
    scale_axis,
    single,
)

_SMALL = {"family": FONT, "size": SMALL}
ALONE = "a point alone"  # no contour or surface goes through it


@dataclass(frozen=True)
class View:
    """The words around a picture of a function, its scale and its theme."""

    log: bool = False
    x: str = "first direction"
    y: str = "second direction"
    name: str = "loss"  # of the function
    title: str = ""
    masked: str = "no equilibrium"  # where it is not known
    theme: Theme = LIGHT


def profile(u: ArrayLike, values: ArrayLike, **view: Any) -> Figure:
    """`values` (len(u),) along a line, and the whole of it; `view` are fields of a `View`.

    Masked, NaN and infinite values (on a logarithmic scale those ≤ 0 too) are crossed out at the bottom, and
    the stretch around them is grey.
    """
    seen = View(**{"x": "direction", **view})
    a, theme = np.asarray(u, dtype=float), seen.theme
    Z = _known(values, seen.log)
    if a.ndim != 1 or Z.shape != a.shape or len(a) < 2:
        raise ValueError(f"values must be (len(u),), 2 at least. Got {Z.shape} for u {a.shape} instead.")
    figure, ax = single(theme)
    hidden = np.ma.getmaskarray(Z)
    beside = np.pad(~hidden, 1)
    alone = ~hidden & ~beside[:-2] & ~beside[2:]
    scale_axis(ax, "x", log=False)
    if hidden.all():
        note(ax, seen.masked, theme)
        ax.set_yticks([])
    else:
        draw(ax, (a, Z.filled(np.nan)), seen.name, theme=theme, marks=True if alone.any() else None)
        scale_axis(ax, "y", seen.log)
    if hidden.any():
        edges = np.concatenate([a[:1], (a[1:] + a[:-1]) / 2, a[-1:]])
        for i in np.flatnonzero(hidden):
            ax.axvspan(edges[i], edges[i + 1], color=theme.masked, linewidth=0, zorder=0)
        at: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "clip_on": False, "label": seen.masked}
        ax.scatter(a[hidden], np.full(hidden.sum(), 0.03), **_cross(theme), **at)
    margin = 0.02 * np.ptp(a)  # room for the marks at both ends
    ax.set_xlim(a.min() - margin, a.max() + margin)
    label(ax, seen.x, seen.name, seen.title)
    legend(ax, theme, above=True)
    return figure


def contours(
    u: ArrayLike,
    v: ArrayLike,
    values: ArrayLike,
    *,
    paths: Mapping[str, ArrayLike] | None = None,
    marks: Mapping[str, tuple[float, float]] | None = None,
    levels: int = 14,
    **view: Any,
) -> Figure:
    """`values` (len(v), len(u)) on a grid, with `paths` and `marks` (a + at a point) over them.

    Masked, NaN and infinite values (on a logarithmic scale those ≤ 0 too) are crossed out, not filled in. A
    known one between them, through which no contour goes, is a dot of its colour. `view` are fields of a
    `View`: log, x, y, name, title, masked, theme.
    """
    seen = View(**view)
    theme = seen.theme
    a, b, Z = _grid(u, v, values, seen.log)
    figure, ax = single(theme, height=4.0)
    ax.grid(False)
    known, A, B = ~np.ma.getmaskarray(Z), *np.meshgrid(a, b)
    if known.any():
        _fill(figure, ax, a, b, Z, levels, seen)
    else:
        note(ax, seen.masked, theme)
    if not known.all():
        ax.set_facecolor(theme.masked)
        ax.scatter(A[~known], B[~known], label=seen.masked, clip_on=False, **_cross(theme))
    for i, (words, path) in enumerate((paths or {}).items()):
        draw_path(ax, path, words, at=i + 1, theme=theme)
    for words, place in (marks or {}).items():
        ax.scatter(*place, s=80, marker="P", color=theme.ink, edgecolors=theme.paper, zorder=4, label=words)
    ax.set(xlim=(a.min(), a.max()), ylim=(b.min(), b.max()))
    linear(ax, seen.x, seen.y, seen.title)
    legend(ax, theme, above=True)
    return figure


def _fill(
    figure: Figure, ax: Axes, a: np.ndarray, b: np.ndarray, Z: np.ma.MaskedArray, levels: int, seen: View
) -> None:
    """Colours and lines of equal values, their bar, and dots where no line can go through."""
    theme, known, (A, B) = seen.theme, ~np.ma.getmaskarray(Z), np.meshgrid(a, b)
    low, high = float(Z.min()), float(Z.max())
    high = high if high > low else low + max(abs(low), 1.0) * 1e-9
    norm, at = _scale(low, high, seen.log, levels)
    filled = ax.contourf(a, b, Z, levels=at, norm=norm, cmap=colours(theme), corner_mask=False)
    ax.contour(a, b, Z, levels=at, colors=theme.ink, linewidths=0.4, alpha=0.45, corner_mask=False)
    bar = figure.colorbar(filled, ax=ax, pad=0.02, aspect=28)
    bar.locator = _ticks(float(Z.min()), float(Z.max()), seen.log)
    _dress_bar(bar, seen.name, theme)
    alone = _alone(known)
    if not alone[known].all():
        ax.plot([], [], color=theme.ink, linewidth=FINE, alpha=0.45, label="equal values")
    if alone.any():
        how: dict[str, Any] = {"cmap": colours(theme), "edgecolors": theme.ink, "linewidths": FINE}
        how |= {"norm": norm, "clip_on": False, "zorder": 3, "label": ALONE}
        ax.scatter(A[alone], B[alone], c=Z[alone], s=42, **how)


def surface(
    u: ArrayLike,
    v: ArrayLike,
    values: ArrayLike,
    *,
    elevation: float = 32.0,
    azimuth: float = -58.0,
    **view: Any,
) -> Figure:
    """`values` (len(v), len(u)) as a surface seen from an angle; what is not known is a hole in it.

    A known point whose neighbours are not is a dot. With a word for what is not known, `masked`, it is
    crossed out on the floor. `view` are fields of a `View`.
    """
    seen = View(**{"masked": "", **view})
    theme = seen.theme
    a, b, Z = _grid(u, v, values, seen.log)
    with matplotlib.rc_context({"grid.color": theme.rule, "grid.linewidth": 0.5}):  # read only at creation
        figure, grid = new_figure(height=4.4, theme=theme, subplot_kw={"projection": "3d"})
    ax = grid[0, 0]
    ax.set_box_aspect(None, zoom=0.86)
    shown = np.ma.log10(Z) if seen.log else Z
    A, B = np.meshgrid(a, b)
    if shown.count():
        norm = Normalize(float(shown.min()), float(shown.max()))
        how: dict[str, Any] = {"cmap": colours(theme), "norm": norm, "edgecolor": theme.ink}
        points = np.stack([A, B, shown.filled(np.nan)], axis=2)
        patches, alone = _patches(points)
        if len(patches):
            faces = Poly3DCollection(patches, linewidth=0.15, **how)
            faces.set_array(patches[:, :, 2].mean(axis=1))
            ax.add_collection3d(faces)
        ax.auto_scale_xyz(*points[~np.ma.getmaskarray(shown)].T)
        ax.scatter(A[alone], B[alone], shown[alone], c=shown[alone], depthshade=False, **how)
    hidden = np.ma.getmaskarray(shown)
    if seen.masked and hidden.any():
        floor = ax.get_zlim()[0]
        crosses = ax.scatter(
            A[hidden], B[hidden], floor, depthshade=False, label=seen.masked, **_cross(theme)
        )
        ax.set_zlim(bottom=floor)
        ax.legend(handles=[crosses], loc="upper left", frameon=False, labelcolor=theme.ink, prop=_SMALL)
    ax.view_init(elev=elevation, azim=azimuth)
    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.set_pane_color((0, 0, 0, 0))
        axis.line.set_color(theme.rule)
        axis.set_major_locator(MaxNLocator(5))
    label(ax, seen.x, seen.y, seen.title)
    words = f"log₁₀ {seen.name}" if seen.log else seen.name
    ax.zaxis.label.set(text=words, color=theme.soft, fontsize=NORMAL, fontfamily=FONT)
    return figure


def colours(theme: Theme) -> LinearSegmentedColormap:
    """Low to high in one hue: an order that is seen, and printed, without colour."""
    return LinearSegmentedColormap.from_list(f"equipoise-{theme.name}", theme.sequential)


def _cross(theme: Theme) -> dict[str, Any]:
    return {"marker": "x", "s": 14, "linewidths": FINE, "color": theme.soft, "zorder": 3}


def _alone(known: np.ndarray) -> np.ndarray:
    """Which known points are at no corner of a cell whose four corners are known."""
    cells = known[:-1, :-1] & known[1:, :-1] & known[:-1, 1:] & known[1:, 1:]
    padded = np.pad(cells, 1)
    return known & ~(padded[:-1, :-1] | padded[1:, :-1] | padded[:-1, 1:] | padded[1:, 1:])


def _patches(points: np.ndarray, most: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """Quadrilaterals (P, 4, 3) over known points of a grid (R, C, 3), which is thinned to about `most` points
    on each side, and a mask of the known points that are in none."""
    known = np.isfinite(points).all(axis=2)
    rows, columns = (
        np.unique(np.linspace(0, n - 1, min(n, most + 1)).round().astype(int)) for n in known.shape
    )
    patches, alone = [], known.copy()
    for (i, j), (k, l) in product(pairwise(rows), pairwise(columns)):
        if known[i : j + 1, k : l + 1].all():
            patches.append(points[[i, i, j, j], [k, l, l, k]])
            alone[i : j + 1, k : l + 1] = False
    return np.array(patches), alone


def _known(values: ArrayLike, log: bool) -> np.ma.MaskedArray:
    Z: np.ma.MaskedArray = np.ma.masked_invalid(np.ma.asarray(values, dtype=float))
    return np.ma.masked_less_equal(Z, 0) if log else Z


def _grid(
    u: ArrayLike, v: ArrayLike, values: ArrayLike, log: bool
) -> tuple[np.ndarray, np.ndarray, np.ma.MaskedArray]:
    a, b = np.asarray(u, dtype=float), np.asarray(v, dtype=float)
    Z = _known(values, log)
    if a.ndim != 1 or b.ndim != 1 or Z.shape != (len(b), len(a)) or min(Z.shape) < 2:
        raise ValueError(
            f"values must be (len(v), len(u)), 2 × 2 at least. "
            f"Got {Z.shape} for v {b.shape} and u {a.shape} instead."
        )
    return a, b, Z


def _scale(low: float, high: float, log: bool, levels: int) -> tuple[Normalize, np.ndarray]:
    if log:
        return LogNorm(low, high), np.geomspace(low, high, levels + 1)
    return Normalize(low, high), np.linspace(low, high, levels + 1)


def _ticks(low: float, high: float, log: bool) -> Locator:
    """Ticks with at least one number, however close low and high are."""
    if low == high:
        return FixedLocator([low])
    if not log or high < 5 * low:
        return MaxNLocator(6)
    return LogLocator(numticks=7, subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,))


def _dress_bar(bar: Colorbar, name: str, theme: Theme) -> None:
    bar.outline.set_visible(False)
    bar.formatter = Powers()
    bar.minorticks_off()
    bar.update_ticks()
    ax = bar.ax
    ax.tick_params(color=theme.rule, labelcolor=theme.soft, labelsize=SMALL, labelfontfamily=FONT, length=3)
    ax.yaxis.label.set(text=name, color=theme.soft, fontsize=NORMAL, fontfamily=FONT, parse_math=False)
