"""`‖C − AB‖₂ ≤ √(‖E‖₁‖E‖_∞)`, `E = |C − fl(AB)|(1+4u) + γ_{k+4}|A||B| + tiny`: the one trusted product.

Everything that `equipoise.linalg` proves about a matrix rests on this bound and on sums of non-negative
floats. Hypotheses: float64 arithmetic rounds to nearest, dot products and sums are conventional (any order,
fused or not, no Strassen). Underflow inside a product is covered by `tiny`. Threads that flush subnormals to
zero are refused: the calling thread always, those of torch's pool if a matrix is so small that it matters.

The row sums of `|A||B|` are `|A|(|B|1)`: a bound costs one matrix product and a few passes over the entries.
"""

from __future__ import annotations

import math
from sys import float_info

import torch
from torch import Tensor

from .rounding import UNIT, Interval

FactorisationError: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]
TINY = 2.0**-900  # beyond all underflow in products of matrices whose entries are near 1
_SMALL = 2.0**-900  # above this peak, flushing subnormal numbers costs less than one rounding
_SMALL_NARROW = 2.0**-60  # the same for numbers of narrower dtypes that are read into float64
_GRAIN = 2**15  # the fewest entries that torch gives to a thread
_UNSCALED = 30  # a peak in 2^±30 is near 1: such a matrix is left alone


def gamma(k: int) -> float:
    """≥ γ_k = ku/(1−ku), the relative error of k roundings; k is far below 1/u = 2^53."""
    return math.nextafter(k * UNIT / (1.0 - k * UNIT), math.inf)


def inflation(k: int) -> float:
    """≥ (1−u)^{−k}: what k roundings may have taken off a sum or product of non-negative floats (exact)."""
    return 1.0 + (2 * k + 2) * UNIT


def as_float64(M: Tensor, ndim: int | None = 2) -> Tensor:
    """M in float64 (exact for every narrower float), detached, on a device that has float64."""
    if not isinstance(M, Tensor) or not M.dtype.is_floating_point:
        kind = M.dtype if isinstance(M, Tensor) else type(M).__name__
        raise TypeError(
            f"a bound needs a real floating-point tensor. Got {kind} instead: try .to(torch.float64)"
        )
    if ndim is not None and M.ndim != ndim:
        raise ValueError(f"a bound needs a {ndim}-dimensional tensor. Got shape {tuple(M.shape)}")
    if float_info.min / 2 == 0:
        raise RuntimeError(
            "bounds need gradual underflow, but this thread flushes subnormal numbers to zero: "
            "call torch.set_flush_denormal(False) first"
        )
    M = M.detach()
    if M.dtype == torch.float64:
        return M
    wide = (M.cpu() if M.device.type == "mps" else M).to(torch.float64)
    peak_of(wide, M)
    return wide


def peak_of(M: Tensor, stored: Tensor | None = None) -> float:
    """max|M_ij|. If it is small, a RuntimeError unless every computing thread keeps subnormal numbers.

    `stored` holds the same numbers in the dtype that M was read from.
    """
    peak = M.abs().amax().item() if M.numel() else 0.0
    small = _SMALL if stored is None else _SMALL_NARROW
    if peak < small and M.device.type == "cpu" and bool(_bits(M if stored is None else stored).any()):
        _refuse_flushing_threads()
    return peak


def _bits(M: Tensor) -> Tensor:
    """The bits of M without signs, as integers: no thread mistakes a subnormal number for zero there."""
    integers = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[M.element_size()]
    return M.contiguous().view(integers) & torch.iinfo(integers).max


def _refuse_flushing_threads() -> None:
    """Raise a RuntimeError if a thread of torch's pool flushes subnormal numbers to zero.

    Two products are computed that are so large that all threads of the pool take part. Each thread keeps the
    setting of the time when it began, whatever the calling thread has set since.
    """
    threads = torch.get_num_threads()
    least = torch.full((threads * _GRAIN * 2,), float_info.min, dtype=torch.float64)
    root = torch.full((32 * threads + 128,) * 2, 2.0**-518, dtype=torch.float64)
    if bool((least * 0.5 == 0).any()) or bool((root @ root == 0).any()):
        raise RuntimeError(
            "bounds of numbers this small need gradual underflow, but a thread of torch's pool flushes "
            "subnormal numbers to zero, as torch.set_flush_denormal(True) was set when it began: "
            "call torch.set_flush_denormal(False) before anything else, or scale the numbers up"
        )


def as_square(M: Tensor) -> Tensor:
    """M in float64; a ValueError unless it is square."""
    M = as_float64(M)
    if M.shape[0] != M.shape[1]:
        raise ValueError(f"a square matrix is required. Got shape {tuple(M.shape)}")
    return M


def near_one(M: Tensor) -> tuple[Tensor, int] | None:
    """M·2^−e and e, with entries near 1; None if M holds NaN or Inf. Entries lose at most 2^−1074 each."""
    peak = peak_of(M)
    if not math.isfinite(peak):
        return None
    e = math.frexp(peak)[1]
    if peak == 0 or abs(e) <= _UNSCALED:
        return M, 0
    return _times_power(M, -e), e


