"""Tangent kernels: exact at finite width, and in the limit of infinite width."""

from .operator import NotConverged, Nystrom, Regression, TangentOperator, tangent_operator
from .population import population_gram, population_lambda_min, population_tangent_kernel
from .tangent import TangentKernel, kernel_prediction, tangent_kernel
from .tiles import TileFile
from .width import WidthStudy, width_convergence

__all__ = [
    "NotConverged",
    "Nystrom",
    "Regression",
    "TangentKernel",
    "TangentOperator",
    "TileFile",
    "WidthStudy",
    "kernel_prediction",
    "population_gram",
    "population_lambda_min",
    "population_tangent_kernel",
    "tangent_kernel",
    "tangent_operator",
    "width_convergence",
]
