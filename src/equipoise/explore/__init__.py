"""Loss landscapes, sharpness and solver trajectories, as numbers; `plots` draws them."""

from .landscape import (
    Landscape,
    Reading,
    affine_loss,
    between,
    differences,
    landscape,
    module_loss,
    path_plane,
    random_directions,
    shifted,
)
from .sharpness import hessian_lambda_max
from .trajectory import Paths, Plane, equilibria_plane, phase_portrait, solver_paths

__all__ = [
    "Landscape",
    "Paths",
    "Plane",
    "Reading",
    "affine_loss",
    "between",
    "differences",
    "equilibria_plane",
    "hessian_lambda_max",
    "landscape",
    "module_loss",
    "path_plane",
    "phase_portrait",
    "random_directions",
    "shifted",
    "solver_paths",
]
