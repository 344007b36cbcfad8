"""One house style for every figure: colours, type, axes, and files that come out the same every time.

Figures are objects: nothing here touches pyplot or leaves a global setting changed. The figure of a phone's
width is the unit, so type stays readable at 390 px and grows with the page.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text
from matplotlib.ticker import Formatter, LogLocator, MaxNLocator, NullFormatter

from ..plain import plain

WIDTH, HEIGHT = 5.0, 3.3  # inches, of one panel
BESIDE = 4.1  # the width of one of two
FONT = "DejaVu Sans"  # comes with matplotlib: the same letters on every machine
SMALL, NORMAL, LARGE = 9.5, 10.5, 11.5  # points
LINE, FINE = 1.8, 0.8
DASHES = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)))  # told apart without colour
_TYPE = {"family": FONT, "size": SMALL}  # the letters of legends
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p", "h")


@dataclass(frozen=True)
class Theme:
    """Colours by what they are for. Text has a contrast of 4.5 or more on `paper`, lines of 3 or more."""

    name: str
    paper: str
    ink: str  # titles, numbers
    soft: str  # labels, notes
    rule: str  # axes and grid
    masked: str  # where nothing is known
    series: tuple[str, ...]  # told apart by people who see no red, no green or no blue
    sequential: tuple[str, str, str]  # low, middle, high

    def colour(self, i: int) -> str:
        """The colour of series number i; colours repeat if there are more series."""
        return self.series[i % len(self.series)]


def _hex(colours: str) -> tuple[str, ...]:
    return tuple(f"#{colour}" for colour in colours.split())


LIGHT = Theme(
    "light",
    paper="#ffffff",
    ink="#1c2430",
    soft="#55606e",
    rule="#c9d0d8",
    masked="#e4e7eb",
    series=_hex("0f62a8 c2500f 0b8a72 a3327f 8a6d00 4d5d9e 3d97cf 6b4a3a 5a9a1a 7d7d7d"),
    sequential=("#f2f6fa", "#5b9bc9", "#0b3558"),
)
DARK = Theme(
    "dark",
    paper="#14181e",
    ink="#e8ecf1",
    soft="#a5b0bd",
    rule="#3a434e",
    masked="#2a3038",
    series=_hex("62aef0 f08a4b 3fc7a8 e383c4 d9b93f 9aa8ec a9d6f5 c9a18c 9bd65a bdbdbd"),
    sequential=("#1a2028", "#2f7fb8", "#d3ebfb"),
)
THEMES = {theme.name: theme for theme in (LIGHT, DARK)}


def new_figure(
    rows: int = 1,
    columns: int = 1,
    *,
    width: float = WIDTH,
    height: float = HEIGHT,
    theme: Theme = LIGHT,
    **subplots: Any,
) -> tuple[Figure, np.ndarray]:
    """A figure and its (rows, columns) array of dressed axes; `width` and `height` are those of one panel.

    `subplots` goes to `Figure.subplots` (sharex, sharey, subplot_kw, …).
    """
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained", facecolor=theme.paper)
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False, **subplots)
    for ax in grid.flat:
        dress(ax, theme)
    return figure, grid


def in_pairs(count: int, height: float = HEIGHT, theme: Theme = LIGHT) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels in rows of two, beside which no third could be read on a page."""
    columns = min(count, 2)
    width = WIDTH if columns == 1 else BESIDE
    figure, grid = new_figure(-(-count // 2), columns, width=width, height=height, theme=theme)
    for ax in grid.flat[count:]:
        ax.remove()
    return figure, list(grid.flat[:count])


def single(theme: Theme = LIGHT, width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """A figure of one panel, and its axes."""
    figure, grid = new_figure(width=width, height=height, theme=theme)
    return figure, grid[0, 0]


def dress(ax: Axes, theme: Theme = LIGHT) -> Axes:
    """Axes in the house style: two quiet spines, a faint grid behind, the theme's colours in order."""
    ax.set_facecolor(theme.paper)
    ax.set_prop_cycle(color=list(theme.series))
    ax.set_axisbelow(True)
    if ax.name != "3d":
        ax.grid(True, color=theme.rule, linewidth=0.5, alpha=0.7)
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set(color=theme.rule, linewidth=FINE)
    ax.tick_params(
        which="both",
        color=theme.rule,
        labelcolor=theme.soft,
        labelsize=SMALL,
        labelfontfamily=FONT,
        width=FINE,
        length=3,
    )
    ax.tick_params(which="minor", length=0)
    for text in (ax.xaxis.label, ax.yaxis.label):
        text.set(color=theme.soft, fontsize=NORMAL, fontfamily=FONT)
    ax.title.set(color=theme.ink, fontsize=LARGE, fontfamily=FONT)
    return ax


def label(ax: Axes, x: str = "", y: str = "", title: str = "") -> Axes:
    """The words around the axes. Anything in them is shown as it is written: `$` starts no formula."""
    for text, words in ((ax.xaxis.label, x), (ax.yaxis.label, y), (ax.title, title)):
        text.set(text=words, parse_math=False)
    return ax


def legend(ax: Axes, theme: Theme = LIGHT, above: bool = False) -> None:
    """A quiet legend, if there is more than one thing: where it covers least, or `above` crowded axes."""
    handles, names = ax.get_legend_handles_labels()
    if len(handles) < 2:
        return
    place: dict[str, Any] = (
        {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2} if above else {"loc": "best"}
    )
    box = ax.legend(
        handles,
        names,
        prop=_TYPE,
        labelcolor=theme.ink,
        facecolor=theme.paper,
        edgecolor="none",
        framealpha=0.85,
        handlelength=2.2,
        borderaxespad=0.2,
        **place,
    )
    _plain(box)


def shared_legend(figure: Figure, panels: Sequence[Axes], theme: Theme = LIGHT) -> None:
    """One legend above all panels, of the names that these use, in place of one in each."""
    named: dict[str, Any] = {}
    for ax in figure.axes:
        own = ax.get_legend()
        if own is not None:
            own.remove()
    for ax in panels:
        named |= {name: handle for handle, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    entry = 0.55 + 0.078 * max(map(len, named), default=0)  # inches, that the longest name takes
    columns = max(1, min(len(named), int(figure.get_figwidth() / entry)))
    place: dict[str, Any] = {"loc": "outside upper center", "ncols": columns, "frameon": False}
    _plain(figure.legend(list(named.values()), list(named), prop=_TYPE, labelcolor=theme.ink, **place))


def _plain(box: Legend) -> None:
    """`$` in a name starts no formula."""
    for text in box.get_texts():
        text.set_parse_math(False)


def linear(ax: Axes, x: str, y: str, title: str) -> None:
    """Two linear axes with readable ticks, and the words around them."""
    scale_axis(ax, "x", log=False)
    scale_axis(ax, "y", log=False)
    label(ax, x, y, title)


def write(ax: Axes, x: float, y: float, words: str, colour: str, size: float, **how: Any) -> None:
    """Words on the axes, around (x, y) unless `how` says otherwise. `$` in them starts no formula."""
    kept: dict[str, Any] = {"ha": "center", "va": "center", "fontfamily": FONT, "parse_math": False}
    ax.text(x, y, words, color=colour, fontsize=size, **{**kept, **how})


def note(ax: Axes, words: str, theme: Theme = LIGHT) -> None:
    """Words in the middle of empty axes, so that no figure is blank without a reason."""
    write(ax, 0.5, 0.5, words, theme.soft, NORMAL, transform=ax.transAxes, wrap=True)


# -- axes ----------------------------------------------------------------------------------------------------

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power(value: float) -> str:
    """A number as a person writes it on an axis: 0.01, 1, 100, 10⁻⁵, 3·10⁴."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:g}".replace("-", "−") if 1e-3 < abs(value) < 1e4 else ten_to(value)


def ten_to(value: float) -> str:
    """A number by a power of ten: 10⁻², 10⁰, 3·10⁴; 0 is 0."""
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.3e}".split("e")
    shown = mantissa.rstrip("0").rstrip(".").replace("-", "−")
    ten = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return ten if shown == "1" else f"−{ten}" if shown == "−1" else f"{shown}·{ten}"


class Powers(Formatter):
    """Tick labels as plain text, in one notation on each axis: 0.01, 0.1, 1 or 10⁻⁴, 10⁻², 10⁰; 0 is 0."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return power(float(f"{x:.6g}"))

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """The labels of all ticks of an axis, in plain numbers if those that are seen can be."""
        low, high = sorted(self.axis.get_view_interval())  # type: ignore[union-attr]
        ticks = [float(f"{v:.6g}") for v in values]
        seen = [abs(v) for v in ticks if v and low <= v <= high]
        plain = all(1e-3 <= v < 1e5 for v in seen)
        return [f"{v:.6g}".replace("-", "−") if plain else ten_to(v) for v in ticks]


def scale_axis(ax: Axes, which: str, log: bool, integers: bool = False) -> None:
    """A linear or logarithmic axis, `which` of "x" and "y", with readable ticks."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    (ax.set_xscale if which == "x" else ax.set_yscale)("log" if log else "linear")
    axis.set_major_formatter(Powers())
    if not log:
        axis.set_major_locator(MaxNLocator(nbins=6, integer=integers))
        return
    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low) if 0 < low < high else 1.0
    if decades < 1:  # the ticks of a linear axis: powers of ten may be none
        axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    else:
        axis.set_major_locator(LogLocator(numticks=7, subs=(1.0, 2.0, 5.0) if decades < 2 else (1.0,)))
    axis.set_minor_formatter(NullFormatter())


def thin(x: np.ndarray, *ys: np.ndarray, most: int = 600) -> list[np.ndarray]:
    """At most about `most` of the points, the first and the last among them: what a figure can show."""
    if len(x) <= most:
        return [x, *ys]
    at = np.unique(np.linspace(0, len(x) - 1, most).round().astype(int))
    return [x[at], *(y[at] for y in ys)]


# -- files ---------------------------------------------------------------------------------------------------


def show_plain(figure: Figure) -> None:
    """Write hidden characters out: an SVG with a control character in it is no SVG."""
    for words in figure.findobj(Text):
        words.set_text(plain(words.get_text()))


def to_svg(figure: Figure, *, text: bool = False, salt: str = "equipoise") -> str:
    """The figure as SVG, the same for the same data. Letters are outlines, or `text` in the reader's font."""
    show_plain(figure)
    out = io.StringIO()
    settings: dict[Any, Any] = {"svg.hashsalt": salt, "svg.fonttype": "none" if text else "path"}
    with matplotlib.rc_context(settings):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def save(
    figure: Figure,
    path: str | os.PathLike[str],
    formats: Sequence[str] = ("svg", "png"),
    dpi: int = 200,
) -> list[Path]:
    """Write `path`.svg and `path`.png (or those of `formats`), the same bytes for the same data."""
    stem = Path(path)
    unknown = sorted(set(formats) - {"svg", "png"})
    if unknown:
        raise ValueError(f"formats must be among svg, png. Got {', '.join(unknown)} instead.")
    stem = stem.with_suffix("") if stem.suffix in (".svg", ".png") else stem
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for form in formats:
        target = stem.with_name(f"{stem.name}.{form}")
        if form == "svg":
            target.write_text(to_svg(figure), encoding="utf-8")
        else:
            show_plain(figure)
            figure.savefig(target, format="png", dpi=dpi, metadata={"Software": None})
        written.append(target)
    return written
