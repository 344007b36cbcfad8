"""Loss landscapes, sharpness and solver trajectories, as numbers; `plots` draws them."""

from .between import refuse_unlike
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
from .measured import Measured, loss_name, measured
from .path import TrainingPath, Unrepeated, departure, last_moment, repeated_path, training_path
from .sharpness import hessian_lambda_max
from .survey import Survey, survey_around, survey_between, survey_path
from .trajectory import Paths, Plane, equilibria_plane, phase_portrait, solver_paths

__all__ = [
    "Landscape",
    "Measured",
    "Paths",
    "Plane",
    "Reading",
    "Survey",
    "TrainingPath",
    "Unrepeated",
    "affine_loss",
    "between",
    "departure",
    "differences",
    "equilibria_plane",
    "hessian_lambda_max",
    "landscape",
    "last_moment",
    "loss_name",
    "measured",
    "module_loss",
    "path_plane",
    "phase_portrait",
    "random_directions",
    "refuse_unlike",
    "repeated_path",
    "shifted",
    "solver_paths",
    "survey_around",
    "survey_between",
    "survey_path",
    "training_path",
]
