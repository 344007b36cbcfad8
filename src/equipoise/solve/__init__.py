"""Find z = f(z): tensors in, Solution out."""

from .anderson import Anderson
from .driver import extrapolate, fixed_point
from .picard import Picard
from .problem import IDENTITY, RELU, TANH, Activation, AffineMap
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
    "Picard",
    "Solution",
    "Solver",
    "SolverState",
    "Status",
    "Stop",
    "Trace",
    "extrapolate",
    "fixed_point",
]
