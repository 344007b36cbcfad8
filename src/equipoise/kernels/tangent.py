"""H_ij = ⟨∂ŷ_i/∂θ, ∂ŷ_j/∂θ⟩: the exact tangent kernel, by parameter block.

Where the model has a formula (`rows`), no Jacobian is formed and the memory is O(N(m + N)). For any other
module Jacobians are formed, a chunk of samples at a time. The tiles of the kernel are computed by `tiles`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ..models.saving import Saved
from ..solve import Stop
from .rows import has_rows, options_of, rows_of
from .tiles import PairTiles, Progress, TileFile, by_tiles, digest_of, require_memory, sides, to_file


@dataclass(frozen=True)
class TangentKernel:
    """H by parameter block, and their sum: (N, N2), or (N, k, N2, k) for k > 1 outputs."""

    blocks: dict[str, Tensor]

    @property
    def total(self) -> Tensor:
        """The sum of the blocks, (N, N2)."""
        first, *others = self.blocks.values()
        total = first.clone() if others else first
        for block in others:
            total += block
        return total

    @property
    def matrix(self) -> Tensor:
        """The total as a matrix, (N k, N2 k)."""
        total = self.total
        return total if total.ndim == 2 else total.reshape(total.shape[0] * total.shape[1], -1)

    def eigenvalues(self) -> Tensor:
        """The eigenvalues λ of the total, ascending. The kernel must be square."""
        H = self.matrix
        if H.shape[0] != H.shape[1]:
            raise ValueError(
                f"eigenvalues need a square kernel (X2 left out). Got shape {tuple(H.shape)} instead."
            )
        return torch.linalg.eigvalsh(H.add(H.T).div_(2))

    @property
    def lambda_min(self) -> float:
        """The smallest eigenvalue of the total, computed in the dtype of the kernel."""
        return float(self.eigenvalues()[0])

    @property
    def lambda_max(self) -> float:
        """The largest eigenvalue of the total, computed in the dtype of the kernel."""
        return float(self.eigenvalues()[-1])

    def __repr__(self) -> str:
        shape = tuple(next(iter(self.blocks.values())).shape)
        return f"TangentKernel({shape}, blocks {', '.join(self.blocks)})"


@torch.no_grad()
def tangent_kernel(
    model: nn.Module,
    X: Tensor,
    X2: Tensor | None = None,
    *,
    stop: Stop | None = None,
    block: int | None = None,
    progress: Progress | None = None,
    out: str | Path | TileFile | None = None,
) -> TangentKernel:
    """The tangent kernel of a model between the rows of X and of X2 (by default X itself).

    Args:
        model: an affine family or OptEq (by formula), or any module with outputs (N,) or (N, k) (by
            Jacobians).
        stop: tolerance of the equilibria, and of the adjoints unless the model's `gradient` has its own. By
            default it is tight for the dtype. A module of your own has its own tolerance and takes none here.
        block: rows of X at a time, by default chosen by size. The result is the same up to rounding.
        progress: called with (rows done, rows in all); with `out`, with tiles.
        out: a .npy file to write the total to, tile by tile; a `TileFile` says by how many workers. The
            kernel has one block then, "total", (N k, N2 k), which is mapped from the file. The same call
            resumes a killed run and reads a finished file; a file of another model or other rows is refused.

    Beyond the result, (N k, N2 k) for each parameter, it holds the equilibria and adjoints, (N, m) and
    (N, k, m), and tiles of some 8 MB (34 MB with `out`, a few for each worker). A kernel that fits neither
    into memory nor, with `out`, on the disk is refused before anything is computed.
    """
    N, N2 = len(X), None if X2 is None else len(X2)
    formula = has_rows(model)
    if formula and out is None:
        names = [name for name, _ in model.named_parameters()]
        require_memory(X, N, N if N2 is None else N2, int(model.outputs), names)  # type: ignore[arg-type]
    one = rows_of(model, X, stop)
    tile = PairTiles(one, None if X2 is None else rows_of(model, X2, stop))
    if out is not None:
        shape, known = (N, N2, one.outputs), _identity(model, X, X2, stop)
        return TangentKernel({"total": to_file(tile, shape, X.dtype, out, known, progress)})
    at_a_time = sides(block, one.outputs) if formula else (block or 32, block or 32)
    return TangentKernel(by_tiles(tile, N, N2, *at_a_time, progress))


def _identity(model: nn.Module, X: Tensor, X2: Tensor | None, stop: Stop | None) -> dict[str, str]:
    """What identifies a kernel in a file: digests of the network and of the rows."""
    from .. import __version__

    settings = model.config() if isinstance(model, Saved) else repr(model)
    weights = hashlib.sha256(f"{type(model).__name__}|{json.dumps(settings, sort_keys=True)}|{stop}".encode())
    for name, value in sorted(model.state_dict().items()):
        weights.update(f"{name}|{digest_of(value)}|".encode())
    found = {"kernel": "tangent", "version": __version__, "model": weights.hexdigest(), "X": digest_of(X)}
    return found if X2 is None else found | {"X2": digest_of(X2)}


def kernel_prediction(
    model: nn.Module,
    X: Tensor,
    y: Tensor,
    X_test: Tensor,
    time: float | None = None,
    stop: Stop | None = None,
) -> Tensor:
    """ŷ(x) + H(x, X) H⁻¹ (1 − e^{−Ht}) (y − ŷ(X)): gradient flow of the linearised model on ½‖r‖².

    At `time=None` the flow is followed to its end, by the pseudo-inverse: residuals in the null space of H
    stay as they are. `stop` is used for ŷ and for `tangent_kernel`.
    """
    if time is not None and not time >= 0:
        raise ValueError(f"time must be ≥ 0, or None for the end of the flow. Got {time} instead.")
    H = tangent_kernel(model, X, stop=stop).matrix
    cross = tangent_kernel(model, X_test, X, stop=stop).matrix
    with torch.no_grad():
        options = options_of(model, stop)
        start, at_test = model(X, **options), model(X_test, **options)
        residual = (y.reshape(start.shape) - start).reshape(-1)
        values, vectors = torch.linalg.eigh((H + H.T) / 2)
        seen = values > values[-1].clamp_min(0) * len(values) * torch.finfo(H.dtype).eps
        gain = torch.where(seen, 1 / torch.where(seen, values, 1.0), 0.0)
        if time is not None:  # (1 − e^{−λt})/λ, which tends to t as λ → 0
            gain = torch.where(seen, -torch.expm1(-values * time) * gain, torch.full_like(values, time))
        move = cross @ (vectors @ (gain * (vectors.T @ residual)))
        return at_test + move.reshape(at_test.shape)
