"""Equilibrium models: one family a file, its equation first."""

from .affine import AffineFamily
from .baselines import LinearModel, LinearResNet, ReLUNetwork, repeat, weight_tied
from .cell import SharedDropout
from .diagnose import Diagnosis, diagnose
from .equilibrium import Equilibrium
from .export import UnrolledNetwork, unroll
from .gaussian_relu import GaussianReLU
from .linear import LinearEquilibrium
from .monotone import Monotone
from .saving import load
from .scaled_relu import ScaledReLU

__all__ = [
    "AffineFamily",
    "Diagnosis",
    "Equilibrium",
    "GaussianReLU",
    "LinearEquilibrium",
    "LinearModel",
    "LinearResNet",
    "Monotone",
    "ReLUNetwork",
    "ScaledReLU",
    "SharedDropout",
    "UnrolledNetwork",
    "diagnose",
    "load",
    "repeat",
    "unroll",
    "weight_tied",
]
