"""Gradients through an equilibrium z*: exact, unrolled, or cheap and inexact."""

from .affine import StructuredAdjoint
from .equation import Equation
from .gradient import Gradient, Record
from .implicit import Implicit
from .linear import GMRES
from .method import Method
from .phantom import Phantom
from .recycled import Recycled
from .regularise import jacobian_penalty, spectral_radius_penalty
from .reversible import Reversible
from .unrolled import Unrolled

__all__ = [
    "GMRES",
    "Equation",
    "Gradient",
    "Implicit",
    "Method",
    "Phantom",
    "Record",
    "Recycled",
    "Reversible",
    "StructuredAdjoint",
    "Unrolled",
    "jacobian_penalty",
    "spectral_radius_penalty",
]
