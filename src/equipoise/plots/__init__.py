"""Figures of what history, explore and kernels hold, in one house style."""

from .curves import against_promise, bands, curves
from .inline import inline_svg, variables
from .matrices import confusion
from .plane import coloured_plane, plane, principal_plane, trajectories
from .residuals import residuals
from .spectra import spectrum
from .style import DARK, LIGHT, Theme, new_figure, save, to_svg
from .surfaces import contours, surface

__all__ = [
    "DARK",
    "LIGHT",
    "Theme",
    "against_promise",
    "bands",
    "coloured_plane",
    "confusion",
    "contours",
    "curves",
    "inline_svg",
    "new_figure",
    "plane",
    "principal_plane",
    "residuals",
    "save",
    "spectrum",
    "surface",
    "to_svg",
    "trajectories",
    "variables",
]
