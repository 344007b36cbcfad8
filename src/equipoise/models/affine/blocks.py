"""⟨∂ŷ_ip, ∂ŷ_jq⟩, (N, k, N2, k): the products of which gradients and tangent kernels are composed."""

from __future__ import annotations

import torch
from torch import Tensor


def weigh(V: Tensor, R: Tensor) -> Tensor:
    """Σ_p R_ip v_ip: the adjoint of one weighted sum of outputs, (N, m)."""
    if R.shape != V.shape[:-1]:
        raise ValueError(f"R must be {tuple(V.shape[:-1])} like ŷ. Got shape {tuple(R.shape)} instead.")
    return R[:, None] * V if V.ndim == 2 else torch.einsum("nk,nkm->nm", R, V)


def pairs(P: Tensor, Q: Tensor) -> Tensor:
    """⟨p_i, q_j⟩ of every pair, (N, k, N2, k). A tensor with one row for each sample counts as k = 1."""
    P, Q = (T[:, None, :] if T.ndim == 2 else T for T in (P, Q))
    return torch.tensordot(P, Q, dims=([2], [2]))


def readout_block(Z: Tensor, Z2: Tensor, outputs: int) -> Tensor:
    """δ_pq ⟨z_i, z_j⟩, (N, k, N2, k)."""
    return pairs(Z, Z2) * torch.eye(outputs, dtype=Z.dtype, device=Z.device)[:, None, :]


def squeeze_blocks(blocks: dict[str, Tensor]) -> dict[str, Tensor]:
    """(N, 1, N2, 1) becomes (N, N2); blocks of several outputs are left as they are."""
    return {name: b[:, 0, :, 0] if b.shape[1] == b.shape[3] == 1 else b for name, b in blocks.items()}
