"""How many singular values or eigenvalues lie above a number, exactly: the reference for every float64 bound.

The matrices are of a few rows; the counts come from integer characteristic polynomials.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor

from equipoise.linalg.ball import python_flint
from equipoise.linalg.products import as_float64, as_square


def singular_values_above(M: Tensor, thresholds: Sequence[float]) -> list[int]:
    """How many of the min(N, m) singular values exceed each threshold t ≥ 0, exactly."""
    flint, M = python_flint(), as_float64(M)
    Z, exponent = _integers(M if M.shape[0] <= M.shape[1] else M.mT, thresholds)
    polynomial = (Z * Z.transpose()).charpoly()
    return [_roots_above(polynomial, flint.fmpz(_integer(t, exponent)) ** 2) for t in thresholds]


def eigenvalues_above(G: Tensor, thresholds: Sequence[float]) -> list[int]:
    """How many eigenvalues of a symmetric G exceed each threshold, exactly."""
    flint, G = python_flint(), as_square(G)
    if not torch.equal(G, G.mT):
        raise ValueError("eigenvalues_above needs an exactly symmetric matrix")
    A, exponent = _integers(G, thresholds)
    polynomial = A.charpoly()
    return [_roots_above(polynomial, flint.fmpz(_integer(t, exponent))) for t in thresholds]


def _roots_above(polynomial: Any, t: Any) -> int:
    """All roots are real, so by Descartes the roots above t are the sign changes of p(x + t)."""
    shifted = polynomial(type(polynomial)([t, 1]))
    signs = [c > 0 for c in shifted.coeffs() if c != 0]
    return sum(a != b for a, b in pairwise(signs))


def _integers(M: Tensor, thresholds: Sequence[float]) -> tuple[Any, int]:
    """M·2^exponent as an integer matrix, with an exponent that makes the thresholds integers too."""
    rows = M.tolist()
    numbers = chain(*rows, map(float, thresholds))
    exponent = max(x.as_integer_ratio()[1].bit_length() - 1 for x in numbers)
    return python_flint().fmpz_mat([[_integer(x, exponent) for x in row] for row in rows]), exponent


def _integer(x: float, exponent: int) -> int:
    numerator, denominator = float(x).as_integer_ratio()
    return (numerator << exponent) // denominator
