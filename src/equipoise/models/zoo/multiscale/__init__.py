"""Several resolutions in one equilibrium."""

from .cell import MultiscaleCell
from .model import MultiscaleDEQ

__all__ = ["MultiscaleCell", "MultiscaleDEQ"]
