"""Equilibrium models of images, (N, C, H, W), and what they are compared with."""

from .cnn import PlainCNN, cnn_of_size
from .conv_opteq import ConvOptEq, WellPosed
from .images import ImageModel, RepeatedModel
from .parts import parameters_of
from .presets import xie2021_guess
from .residual import ResidualConv

__all__ = [
    "ConvOptEq",
    "ImageModel",
    "PlainCNN",
    "RepeatedModel",
    "ResidualConv",
    "WellPosed",
    "cnn_of_size",
    "parameters_of",
    "xie2021_guess",
]
