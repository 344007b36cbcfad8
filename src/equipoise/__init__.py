"""Equilibrium networks you can trust: found fast, differentiated exactly, proved to exist."""

__version__ = "0.1.0"

from .differentiate import GMRES, Implicit, Phantom, Unrolled
from .models import Equilibrium, SharedDropout
from .solve import AffineMap, Anderson, EquilibriumError, Picard, Solution, Status, Stop, fixed_point
from .solve.failure import EquilibriumWarning, OnFailure

__all__ = [
    "GMRES",
    "AffineMap",
    "Anderson",
    "Equilibrium",
    "EquilibriumError",
    "EquilibriumWarning",
    "Implicit",
    "OnFailure",
    "Phantom",
    "Picard",
    "SharedDropout",
    "Solution",
    "Status",
    "Stop",
    "Unrolled",
    "fixed_point",
]
