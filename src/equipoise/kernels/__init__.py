"""Tangent kernels: exact at finite width, and in the limit of infinite width."""

from .population import population_gram, population_lambda_min, population_tangent_kernel
from .tangent import TangentKernel, kernel_prediction, tangent_kernel
from .width import WidthStudy, width_convergence

__all__ = [
    "TangentKernel",
    "WidthStudy",
    "kernel_prediction",
    "population_gram",
    "population_lambda_min",
    "population_tangent_kernel",
    "tangent_kernel",
    "width_convergence",
]
