"""Find z = f(z): tensors in, Solution out."""

from ..memory import keep_freed_memory
from .activation import IDENTITY, RELU, TANH, Activation, clamp, leaky_relu, soft_threshold
from .anderson import Anderson
from .auto import Auto
from .averaging import SAM, Regulariser, decorrelation, half_squared_distance, half_squared_norm, inverse_norm
from .broyden import Broyden
from .driver import extrapolate, fixed_point, verify
from .failure import EquilibriumWarning, OnFailure
from .forward_backward import ForwardBackward
from .newton import Newton
from .peaceman_rachford import PeacemanRachford
from .picard import Picard
from .problem import AffineMap
from .solution import Counts, EquilibriumError, Solution, Status, Stop, Trace
from .solver import Solver, SolverState

__all__ = [
    "IDENTITY",
    "RELU",
    "SAM",
    "TANH",
    "Activation",
    "AffineMap",
    "Anderson",
    "Auto",
    "Broyden",
    "Counts",
    "EquilibriumError",
    "EquilibriumWarning",
    "ForwardBackward",
    "Newton",
    "OnFailure",
    "PeacemanRachford",
    "Picard",
    "Regulariser",
    "Solution",
    "Solver",
    "SolverState",
    "Status",
    "Stop",
    "Trace",
    "clamp",
    "decorrelation",
    "extrapolate",
    "fixed_point",
    "half_squared_distance",
    "half_squared_norm",
    "inverse_norm",
    "leaky_relu",
    "soft_threshold",
    "verify",
]

keep_freed_memory()
