"""Models without a certificate, and the baselines that equilibrium models are compared with."""

from .baselines import LinearModel, LinearResNet, ReLUNetwork, weight_tied
from .cnn import PlainCNN, cnn_of_size
from .multiscale import MultiscaleDEQ
from .neural_ode import NeuralODE
from .presets import xie2021_guess
from .residual import ResidualConv
from .segmentation import FCN, OptEqSegmenter, Scores, fcn_like, opteq_segmenter, poly

__all__ = [
    "FCN",
    "LinearModel",
    "LinearResNet",
    "MultiscaleDEQ",
    "NeuralODE",
    "OptEqSegmenter",
    "PlainCNN",
    "ReLUNetwork",
    "ResidualConv",
    "Scores",
    "cnn_of_size",
    "fcn_like",
    "opteq_segmenter",
    "poly",
    "weight_tied",
    "xie2021_guess",
]
