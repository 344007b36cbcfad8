"""Tangent kernels: exact at finite width, and in the limit of infinite width."""

from .tangent import TangentKernel, kernel_prediction, tangent_kernel

__all__ = ["TangentKernel", "kernel_prediction", "tangent_kernel"]
