"""Norms and products of every row, although squares of large and small numbers leave the range of a dtype."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# A temporary with more entries than this is made in pieces: half a second-level cache.
_BLOCK = 2**16
# torch multiplies batches of matrices with fewer products than this in a loop that takes twice the time.
_SMALL = 400


def norm_dtype(z: Tensor) -> torch.dtype:
    """The dtype in which norms of z are computed: float32 at least."""
    return torch.float32 if z.dtype in (torch.float16, torch.bfloat16) else z.dtype


def row_norms(z: Tensor) -> Tensor:
    """‖z‖ of each row of (n, D).

    Rows whose squares overflow, or are so small that some may have been lost, are divided by their largest
    entry first. All others, almost always all, take one pass.
    """
    norms = torch.linalg.vector_norm(z, dim=1, dtype=norm_dtype(z))
    if not len(norms):
        return norms
    info = torch.finfo(norms.dtype)
    safe = math.sqrt(info.tiny * z.shape[1] / info.eps)  # above it, lost squares do not show
    low, high = torch.aminmax(norms)
    if float(low) >= safe and float(high) < math.inf:
        return norms
    rows = torch.nonzero(~((norms >= safe) & (norms < math.inf))).flatten()  # a NaN too
    part = z[rows].to(norms.dtype)
    largest = part.abs().amax(dim=1)
    unit = torch.where((largest > 0) & (largest < math.inf), largest, 1.0)
    scaled = unit * torch.linalg.vector_norm(part / unit[:, None], dim=1)
    return norms.index_copy(0, rows, scaled)


def unit_of(g: Tensor) -> Tensor | None:
    """The number to divide each row by, (n, 1), so that products of two such rows stay in range.

    None if no row needs it, with room for residuals to fall and grow in a solve.
    """
    info, size = torch.finfo(g.dtype), g.abs().amax(dim=1)
    odd = (size > 0) & ((size < info.tiny**0.25) | (size > info.max**0.25))
    return torch.where(odd, size, 1.0)[:, None] if bool(odd.any()) else None


def row_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖a − b‖ of each row, a few rows at a time: their difference then stays in the cache."""
    some = max(1, _BLOCK // a.shape[1])
    if some >= len(a):
        return row_norms(a - b)
    return torch.cat([row_norms(x - y) for x, y in zip(a.split(some), b.split(some), strict=True)])


def products(rows: Tensor, v: Tensor) -> Tensor:
    """⟨rows_k, v⟩ of each sample, (n, k) from (n, k, D) and (n, D).

    It is computed as v times the transpose, for which torch is up to ten times as fast as for rows @ v.
    """
    return torch.bmm(v[:, None], rows.mT)[:, 0]


def combined(weights: Tensor, rows: Tensor) -> Tensor:
    """Σ_k weights_k rows_k of each sample, (n, D) from (n, k) and (n, k, D)."""
    if rows.shape[1] * rows.shape[2] < _SMALL:
        return (weights[:, :, None] * rows).sum(dim=1)
    return torch.bmm(weights[:, None], rows)[:, 0]
