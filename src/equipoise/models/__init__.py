"""Equilibrium models: one family a file, its equation first."""

from .cell import SharedDropout
from .equilibrium import Equilibrium

__all__ = ["Equilibrium", "SharedDropout"]
