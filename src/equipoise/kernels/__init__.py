"""Tangent kernels: exact at finite width, and in the limit of infinite width."""

from .population import population_gram, population_lambda_min, population_tangent_kernel, width_convergence
from .tangent import TangentKernel, kernel_prediction, tangent_kernel

__all__ = [
    "TangentKernel",
    "kernel_prediction",
    "population_gram",
    "population_lambda_min",
    "population_tangent_kernel",
    "tangent_kernel",
    "width_convergence",
]
