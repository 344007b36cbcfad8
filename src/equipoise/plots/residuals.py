"""y − ŷ against ŷ: what a regression leaves over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from .style import DASHES, LIGHT, MARKERS, Theme, legend, linear, note, single


def residuals(
    parts: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    x: str = "predicted",
    y: str = "target − predicted",
    title: str = "",
    theme: Theme = LIGHT,
) -> Figure:
    """Residuals of each part {name: (target, predicted)}; dashed at ± the root mean square of the last."""
    figure, ax = single(theme)
    spread = np.nan
    for at, (name, (target, predicted)) in enumerate(parts.items()):
        said = np.asarray(predicted, dtype=float)
        left = np.asarray(target, dtype=float) - said
        finite = np.isfinite(said) & np.isfinite(left)
        if finite.any():
            spread = float(np.sqrt(np.mean(left[finite] ** 2)))
            look: dict[str, Any] = {"marker": MARKERS[at], "color": theme.colour(at), "label": name}
            ax.scatter(said[finite], left[finite], s=16, alpha=0.7, linewidths=0, **look)
    ax.axhline(0, color=theme.ink, linewidth=1)
    if np.isfinite(spread):
        for side, words in ((spread, "± root mean square"), (-spread, None)):
            ax.axhline(side, color=theme.soft, linestyle=DASHES[1], linewidth=1.2, label=words)
    else:
        note(ax, "the predictions are not finite", theme)
    linear(ax, x, y, title)
    legend(ax, theme, above=True)
    return figure
