"""Gradients through z*: exact, unrolled, or cheap and labelled so."""

from .audit import Audit, audit
from .equation import Equation, Method
from .gradient import Gradient, Record
from .implicit import Implicit
from .linear import GMRES
from .phantom import Phantom
from .regularise import jacobian_penalty, spectral_radius_penalty
from .unrolled import Unrolled

__all__ = [
    "GMRES",
    "Audit",
    "Equation",
    "Gradient",
    "Implicit",
    "Method",
    "Phantom",
    "Record",
    "Unrolled",
    "audit",
    "jacobian_penalty",
    "spectral_radius_penalty",
]
