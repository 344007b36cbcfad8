"""A transformer cell of tokens (N, T, D) with padding: z = LN(h + MLP(h)), h = LN(x + attention(z, mask))."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.layers import rows_of
from bench.measure import Row

REASONS = {
    "forward": "Ten steps bring this cell to its tolerance, and both sides evaluate it eleven times. These "
    "evaluations are 71 % of our time, Anderson's steps 14 %, the checks of all rows 9 %: without any steps "
    "and checks the ratio would be near 1.4. Two more evaluations by Picard() take 0.85 of the time."
}


class TransformerCell(nn.Module):
    """One block whose attention sees the tokens of a sample that are not padding."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        for p in (self.out.weight, self.mlp[2].weight):
            nn.init.normal_(p, std=0.1)

    def forward(self, z: Tensor, x: Tensor, real: Tensor) -> Tensor:
        n, t, d = z.shape
        q, k, v = self.qkv(z).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None])
        h = self.first(x + self.out(seen.transpose(1, 2).reshape(n, t, d)))
        return self.second(h + self.mlp(h))


def run(quick: bool = False) -> list[Row]:
    torch.manual_seed(0)
    n, t, d = (8, 12, 32) if quick else (32, 24, 64)
    cell, x = TransformerCell(d, 4), torch.randn(n, t, d)
    real = torch.arange(t) < torch.randint(t // 2, t + 1, (n, 1))  # (N, T)
    work = f"transformer cell, {n} × {t} × {d}"
    return rows_of(work, cell, (x, real), 1e-4, 3 if quick else 11, target=1.2)
