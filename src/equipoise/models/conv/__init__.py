"""Equilibrium models of images, (N, C, H, W), and what they are compared with."""

from .cnn import PlainCNN, cnn_of_size
from .conv_opteq import ConvOptEq, ImagesWellPosed
from .images import ImageModel, RepeatedModel
from .monotone import ConvMonotone
from .multiscale import MultiscaleDEQ
from .parts import parameters_of
from .presets import xie2021_guess
from .residual import ResidualConv
from .segmentation import FCN, OptEqSegmenter, Scores, fcn_like, opteq_segmenter, poly

__all__ = [
    "FCN",
    "ConvMonotone",
    "ConvOptEq",
    "ImageModel",
    "ImagesWellPosed",
    "MultiscaleDEQ",
    "OptEqSegmenter",
    "PlainCNN",
    "RepeatedModel",
    "ResidualConv",
    "Scores",
    "cnn_of_size",
    "fcn_like",
    "opteq_segmenter",
    "parameters_of",
    "poly",
    "xie2021_guess",
]
