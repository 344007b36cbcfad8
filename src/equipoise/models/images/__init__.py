"""What every equilibrium model of images, (N, C, H, W), shares."""

from .model import ImageModel, RepeatedModel
from .parts import parameters_of

__all__ = ["ImageModel", "RepeatedModel", "parameters_of"]
