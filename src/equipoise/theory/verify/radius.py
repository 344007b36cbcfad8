"""How far each row may move with a proof, and how far it need move to be broken: by bisection on ε."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...linalg import row_norms_upper
from .network import up
from .result import HYPOTHESES, VerifiedPredictions

Verify = Callable[[Tensor, Tensor, bool], VerifiedPredictions]  # rows (P,), an ε for each, and how thoroughly
Far = Callable[[Tensor, Tensor], Tensor]  # of rows (P,) and their counterexamples: how far away these are


@dataclass(frozen=True)
class VerifiedRadii:
    """For every row: an ε for which what is wanted is proved, and one for which it is refuted.

    What is true in between is not known. A row that is wrong as it stands is refuted at 0.
    """

    proved: Tensor  # (N,) float64, at most `most`; 0 where nothing was proved
    refuted: Tensor  # (N,) ≥ how far the nearest counterexample found is; infinite where there is none
    counterexample: Tensor  # (N, …) float64 like X, NaN where there is none
    nodes: Tensor  # (N,) parts of sets that were bounded
    time: Tensor  # (N,) seconds
    most: float  # the largest ε that was tried
    hypotheses: tuple[str, ...] = HYPOTHESES

    def __str__(self) -> str:
        right = self.proved[self.refuted > 0]
        typical = f"; of the others the median of ε is {right.median():.4g} proved" if len(right) else ""
        wrong = len(self.proved) - len(right)
        return f"{len(self.proved)} rows: {wrong} wrong as they stand{typical}, with ε up to {self.most:g}"


def distances(X: Tensor, x: Tensor, norm: str) -> Tensor:
    """(N,): ≥ ‖x − X‖ of every row in the norm "linf" or "l2", and 0 where they are equal."""
    moved = (x - X).abs()
    far = up(moved.amax(dim=1) if norm == "linf" else row_norms_upper(up(moved)))
    return torch.where((x == X).all(dim=1), 0.0, far)


def bisected(verify: Verify, N: int, *, most: float, steps: int, far: Far) -> VerifiedRadii:
    """Bisect for each row below `most`: first where a quick look refutes it, then where it is proved."""
    zero, nothing = torch.zeros(N, dtype=torch.float64), torch.full((N, 0), torch.nan, dtype=torch.float64)
    found = VerifiedRadii(zero, zero + torch.inf, nothing, zero.long(), zero, most)
    for thorough in (False, True):
        low, high = found.proved, found.refuted.clamp_max(most)
        trial = (low + high) / 2 if thorough else high
        for _ in range(steps):
            rows = torch.nonzero(low < high).flatten()
            if not len(rows):
                break
            new = verify(rows, trial[rows], thorough)
            found = _with(found, rows, trial[rows], new, far)
            # What is not decided ends the search for a proof from above, and for a counterexample from below.
            unknown = rows[new.unknown]
            end = (high if thorough else low).index_copy(0, unknown, trial[unknown])
            low, high = (low, end) if thorough else (end, high)
            low, high = torch.maximum(low, found.proved), torch.minimum(high, found.refuted)
            trial = (low + high) / 2
    return found


def _with(
    found: VerifiedRadii, rows: Tensor, epsilon: Tensor, new: VerifiedPredictions, far: Far
) -> VerifiedRadii:
    """What is known, with what was found out about some rows at an ε for each."""
    proved, refuted, nodes, time = (getattr(found, n).clone() for n in ("proved", "refuted", "nodes", "time"))
    counter = found.counterexample
    if not counter.numel():
        counter = new.counterexample.new_full((len(proved), *new.counterexample.shape[1:]), torch.nan)
    bad, x = rows[new.refuted], new.counterexample[new.refuted]
    distance = torch.minimum(far(bad, x), epsilon[new.refuted])
    nearer = distance < refuted[bad]
    refuted[bad[nearer]], counter[bad[nearer]] = distance[nearer], x[nearer]
    proved[rows[new.proved]] = epsilon[new.proved]
    nodes[rows] += new.nodes
    time[rows] += new.time
    return VerifiedRadii(proved, refuted, counter, nodes, time, found.most, new.hypotheses)
