"""Q ŷ + q > 0: what is to be shown of the outputs, as functionals of the units."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...linalg import gamma
from .bounds import Functionals, Problem
from .network import one_norms, up


@dataclass(frozen=True)
class Wanted:
    """T inequalities for each sample: margins ŷ_y − ŷ_j > 0, the sign of one output, or a user's own."""

    count: int  # T
    labels: Tensor | None = None  # (N,): classes, or −1 and 1 of one output
    matrix: Tensor | None = None  # (T, k), the same for all samples
    constant: Tensor | None = None  # (T,)

    def asked(self, N: int) -> Tensor:
        """(N, T): which inequalities are to be shown for each sample; its own class has no margin."""
        asked = torch.ones(N, self.count, dtype=torch.bool)
        if self.labels is not None and self.count > 1:
            asked[torch.arange(N), self.labels] = False
        return asked

    def coefficients(self, sample: Tensor, target: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
        """The rows of Q (P, k) and q (P,) of some samples and inequalities."""
        if self.matrix is not None and self.constant is not None:
            return self.matrix[target], self.constant[target]
        assert self.labels is not None
        Q = torch.zeros(len(sample), outputs, dtype=torch.float64)
        if self.count == 1:
            Q[:, 0] = self.labels[sample].double()
        else:
            at = torch.arange(len(sample))
            Q[at, self.labels[sample]] = 1.0
            Q[at, target] -= 1.0
        return Q, torch.zeros(len(sample), dtype=torch.float64)

    def functionals(self, problem: Problem, sample: Tensor, target: Tensor) -> Functionals:
        """w·h + t ≤ s(Qŷ + q) = QC h + s(Qc + q) where ŷ = C h/s + c, with what its products round.

        s > 0 is what the outputs are divided by, between the ends of `problem.scale`: mostly 1.
        """
        net, scale = problem.network, problem.scale[sample]
        Q, q = self.coefficients(sample, target, len(net.readout))
        size, k = Q.abs(), len(net.readout)
        w_error = up(
            gamma(k + 4) * up(size @ net.readout.abs()) + up(one_norms(size) * net.readout_error)[:, None]
        )
        t_error = up(gamma(k + 4) * up(size @ net.shift.abs() + q.abs()))
        t = (Q @ net.shift + q)[:, None]
        t_error = up(t_error * scale[:, 1] + 2.0**-52 * (t.abs() * scale).amax(dim=1))
        return Functionals(Q @ net.readout, (t * scale).amin(dim=1), w_error, t_error)

    def margins(self, scores: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Q ŷ + q of scores (N, k), and ≥ the error of each, both (N, T); infinite where nothing is asked."""
        N, k = scores.shape
        sample = torch.arange(N).repeat_interleave(self.count)
        Q, q = self.coefficients(sample, torch.arange(self.count).repeat(N), k)
        shape = (N, self.count)
        value = (Q * scores[sample]).sum(dim=1) + q
        size = up((Q.abs() * (error + gamma(k + 4) * scores.abs())[sample]).sum(dim=1) + gamma(4) * q.abs())
        nothing = ~self.asked(N)
        return value.reshape(shape).masked_fill(nothing, torch.inf), size.reshape(shape).masked_fill(
            nothing, 0.0
        )