def product_defect(A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """≥ ‖C − AB‖₂ for every matrix of a batch (..., n, k), (..., k, m), (..., n, m) with entries near 1.

    γ_{k+4} leaves room for factors whose entries carry one rounding themselves, such as `U * s`.
    """
    (n, k), m = A.shape[-2:], B.shape[-1]
    E = (C - A @ B).abs_()
    A, B, g = A.abs(), B.abs(), gamma(k + 4)
    rows = E.sum(-1) + g * (A @ B.sum(-1, keepdim=True)).squeeze(-1)  # (..., n)
    columns = E.sum(-2) + g * (A.sum(-2, keepdim=True) @ B).squeeze(-2)  # (..., m)
    q = inflation(n + m + k + 16)
    return (rows.amax(-1) * q + TINY).sqrt() * (columns.amax(-1) * q + TINY).sqrt() * inflation(8)


def product_error(A: Tensor, B: Tensor, C: Tensor) -> float:
    """An upper bound of ‖C − AB‖₂; inf if anything is not finite or overflows."""
    A, B, C = as_float64(A), as_float64(B), as_float64(C)
    if A.shape[1] != B.shape[0] or C.shape != (A.shape[0], B.shape[1]):
        shapes = ", ".join(str(tuple(M.shape)) for M in (A, B, C))
        raise ValueError(f"product_error needs A (n, k), B (k, m), C (n, m). Got {shapes}")
    if C.numel() == 0:
        return 0.0
    near = near_one(A), near_one(B)
    if near[0] is None or near[1] is None or not math.isfinite(peak_of(C)):
        return math.inf
    (A, a), (B, b) = near[0], near[1]
    defect = product_defect(A, B, _times_power(C, -a - b)).item()
    return Interval(0.0, defect).ldexp(a + b).hi if math.isfinite(defect) else math.inf


def frobenius(M: Tensor) -> Interval:
    """‖M‖_F of a tensor of any shape, from a sum of squares."""
    M = as_float64(M, ndim=None)
    near = near_one(M)
    if near is None:
        return Interval(0.0, math.inf)
    M, e = near
    if M.numel() == 0 or (e == 0 and not M.any()):
        return Interval(0.0)
    M = M.reshape(1, 1) if M.ndim == 0 else M.reshape(M.shape[0], -1)
    square = M.square().sum(-1).sum().item()  # (rows,) first: row-by-row sums keep γ small
    slack = (sum(M.shape) + 4) * 2 * UNIT
    norm = (Interval(square) * (1 + Interval.within(slack)) + Interval.within(TINY)).sqrt()
    return (norm + Interval.within(TINY)).ldexp(e)


def frobenius_upper(M: Tensor) -> float:
    """≥ ‖M‖_F; inf if M is not finite."""
    return frobenius(M).hi


def frobenius_lower(M: Tensor) -> float:
    """≤ ‖M‖_F; 0 if M is not finite."""
    return max(frobenius(M).lo, 0.0)


def vector_norm_upper(v: Tensor) -> float:
    """≥ ‖v‖₂ of a vector (n,)."""
    return frobenius_upper(as_float64(v, ndim=1))


def row_norms_upper(M: Tensor) -> Tensor:
    """≥ ‖M_i‖₂ of every row of M (n, k): (n,) in float64, inf where a row is not finite.

    Every row is scaled by its own power of two, so that no square overflows or is lost.
    """
    M = as_float64(M)
    if M.numel() == 0:
        return M.new_zeros(len(M))
    peak = M.abs().amax(dim=1, keepdim=True)
    peak_of(M[peak[:, 0] < _SMALL])
    e = torch.frexp(peak).exponent
    halves = [2.0 ** part.double() for part in (e // 2, e - e // 2)]  # 2^e itself may be no float
    norms = (M / halves[0] / halves[1]).square().sum(dim=1).sqrt() * inflation(M.shape[1] + 8)
    norms = norms * halves[0][:, 0] * halves[1][:, 0] + peak[:, 0] * UNIT
    norms = torch.where(norms < 2.0**-1000, norms + 2.0**-1060, norms)  # subnormal numbers are rounded too
    return torch.where(peak[:, 0] == 0, 0.0, torch.where(norms.isnan(), math.inf, norms))


def one_norm_upper(M: Tensor) -> float:
    """≥ ‖M‖₁ = max_j Σ_i |M_ij|."""
    return inf_norm_upper(as_float64(M).mT)


def inf_norm_upper(M: Tensor) -> float:
    """≥ ‖M‖_∞ = max_i Σ_j |M_ij|."""
    M = as_float64(M)
    if M.numel() == 0:
        return 0.0
    peak_of(M)
    largest = M.abs().sum(-1).amax().item()
    return (Interval(largest) * inflation(M.shape[1])).hi


def _times_power(M: Tensor, e: int) -> Tensor:
    """M·2^e by factors that are floats themselves."""
    while e:
        part = max(-1000, min(1000, e))
        M, e = M * 2.0**part, e - part
    return M
