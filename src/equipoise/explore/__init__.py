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
from .path import TrainingPath, departure, last_moment, training_path
from .sharpness import hessian_lambda_max
from .trajectory import Paths, Plane, equilibria_plane, phase_portrait, solver_paths

__all__ = [
    "Landscape",
    "Paths",
    "Plane",
    "Reading",
    "TrainingPath",
    "affine_loss",
    "between",
    "departure",
    "differences",
    "equilibria_plane",
    "hessian_lambda_max",
    "landscape",
    "last_moment",
    "module_loss",
    "path_plane",
    "phase_portrait",
    "random_directions",
    "shifted",
    "solver_paths",
    "training_path",
]
