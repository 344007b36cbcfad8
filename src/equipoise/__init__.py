"""Equilibrium networks you can trust: found fast, differentiated exactly, proved to exist."""

__version__ = "0.1.0"

from .solve import AffineMap, Anderson, EquilibriumError, Picard, Solution, Status, Stop, fixed_point

__all__ = [
    "AffineMap",
    "Anderson",
    "EquilibriumError",
    "Picard",
    "Solution",
    "Status",
    "Stop",
    "fixed_point",
]
