"""Equilibrium models: one family a file, its equation first."""

from .affine import AffineFamily
from .baselines import LinearModel, LinearResNet, ReLUNetwork, repeat, weight_tied
from .cell import SharedDropout
from .conv import ConvMonotone, ConvOptEq, MultiscaleDEQ, ResidualConv
from .diagnose import Diagnosis, diagnose
from .equilibrium import Equilibrium
from .export import UnrolledNetwork, unroll
from .gaussian_relu import GaussianReLU
from .linear import LinearEquilibrium
from .mondeq import load_mondeq
from .monotone import Monotone
from .opteq import DeepOptEq, OptEq, from_feedforward
from .saving import load
from .scaled_relu import ScaledReLU

__all__ = [
    "AffineFamily",
    "ConvMonotone",
    "ConvOptEq",
    "DeepOptEq",
    "Diagnosis",
    "Equilibrium",
    "GaussianReLU",
    "LinearEquilibrium",
    "LinearModel",
    "LinearResNet",
    "Monotone",
    "MultiscaleDEQ",
    "OptEq",
    "ReLUNetwork",
    "ResidualConv",
    "ScaledReLU",
    "SharedDropout",
    "UnrolledNetwork",
    "diagnose",
    "from_feedforward",
    "load",
    "load_mondeq",
    "repeat",
    "unroll",
    "weight_tied",
]
