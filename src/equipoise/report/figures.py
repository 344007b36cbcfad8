"""A figure of a report: a title, a drawing, and a caption that says what to look for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from .. import plots
from .reading import RunRecord

SCALE = 0.8  # size of a figure in the page, where three stand side by side; letters keep their size
Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Shown:
    """A figure in the page."""

    identifier: str
    title: str
    svg: Markup
    caption: str


@dataclass(frozen=True)
class Drawn:
    """A figure and its words: `alt` says what is seen, for those who do not see it."""

    title: str
    figure: Figure
    caption: str
    alt: str


Drawers = Mapping[str, Callable[[RunRecord], Drawn | None]]


def gather(record: RunRecord, drawers: Drawers, scale: float = SCALE) -> list[Shown]:
    """The figures that a record has numbers for, in order; numbers that make no figure count as none."""
    shown = []
    for identifier, draw_one in drawers.items():
        try:
            drawn = draw_one(record)
        except (KeyError, IndexError, TypeError, ValueError):
            drawn = None
        if drawn is not None:
            drawn.figure.set_size_inches(*(scale * drawn.figure.get_size_inches()))
            svg = Markup(plots.inline_svg(drawn.figure, f"fig-{identifier}", drawn.title, drawn.alt))
            shown.append(Shown(f"fig-{identifier}", drawn.title, svg, drawn.caption))
    return shown


def relative(pair: Pair, least: float = 0.0) -> Pair | None:
    """(L − L*)/(L(0) − L*) of a series; None if it starts at L*."""
    x, y = pair
    first = y[0] - least
    return (x, (y - least) / first) if first > 0 and np.isfinite(first) else None


def over_time(record: RunRecord, name: str) -> Pair | None:
    """A series of at least three finite numbers: fewer are not drawn."""
    found = record.series(name)
    return found if found is not None and np.isfinite(found[1]).sum() > 2 else None
