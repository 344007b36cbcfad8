"""What `verify_predictions` found, sample by sample."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

HYPOTHESES = (
    "float64 arithmetic rounds to nearest, dot products and sums are conventional",
    "the network is the exact one of the stored parameters, and its outputs are read from equilibria",
)


@dataclass(frozen=True)
class VerifiedPredictions:
    """For every row: whether what is wanted holds on its whole set of inputs.

    One of `proved`, `refuted` and `unknown` is true of each row. A counterexample lies in the set, and breaks
    what is wanted whatever was rounded.
    """

    proved: Tensor  # (N,) bool
    refuted: Tensor  # (N,) bool
    counterexample: Tensor  # (N, …) float64 like X, NaN where there is none
    margin: Tensor  # (N,) ≤ the least margin over the set
    nodes: Tensor  # (N,) parts of the set that were bounded
    time: Tensor  # (N,) seconds, a share of those of its batch
    hypotheses: tuple[str, ...] = HYPOTHESES

    @property
    def unknown(self) -> Tensor:
        """(N,) bool: neither proved nor refuted within the limits."""
        return ~(self.proved | self.refuted)

    @staticmethod
    def joined(several: list[VerifiedPredictions]) -> VerifiedPredictions:
        """The rows of all of them, in order."""
        parts: dict[str, Any] = {
            f.name: torch.cat([getattr(r, f.name) for r in several])
            for f in fields(VerifiedPredictions)
            if f.name != "hypotheses"
        }
        return VerifiedPredictions(**parts, hypotheses=several[0].hypotheses)

    def __str__(self) -> str:
        counts = ", ".join(f"{int(getattr(self, n).sum())} {n}" for n in ("proved", "refuted", "unknown"))
        return (
            f"{len(self.proved)} rows: {counts}; {int(self.nodes.sum())} parts bounded in "
            f"{float(self.time.sum()):.3g} s"
        )
