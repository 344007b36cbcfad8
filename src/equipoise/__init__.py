"""Equilibrium networks you can trust: found fast, differentiated exactly, proved to exist."""

__version__ = "0.1.0"

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import data, kernels, linalg, losses, models, solve, theory, train
from .differentiate import (
    GMRES,
    Implicit,
    Phantom,
    Unrolled,
    audit,
    jacobian_penalty,
    spectral_radius_penalty,
)
from .history import History
from .kernels import (
    kernel_prediction,
    population_gram,
    population_lambda_min,
    population_tangent_kernel,
    tangent_kernel,
)
from .models import (
    ConvOptEq,
    DeepOptEq,
    Equilibrium,
    GaussianReLU,
    LinearEquilibrium,
    Monotone,
    MultiscaleDEQ,
    OptEq,
    ResidualConv,
    ScaledReLU,
    SharedDropout,
    diagnose,
    from_feedforward,
    load,
    repeat,
    unroll,
)
from .solve import (
    SAM,
    AffineMap,
    Anderson,
    Broyden,
    EquilibriumError,
    ForwardBackward,
    Newton,
    PeacemanRachford,
    Picard,
    Solution,
    Status,
    Stop,
    extrapolate,
    fixed_point,
)
from .solve.driver import verify
from .solve.failure import EquilibriumWarning, OnFailure
from .theory import (
    Certificate,
    Claim,
    certified_radius,
    certify,
    equilibrium_error,
    lipschitz_bound,
    suggest,
)
from .train import (
    Projection,
    Trainer,
    WarmStart,
    gradient_descent,
    gradient_flow,
    safeguarded_descent,
    train_many,
)

if TYPE_CHECKING:
    from . import estimators, explore, papers, plots, report, runs
    from .estimators import EquilibriumClassifier, EquilibriumRegressor

_LATER = {  # imported when first asked for: they draw on scikit-learn and matplotlib
    "EquilibriumClassifier": "estimators",
    "EquilibriumRegressor": "estimators",
    **{room: room for room in ("estimators", "explore", "papers", "plots", "report", "runs")},
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = import_module(f".{_LATER[name]}", __name__)
    return room if name == _LATER[name] else getattr(room, name)


__all__ = [
    "GMRES",
    "SAM",
    "AffineMap",
    "Anderson",
    "Broyden",
    "Certificate",
    "Claim",
    "ConvOptEq",
    "DeepOptEq",
    "Equilibrium",
    "EquilibriumClassifier",
    "EquilibriumError",
    "EquilibriumRegressor",
    "EquilibriumWarning",
    "ForwardBackward",
    "GaussianReLU",
    "History",
    "Implicit",
    "LinearEquilibrium",
    "Monotone",
    "MultiscaleDEQ",
    "Newton",
    "OnFailure",
    "OptEq",
    "PeacemanRachford",
    "Phantom",
    "Picard",
    "Projection",
    "ResidualConv",
    "ScaledReLU",
    "SharedDropout",
    "Solution",
    "Status",
    "Stop",
    "Trainer",
    "Unrolled",
    "WarmStart",
    "audit",
    "certified_radius",
    "certify",
    "data",
    "diagnose",
    "equilibrium_error",
    "estimators",
    "explore",
    "extrapolate",
    "fixed_point",
    "from_feedforward",
    "gradient_descent",
    "gradient_flow",
    "jacobian_penalty",
    "kernel_prediction",
    "kernels",
    "linalg",
    "lipschitz_bound",
    "load",
    "losses",
    "models",
    "papers",
    "plots",
    "population_gram",
    "population_lambda_min",
    "population_tangent_kernel",
    "repeat",
    "report",
    "runs",
    "safeguarded_descent",
    "solve",
    "spectral_radius_penalty",
    "suggest",
    "tangent_kernel",
    "theory",
    "train",
    "train_many",
    "unroll",
    "verify",
]
