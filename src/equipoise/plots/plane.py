"""Points and trajectories in a plane: equilibria by principal components, and weights during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from .style import (
    DASHES,
    FINE,
    LIGHT,
    LINE,
    MARKERS,
    NORMAL,
    SMALL,
    Theme,
    legend,
    linear,
    note,
    single,
    thin,
    write,
)

MOST_NAMED = 12  # the most classes whose names are written at their centres
MOST_PATHS = 8  # the most paths that are told apart by colour and dash, and named


def principal_plane(Z: ArrayLike, rows: ArrayLike | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Z − mean in its first two principal directions, (N, 2), and the share of variance of each.

    Mean, directions and variance are those of `rows` (a mask or indices), by default of all. Each direction
    points where its largest coefficient is positive, so that the plane is the same every time.
    """
    centred = np.asarray(Z, dtype=float)
    some = centred if rows is None else centred[np.asarray(rows)]
    centred = centred - some.mean(axis=0)
    _, s, Vt = np.linalg.svd(some - some.mean(axis=0), full_matrices=False)
    directions = np.zeros((2, centred.shape[1]))
    directions[: min(2, len(Vt))] = Vt[:2]
    signs = np.sign(directions[np.arange(2), np.abs(directions).argmax(axis=1)])
    shares = np.zeros(2)
    shares[: min(2, len(s))] = s[:2] ** 2 / max(float((s**2).sum()), 1e-300)
    return centred @ (directions * np.where(signs == 0, 1, signs)[:, None]).T, shares


def plane(
    points: ArrayLike,
    labels: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    *,
    shares: Sequence[float] | None = None,
    frame: ArrayLike | None = None,
    title: str = "",
    theme: Theme = LIGHT,
) -> Figure:
    """Points (N, 2); `labels` are classes, told apart by colour and mark, with `names` at their centres.

    `frame`, [[left, right], [bottom, top]], is the part to be seen; by default all.
    """
    figure, ax = single(theme, height=4.0)
    xy = np.asarray(points, dtype=float).reshape(-1, 2)
    groups = np.zeros(len(xy), dtype=int) if labels is None else np.asarray(labels, dtype=int)
    finite = np.isfinite(xy).all(axis=1)
    seen = finite.copy()
    if frame is not None:
        edges = np.asarray(frame, dtype=float)
        ax.set(xlim=edges[0], ylim=edges[1])
        seen &= ((edges[:, 0] <= xy) & (xy <= edges[:, 1])).all(axis=1)
    kinds = sorted(set(groups[seen].tolist()))
    for i, kind in enumerate(kinds):
        some = xy[seen & (groups == kind)]
        mark = MARKERS[(i + i // len(theme.series)) % len(MARKERS)]
        ax.scatter(some[:, 0], some[:, 1], s=15, marker=mark, color=theme.colour(i), alpha=0.75, linewidths=0)
    if names is not None and 1 < len(kinds) <= MOST_NAMED:
        for kind in kinds:
            _name(ax, np.median(xy[seen & (groups == kind)], axis=0), names[kind], theme)
    _frame(ax, shares, title, "the equilibria are not finite" if not finite.any() else "", theme)
    return figure


def coloured_plane(
    points: ArrayLike,
    values: ArrayLike,
    *,
    shares: Sequence[float] | None = None,
    frame: ArrayLike | None = None,
    title: str = "",
    levels: int = 4,
    theme: Theme = LIGHT,
) -> Figure:
    """Points (N, 2) coloured by a number in `levels` equally full groups, named by their ranges."""
    numbers = np.asarray(values, dtype=float)
    edges = np.unique(np.quantile(numbers, np.linspace(0, 1, levels + 1)))
    groups = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, max(len(edges) - 2, 0))
    figure = plane(points, groups, shares=shares, frame=frame, title=title, theme=theme)
    ax = figure.axes[0]
    for marks, low, high in zip(ax.collections, edges[:-1], edges[1:], strict=False):
        marks.set_label(f"{low:.3g} to {high:.3g}".replace("-", "−"))
    legend(ax, theme, above=True)
    return figure


def trajectories(
    paths: Mapping[str, ArrayLike],
    *,
    arrows: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None,
    x: str = "first direction",
    y: str = "second direction",
    shares: Sequence[float] | None = None,
    title: str = "",
    theme: Theme = LIGHT,
) -> Figure:
    """Paths (K, 2) with a hollow mark where they start and a full one where they end.

    `arrows` are (s, t, field), the field (len(t), len(s), 2). More than 8 paths are alike and have no names.
    """
    figure, ax = single(theme, height=4.0)
    if arrows is not None:
        s, t, field = (np.asarray(part, dtype=float) for part in arrows)
        to: dict[str, Any] = {"angles": "xy", "color": theme.rule, "width": 0.003, "zorder": 0}
        ax.quiver(*np.meshgrid(s, t), field[..., 0], field[..., 1], **to)
        ax.margins(0)
    named = len(paths) <= MOST_PATHS
    for at, (name, path) in enumerate(paths.items()):
        draw_path(ax, path, name if named else "", at=at if named else 0, theme=theme)
    for line in () if named else ax.get_lines():
        line.set(linewidth=FINE, alpha=0.6)
    _frame(ax, shares, title, "" if paths else "no path to show", theme, x, y)
    legend(ax, theme, above=True)
    return figure


def draw_path(ax: Axes, path: ArrayLike, name: str = "", *, at: int = 0, theme: Theme = LIGHT) -> None:
    """One path (K, 2) over axes that may show something else."""
    xy = np.asarray(path, dtype=float).reshape(-1, 2)
    xy = xy[np.isfinite(xy).all(axis=1)]
    if not len(xy):
        return
    colour = theme.colour(at)
    u, v = thin(xy[:, 0], xy[:, 1])
    ax.plot(u, v, color=colour, linewidth=LINE, linestyle=DASHES[at % len(DASHES)], label=name or None)
    ends: dict[str, Any] = {"zorder": 3, "edgecolors": colour, "linewidths": LINE, "s": 42}
    ax.scatter(u[:1], v[:1], facecolors=theme.paper, **ends)
    ax.scatter(u[-1:], v[-1:], facecolors=colour, **ends)


def _name(ax: Axes, centre: np.ndarray, name: str, theme: Theme) -> None:
    box = {"facecolor": theme.paper, "edgecolor": "none", "alpha": 0.8, "boxstyle": "round,pad=0.15"}
    x, y = map(float, centre)
    write(ax, x, y, shorten(name), theme.ink, NORMAL, fontweight="bold", bbox=box)


def shorten(name: str, most: int = 14) -> str:
    """A name that fits into a figure."""
    return name if len(name) <= most else name[: most - 1] + "…"


def _frame(
    ax: Axes,
    shares: Sequence[float] | None,
    title: str,
    empty: str,
    theme: Theme,
    x: str = "first principal component",
    y: str = "second principal component",
) -> None:
    if shares is not None:
        x, y = (f"{name} ({100 * share:.0f} %)" for name, share in zip((x, y), shares, strict=True))
    linear(ax, x, y, title)
    ax.tick_params(labelsize=SMALL)
    if empty:
        note(ax, empty, theme)
