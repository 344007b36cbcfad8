"""K_W = HHᵀ∘wwᵀ/μ² + C + Cᵀ + QQᵀ∘ZZᵀ,  K_U = QQᵀ∘XXᵀ,  K_b = QQᵀ,  K_V = ZZᵀ: the tangent kernel of OptEq.

With the masks D_i = diag σ'(W z_i + c_i) and readout vector a, in rows [xie2021, Appendix G]:

    w_i = (I − WᵀD_iW/μ)⁻¹ a,   Q = D∘(wWᵀ)/μ,   H = σ(ZWᵀ + c),   C = (HQᵀ∘wZᵀ)/μ.

No Jacobian is formed. More outputs have a w each, and a block K_V = δ_pq ZZᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..differentiate import Implicit
from ..models.affine import pairs, readout_block, squeeze_blocks
from ..models.proximal import OptEq
from ..solve import Stop
from .tiles import Tile


def has_formula(model: Any) -> bool:
    """Whether the blocks above are the model's: W as it is, no property appended, an exact gradient."""
    if not getattr(model, "kernel_formula", False):
        return False
    return model.bound is None and model.regulariser is None and isinstance(model.gradient, Implicit)


@dataclass(frozen=True)
class Adjoints:
    """What the blocks are made of, for N samples and k outputs."""

    X: Tensor  # (N, d)
    Z: Tensor  # (N, m)
    H: Tensor  # (N, n)
    w: Tensor  # (N, k, m)
    Q: Tensor  # (N, k, n)

    def take(self, rows: slice) -> Adjoints:
        """The adjoints of some of the samples."""
        return Adjoints(self.X[rows], self.Z[rows], self.H[rows], self.w[rows], self.Q[rows])


def adjoints(model: OptEq, X: Tensor, stop: Stop, rows: int = 256) -> Adjoints:
    """Z, H and the adjoints of X; the (m, m) systems of `rows` samples at a time."""
    W, mu, m, k = model.W, model.mu, model.state, model.outputs
    Z = model.equilibrium(X, stop=stop, gradient="implicit")
    pre = Z @ W.T + model.injection(X)  # (N, n)
    D = model.activation.slope(pre)
    eye = torch.eye(m, dtype=X.dtype, device=X.device)
    a = model.V.reshape(m, k)
    parts = [
        torch.linalg.solve(eye - torch.einsum("nm,in,nl->iml", W, d, W) / mu, a.expand(len(d), m, k)).mT
        for d in D.split(rows)
    ]
    w = torch.cat(parts) if parts else X.new_zeros(0, k, m)
    Q = D[:, None, :] * (w @ W.T) / mu
    return Adjoints(X, Z, model.activation(pre), w, Q)


def blocks(model: OptEq, one: Adjoints, two: Adjoints) -> dict[str, Tensor]:
    """⟨∂ŷ_ip/∂θ, ∂ŷ_jq/∂θ⟩ by parameter: (N, N2), or (N, k, N2, k) for k > 1."""
    mu = model.mu
    QQ = pairs(one.Q, two.Q)
    cross = pairs(one.H, two.Q) * pairs(one.w, two.Z) / mu
    other = pairs(one.Q, two.H) * pairs(one.Z, two.w) / mu
    return squeeze_blocks(
        {
            "W": pairs(one.H, two.H) * pairs(one.w, two.w) / mu**2 + cross + other + QQ * pairs(one.Z, two.Z),
            "U": QQ * pairs(one.X, two.X),
            "b": QQ,
            "V": readout_block(one.Z, two.Z, model.outputs),
        }
    )


def opteq_tiles(model: OptEq, X: Tensor, X2: Tensor | None, stop: Stop) -> Tile:
    """The blocks between some rows of X and some of X2 (by default X itself)."""
    one = adjoints(model, X, stop)
    two = one if X2 is None else adjoints(model, X2, stop)
    return lambda at, over: blocks(model, one.take(at), two.take(over))
