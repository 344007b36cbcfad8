"""Random choices of one case, and what came of it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch

from references import error_factor

DTYPES = (torch.float64, torch.float64, torch.float32, torch.float32, torch.float16, torch.bfloat16)


class Draw:
    """Random choices of one case."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.choice, self.uniform = self.random.choice, self.random.uniform

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=self.generator)

    def size(self, dtype: torch.dtype, room: float = 3.0) -> float:
        """A power of 2 from the range of a dtype, often of ordinary size."""
        if self.chance(0.3):
            return 1.0
        info = torch.finfo(dtype)
        low, high = math.log2(info.tiny) + 3.4 * room, math.log2(info.max) - 3.4 * room
        return 2.0 ** round(self.uniform(low, high))

    def weight(self, m: int) -> tuple[torch.Tensor, bool]:
        """W (m, m) in float64, and whether one equilibrium is certain."""
        kind = self.choice(("small", "small", "small", "monotone", "triangular", "large"))
        W = self.normal(m, m)
        if kind == "monotone":
            skew, A = self.uniform(0, 3) * W, self.normal(m, m) * self.uniform(0, 1)
            W = (1 - self.choice((0.1, 0.5, 2.0))) * torch.eye(m, dtype=W.dtype) - A.T @ A + skew - skew.T
        elif kind == "triangular":
            W = torch.tril(W, -1) * self.choice((1.0, 10.0))
        else:
            norm = self.uniform(0.05, 0.95) if kind == "small" else self.uniform(1.0, 3.0)
            W = W * norm / torch.linalg.matrix_norm(W, ord=2)
        if self.chance(0.3):
            W = W * (torch.rand(m, m, generator=self.generator) > self.uniform(0.3, 0.9))
        return W, math.isfinite(error_factor(W.numpy()))


@dataclass(frozen=True)
class Word:
    """What came of a case: whether the library claimed anything, and what of it is false (or "")."""

    said: bool
    false: str = ""
