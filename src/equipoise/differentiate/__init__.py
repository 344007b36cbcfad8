"""Gradients through z*: exact, unrolled, or cheap and labelled so."""

from .equation import Equation, Method
from .gradient import Gradient, Record
from .implicit import Implicit
from .linear import GMRES
from .phantom import Phantom
from .unrolled import Unrolled

__all__ = ["GMRES", "Equation", "Gradient", "Implicit", "Method", "Phantom", "Record", "Unrolled"]
