"""Equilibrium networks you can trust: found fast, differentiated exactly, proved to exist."""

__version__ = "0.1.0"

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what a type checker sees; a name is imported when it is first asked for
    from . import (
        data,
        estimators,
        explore,
        kernels,
        linalg,
        losses,
        models,
        papers,
        plots,
        report,
        solve,
        tasks,
        theory,
        train,
    )
    from .differentiate import (
        GMRES,
        Implicit,
        Phantom,
        Reversible,
        Unrolled,
        jacobian_penalty,
        spectral_radius_penalty,
    )
    from .estimators import EquilibriumClassifier, EquilibriumRegressor
    from .history import History
    from .kernels import (
        kernel_prediction,
        population_gram,
        population_lambda_min,
        population_tangent_kernel,
        tangent_kernel,
    )
    from .models import (
        ConvMonotone,
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
        audit,
        diagnose,
        from_feedforward,
        load,
        load_mondeq,
        repeat,
    )
    from .solve import (
        SAM,
        AffineMap,
        Anderson,
        Broyden,
        EquilibriumError,
        EquilibriumWarning,
        ForwardBackward,
        Newton,
        OnFailure,
        PeacemanRachford,
        Picard,
        Solution,
        Status,
        Stop,
        extrapolate,
        fixed_point,
        verify,
    )
    from .theory import (
        Certificate,
        Claim,
        certified_radius,
        equilibrium_error,
        lipschitz_bound,
        unroll,
        verify_predictions,
    )
    from .theory.certify import certify
    from .theory.suggest import suggest
    from .train import (
        Projection,
        Trainer,
        WarmStart,
        gradient_descent,
        gradient_flow,
        safeguarded_descent,
        train_many,
    )

__all__ = [
    "GMRES",
    "SAM",
    "AffineMap",
    "Anderson",
    "Broyden",
    "Certificate",
    "Claim",
    "ConvMonotone",
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
    "Reversible",
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
    "load_mondeq",
    "losses",
    "models",
    "papers",
    "plots",
    "population_gram",
    "population_lambda_min",
    "population_tangent_kernel",
    "repeat",
    "report",
    "safeguarded_descent",
    "solve",
    "spectral_radius_penalty",
    "suggest",
    "tangent_kernel",
    "tasks",
    "theory",
    "train",
    "train_many",
    "unroll",
    "verify",
    "verify_predictions",
]

_HOMES = ("solve", "differentiate", "models", "kernels", "history", "theory", "train", "estimators")
_ROOMS = ("linalg", "losses", "data", "tasks", "explore", "plots", "report", "papers", *_HOMES)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    if name in __all__:
        for home in _HOMES:
            room = import_module(f".{home}", __name__)
            if hasattr(room, name):
                globals()[name] = getattr(room, name)
                return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
