"""Equilibrium models: `base` is what all share, and each family is one file that begins with its equation.

`cell` makes a layer of any cell. The families are in `affine`, `proximal` and `images`; models without a
certificate are in `zoo`. `diagnose` and `audit` take any of them.
"""

from . import affine
from .affine import *  # noqa: F403 - that room lists its families, once
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
    "Audit",
    "ConvOptEq",
    "DeepOptEq",
    "Diagnosis",
    "Equilibrium",
    "LinearModel",
    "LinearResNet",
    "MultiscaleDEQ",
    "OptEq",
    "ReLUNetwork",
    "ResidualConv",
    "SharedDropout",
    "audit",
    "diagnose",
    "from_feedforward",
    "load",
    "load_mondeq",
    "repeat",
    "weight_tied",
]
__all__ += affine.__all__
