"""Equilibrium models: `base` is what all share, and each family is one file that begins with its equation.

`cell` makes a layer of any cell. The families are in `affine`, `proximal` and `images`; models without a
certificate are in `zoo`. `diagnose` and `audit` take any of them.
"""

from .affine import AffineFamily, ConvMonotone, GaussianReLU, LinearEquilibrium, Monotone, ScaledReLU
from .affine.mondeq import load_mondeq
from .audit import Audit, audit
from .cell import Equilibrium
from .diagnose import Diagnosis, diagnose
from .proximal import ConvOptEq, DeepOptEq, OptEq, from_feedforward
from .repeated import repeat
from .saving import load
from .shared_dropout import SharedDropout
from .zoo import LinearModel, LinearResNet, MultiscaleDEQ, ReLUNetwork, ResidualConv, weight_tied

__all__ = [
    "AffineFamily",
    "Audit",
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
    "audit",
    "diagnose",
    "from_feedforward",
    "load",
    "load_mondeq",
    "repeat",
    "weight_tied",
]
