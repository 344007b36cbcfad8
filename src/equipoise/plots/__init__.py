"""Figures of what history, explore and kernels hold, in one house style."""

from .bars import patches, ranked, reliability
from .curves import curves
from .inline import inline_svg, variables
from .matrices import confusion
from .parallel import parallel
from .plane import coloured_plane, plane, principal_plane, trajectories
from .residuals import residuals
from .spectra import spectrum
from .style import DARK, LIGHT, Theme, new_figure, save, to_svg
from .surfaces import contours, surface

__all__ = [
    "DARK",
    "LIGHT",
    "Theme",
    "coloured_plane",
    "confusion",
    "contours",
    "curves",
    "inline_svg",
    "new_figure",
    "parallel",
    "patches",
    "plane",
    "principal_plane",
    "ranked",
    "reliability",
    "residuals",
    "save",
    "spectrum",
    "surface",
    "to_svg",
    "trajectories",
    "variables",
]
