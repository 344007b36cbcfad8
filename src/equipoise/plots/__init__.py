"""Figures of what history, explore and kernels hold, in one house style."""

from .curves import against_promise, bands, curves
from .style import DARK, LIGHT, Theme, new_figure, save, to_svg

__all__ = [
    "DARK",
    "LIGHT",
    "Theme",
    "against_promise",
    "bands",
    "curves",
    "new_figure",
    "save",
    "to_svg",
]
