"""What is known of each family, one file a family: the facts that theorems ask for."""

# Messages name the families in this order, in which they are registered.
from .linear import LinearFacts  # isort: skip
from .scaled_relu import ScaledReLUFacts  # isort: skip
from .gaussian_relu import GaussianReLUFacts  # isort: skip
from .monotone import MonotoneFacts  # isort: skip
from .generic import GenericFacts  # isort: skip
from .opteq import DeepOptEqFacts, MultiBlockFacts, OptEqFacts  # isort: skip
from .conv_opteq import ConvOptEqFacts, SegmenterFacts  # isort: skip
from .conv_monotone import ConvMonotoneFacts  # isort: skip

__all__ = [
    "ConvMonotoneFacts",
    "ConvOptEqFacts",
    "DeepOptEqFacts",
    "GaussianReLUFacts",
    "GenericFacts",
    "LinearFacts",
    "MonotoneFacts",
    "MultiBlockFacts",
    "OptEqFacts",
    "ScaledReLUFacts",
    "SegmenterFacts",
]
