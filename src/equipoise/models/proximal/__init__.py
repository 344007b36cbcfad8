"""Families whose equilibrium is the minimiser of a convex function    [xie2021].

- `opteq`: z = μ⁻¹Wᵀσ(W z + U x + b). `deep_opteq`: compositions, and their multi-block and wide forms.
  `conv_opteq`: the same with convolutions, for images.
- `convex`, `objective`: φ, its Moreau envelopes and the problems solved, by methods that use no fixed point.
- `feedforward`: any ReLU network as one of these. `family`: what they share. `activations`: σ and ∫σ.
- `properties`: layers that give the state a property, such as sparsity.
"""

from .activations import SOFTPLUS, monotone_activation
from .conv_opteq import ConvOptEq
from .convex import Phi, QuadraticProgramme
from .deep_opteq import DeepOptEq, MultiBlockOptEq, OptEqLayer
from .family import ProximalFamily
from .feedforward import UnitLayers, from_feedforward, unit_layers
from .objective import Minimum
from .opteq import OptEq

__all__ = [
    "SOFTPLUS",
    "ConvOptEq",
    "DeepOptEq",
    "Minimum",
    "MultiBlockOptEq",
    "OptEq",
    "OptEqLayer",
    "Phi",
    "ProximalFamily",
    "QuadraticProgramme",
    "UnitLayers",
    "from_feedforward",
    "monotone_activation",
    "unit_layers",
]
