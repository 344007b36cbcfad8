"""`‖conv2d(·, K)‖ ≤ max_ω ‖K̂(ω)‖₂`, `K̂(ω) = Σ_d K_d e^{iω·d}` on a grid of n₁ × n₂ frequencies.

On an image padded with zeros to the torus of n ≥ H + k − 1 pixels a side, the zero-padded convolution is a
part of the circular one, whose singular values are those of the symbol K̂(ω), one (out × in) matrix for each
frequency [xie2021]. The norm of the reshaped kernel is no upper bound.

The symbol is an explicit sum with an explicit error; each K̂(ω) is bounded as the real matrix
`[[Re, −Im], [Im, Re]]` of the same norm, by the Cholesky witness of `sound.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .products import TINY, as_float64, gamma, inflation, near_one
from .rounding import UNIT, Interval, maximum
from .sound import Gram, extreme_eigenvalues

Pair = int | tuple[int, int]

_PIXELS = 1 << 24  # 4096 × 4096: each is a factorisation


@torch.no_grad()
def conv_norm_upper(
    kernel: Tensor,
    size: Pair,
    stride: Pair = 1,
    padding: Pair | None = None,
    dilation: Pair = 1,
    groups: int = 1,
) -> float:
    """≥ the operator norm of `z ↦ conv2d(z, kernel)` on images of `size` (H, W), and of its transpose.

    `kernel` is (out, in/groups, kh, kw). `padding=None` covers every zero padding; a given one may tighten
    the bound a little. A stride s takes every s-th output: its symbol is `[K̂(ω₁) … K̂(ω_q)]/√q` over the q
    frequencies that it maps to one. The bound is inf if the kernel is not finite. Images of more than 2²⁴
    pixels, padding included, are refused: their bound would take hours.
    """
    K = as_float64(kernel, ndim=4)
    if groups < 1 or K.shape[0] % groups:
        raise ValueError(f"groups must divide the {K.shape[0]} output channels. Got groups={groups}")
    grid, steps = [], _pair("stride", stride, 1)
    dilations = _pair("dilation", dilation, 1)
    reach = [d * (k - 1) for d, k in zip(dilations, K.shape[2:], strict=True)]
    pads = reach if padding is None else _pair("padding", padding, 0)
    for pixels, s, p, r in zip(_pair("size", size, 1), steps, pads, reach, strict=True):
        n = pixels + min(p, r)
        grid.append(n + -n % s)  # a multiple of the stride
    if math.prod(grid) > _PIXELS:
        raise ValueError(
            f"size must be at most {_PIXELS} pixels with its padding, for each takes a factorisation. "
            f"Got {grid[0]} × {grid[1]} instead."
        )
    near = near_one(K)
    if near is None:
        return math.inf
    if not K.any():
        return 0.0
    K, e = near

    K = K.unflatten(0, (groups, -1))  # (g, out, in, kh, kw)
    symbol_error = _symbol_error(K)
    rows = _exponentials(grid[0], K.shape[3], dilations[0], K.device)  # (n₁, kh)
    columns = _exponentials(grid[1], K.shape[4], dilations[1], K.device)  # (n₂, kw)
    classes = grid[0] // steps[0]
    bound = Interval(0.0)
    for w in range(classes // 2 + 1):  # K is real: K̂(−ω) is the conjugate of K̂(ω)
        Z = _symbols(K, rows[w::classes], columns, steps[1])
        bound = maximum(bound, _largest_norm(Z))
    aliases = Interval(steps[0] * steps[1]).sqrt()
    return (bound / aliases + symbol_error).ldexp(e).hi


def _largest_norm(Z: Tensor) -> float:
    """≥ the largest 2-norm in a batch of matrices with entries near 1."""
    gram = Gram.of_scaled(Z, 0)
    return gram.norm_upper(*extreme_eigenvalues(gram.G))


def _symbols(K: Tensor, rows: Tensor, columns: Tensor, step: int) -> Tensor:
    """The real form of `[K̂(ω₁) … K̂(ω_q)]`, one matrix for each group and each class of column frequencies.

    K (g, out, in, kh, kw), rows (s₁, kh), columns (n₂, kw) -> (n₂/s₂, g, 2·out, 2·q·in), q = s₁s₂.
    """
    g, out, inputs = K.shape[:3]
    phase = (rows[:, None, :, None] * columns[None, :, None, :]).flatten(2).flatten(0, 1)  # (s₁·n₂, kh·kw)
    taps = K.flatten(3).flatten(0, 2).mT  # (kh·kw, g·out·in)

    def spread(part: Tensor) -> Tensor:
        S = (part @ taps).unflatten(0, (len(rows), step, -1)).unflatten(-1, (g, out, inputs))
        return S.permute(2, 3, 4, 0, 1, 5).flatten(3)  # (n₂/s₂, g, out, s₁·s₂·in)

    re, im = spread(phase.real.contiguous()), spread(phase.imag.contiguous())
    return torch.cat([torch.cat([re, -im], -1), torch.cat([im, re], -1)], -2)


def _exponentials(n: int, taps: int, dilation: int, device: torch.device) -> Tensor:
    """`e^{2πi·j·d/n}` for j < n and the offsets d of the taps: (n, taps), each within 32u of the truth."""
    angles = [math.tau * (r if 2 * r <= n else r - n) / n for r in range(n)]
    table = torch.tensor([complex(math.cos(t), math.sin(t)) for t in angles], dtype=torch.complex128)
    return table[torch.outer(torch.arange(n), dilation * torch.arange(taps)) % n].to(device)


def _symbol_error(K: Tensor) -> Interval:
    """≥ ‖K̂(ω) − its computed value‖₂ for every ω: (80u + 2γ_{kh·kw+2})·‖Σ_d|K_d|‖₂.

    A phase is a product of two exponentials, whose errors make 64u; its own rounding makes at most 8u, and 8u
    are to spare. The sum over the taps adds γ in its real and its imaginary part.
    """
    taps = K.shape[3] * K.shape[4]
    A = K.abs().sum((-2, -1))  # (g, out, in)
    largest = Interval(A.sum(-1).amax().item()) * A.sum(-2).amax().item()  # ≥ ‖A‖_∞‖A‖₁
    relative = 80 * UNIT + 2 * gamma(taps + 2)
    return relative * largest.sqrt() * inflation(taps + sum(A.shape)) + TINY


def _pair(name: str, value: Pair, least: int) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, tuple | list | torch.Size) else (value, value)
    if len(pair) != 2 or any(not isinstance(v, int) or v < least for v in pair):
        raise ValueError(f"{name} must be an int or a pair of ints ≥ {least}. Got {value!r}")
    return pair[0], pair[1]
