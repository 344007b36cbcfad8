"""K_W = HHᵀ∘wwᵀ/μ² + C + Cᵀ + QQᵀ∘ZZᵀ,  K_U = QQᵀ∘XXᵀ,  K_b = QQᵀ,  K_V = ZZᵀ: the tangent kernel of OptEq.

With the masks D_i = diag σ'(W z_i + c_i) and readout vector a, in rows [xie2021, Appendix G]:

    w_i = (I − WᵀD_iW/μ)⁻¹ a,   Q = D∘(wWᵀ)/μ,   H = σ(ZWᵀ + c),   C = (HQᵀ∘wZᵀ)/μ.

No Jacobian is formed. With several outputs p, q each has a w of its own, and K_V = δ_pq ZZᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..differentiate import Implicit
from ..models.affine import pairs, readout_block, squeeze_blocks, weigh
from ..models.proximal import OptEq
from ..solve import Stop


def has_formula(model: Any) -> bool:
    """Whether the formulas above hold: no bound scales W, no property follows, and the gradient is exact."""
    if not getattr(model, "kernel_formula", False):
        return False
    return model.bound is None and model.regulariser is None and isinstance(model.gradient, Implicit)


@dataclass(frozen=True)
class Adjoints:
    """The quantities from which the blocks are computed, for N samples and k outputs."""

    model: OptEq
    X: Tensor  # (N, d)
    Z: Tensor  # (N, m)
    H: Tensor  # (N, n)
    w: Tensor  # (N, k, m)
    Q: Tensor  # (N, k, n)

    def take(self, rows: slice) -> Adjoints:
        """The adjoints of some of the samples."""
        parts = (T[rows] for T in (self.X, self.Z, self.H, self.w, self.Q))
        return Adjoints(self.model, *parts)

    def __len__(self) -> int:
        return len(self.X)

    @property
    def outputs(self) -> int:
        """k."""
        return self.model.outputs

    def blocks(self, two: Adjoints) -> dict[str, Tensor]:
        """⟨∂ŷ_ip/∂θ, ∂ŷ_jq/∂θ⟩ by parameter: (N, N2), or (N, k, N2, k) for k > 1."""
        mu = self.model.mu
        QQ = pairs(self.Q, two.Q)
        cross = pairs(self.H, two.Q) * pairs(self.w, two.Z) / mu
        other = pairs(self.Q, two.H) * pairs(self.Z, two.w) / mu
        own = pairs(self.H, two.H) * pairs(self.w, two.w) / mu**2
        return squeeze_blocks(
            {
                "W": own + cross + other + QQ * pairs(self.Z, two.Z),
                "U": QQ * pairs(self.X, two.X),
                "b": QQ,
                "V": readout_block(self.Z, two.Z, self.outputs),
            }
        )

    def pull(self, R: Tensor) -> dict[str, Tensor]:
        """Σ_ip R_ip ∂ŷ_ip/∂θ by parameter, R (N, k): ∂ŷ/∂W = H wᵀ/μ + Q zᵀ."""
        q, w = weigh(self.Q, R), weigh(self.w, R)
        found = {"W": self.H.T @ w / self.model.mu + q.T @ self.Z, "U": q.T @ self.X}
        return found | {"b": q.sum(dim=0), "V": self.Z.T @ R}


def adjoints(model: OptEq, X: Tensor, stop: Stop, rows: int = 256) -> Adjoints:
    """Z, H and the adjoints of X; the (m, m) systems are solved for `rows` samples at a time."""
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
    return Adjoints(model, X, Z, model.activation(pre), w, Q)
