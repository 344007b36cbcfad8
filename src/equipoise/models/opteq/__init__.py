"""OptEq: networks whose equilibrium is the minimiser of a convex function    [xie2021].

- `one_layer`: z = μ⁻¹Wᵀσ(W z + U x + b). `deep`: compositions, and their multi-block and wide forms.
- `convex`, `objective`: φ, its Moreau envelopes and the problems solved, by methods that use no fixed point.
- `feedforward`: any ReLU network as one of these. `family`: what they share. `activations`: σ and ∫σ.
"""

from .activations import SOFTPLUS, monotone_activation
from .convex import Phi, QuadraticProgramme
from .deep import DeepOptEq, MultiBlockOptEq, OptEqLayer
from .family import ProximalFamily
from .feedforward import UnitLayers, from_feedforward, unit_layers
from .objective import Minimum
from .one_layer import OptEq

__all__ = [
    "SOFTPLUS",
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
