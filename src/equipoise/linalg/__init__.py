"""Norms, extreme singular values and eigenvalues: bounds that hold in floating point, and named estimates.

- `sound`: sharp bounds from a factorisation and one trusted product; `cheap`: bounds without an SVD.
- `convolution`: the operator norm of a convolution. `ball`: the tier `rigorous`, in ball arithmetic.
- `rounding`: `Interval`, in which theorems are evaluated. `estimates`: numbers that prove nothing.
"""

from .ball import lambda_min_lower_ball, norm_upper_ball, sigma_min_lower_ball
from .cheap import SpectralWitness, gram_bounds, proves_norm_below, proves_sigma_min_above
from .convolution import conv_norm_upper
from .estimates import (
    Estimate,
    estimate_lambda_max,
    estimate_lambda_min,
    estimate_norm,
    estimate_spectral_radius,
    estimate_trace,
)
from .products import (
    frobenius,
    frobenius_lower,
    frobenius_upper,
    gamma,
    inf_norm_upper,
    inflation,
    one_norm_upper,
    product_error,
    row_norms_upper,
    vector_norm_upper,
)
from .rounding import UNIT, Interval, maximum, minimum
from .sound import (
    SingularBounds,
    inverse_norm_upper,
    lambda_max_upper,
    lambda_min_lower,
    norm_lower,
    norm_upper,
    sigma_min_lower,
    singular_bounds,
    symmetric_part_margin_lower,
)

__all__ = [
    "UNIT",
    "Estimate",
    "Interval",
    "SingularBounds",
    "SpectralWitness",
    "conv_norm_upper",
    "estimate_lambda_max",
    "estimate_lambda_min",
    "estimate_norm",
    "estimate_spectral_radius",
    "estimate_trace",
    "frobenius",
    "frobenius_lower",
    "frobenius_upper",
    "gamma",
    "gram_bounds",
    "inf_norm_upper",
    "inflation",
    "inverse_norm_upper",
    "lambda_max_upper",
    "lambda_min_lower",
    "lambda_min_lower_ball",
    "maximum",
    "minimum",
    "norm_lower",
    "norm_upper",
    "norm_upper_ball",
    "one_norm_upper",
    "product_error",
    "proves_norm_below",
    "proves_sigma_min_above",
    "row_norms_upper",
    "sigma_min_lower",
    "sigma_min_lower_ball",
    "singular_bounds",
    "symmetric_part_margin_lower",
    "vector_norm_upper",
]
