"""What is known of each family, one file for each family: the facts that theorems ask for."""

# Messages name the families in the order in which they are registered here.
from . import linear, scaled_relu, gaussian_relu, monotone, opteq, conv_opteq, conv_monotone, cell  # noqa: F401, I001
from .generic import GenericFacts

__all__ = ["GenericFacts"]
