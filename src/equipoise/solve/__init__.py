"""Find z = f(z): tensors in, Solution out."""

from .activation import IDENTITY, RELU, TANH, Activation, clamp, leaky_relu, soft_threshold
from .anderson import Anderson
from .driver import extrapolate, fixed_point
from .forward_backward import ForwardBackward
from .peaceman_rachford import PeacemanRachford
from .picard import Picard
from .problem import AffineMap
from .solution import Counts, EquilibriumError, Solution, Status, Stop, Trace
from .solver import Solver, SolverState

__all__ = [
    "IDENTITY",
    "RELU",
    "TANH",
    "Activation",
    "AffineMap",
    "Anderson",
    "Counts",
    "EquilibriumError",
    "ForwardBackward",
    "PeacemanRachford",
    "Picard",
    "Solution",
    "Solver",
    "SolverState",
    "Status",
    "Stop",
    "Trace",
    "clamp",
    "extrapolate",
    "fixed_point",
    "leaky_relu",
    "soft_threshold",
]
