"""Families whose equilibrium solves z = σ(W z + u(x)), or the same with convolutions.

`family` is what they share: one solver, one adjoint and one tangent kernel. A family of your own derives from
`AffineFamily`, and `blocks` has the products its gradients are made of.
"""

from .blocks import pairs, readout_block, squeeze_blocks, weigh
from .conv_monotone import ConvMonotone
from .family import AffineFamily
from .gaussian_relu import GaussianReLU
from .linear import LinearEquilibrium
from .monotone import Monotone
from .scaled_relu import ScaledReLU

__all__ = [
    "AffineFamily",
    "ConvMonotone",
    "GaussianReLU",
    "LinearEquilibrium",
    "Monotone",
    "ScaledReLU",
    "pairs",
    "readout_block",
    "squeeze_blocks",
    "weigh",
]
