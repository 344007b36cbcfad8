"""Randomised smoothing: ℓ2 radii of the class that any network answers most often under Gaussian noise.

The smoothed classifier answers the class that is most probable for x + σ·noise. If that probability is at
least p > ½, then the answer stays the same within σ Φ⁻¹(p) of x. The probability is only sampled, so every
radius is true with a probability of at least 1 − α, one row at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from scipy.special import betaincinv, ndtri
from torch import Tensor

from ...models.base import EquilibriumModel

_BATCH = 500  # copies that are solved together
_MIXED = 1e-3  # more than solves to the tolerance of a model differ by, as a share of the scores
_SLACK = 1e-9  # more than the relative error of the quantiles
Answer = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Smoothed:
    """For every row: the class of the smoothed classifier, and within which distance it stays the same."""

    classes: Tensor  # (N,) long, −1 where nothing is claimed
    radius: Tensor  # (N,) float64, in the Euclidean norm; 0 where nothing is claimed
    probability: Tensor  # (N,) ≤ the probability of the class under the noise, with probability 1 − α
    failed: Tensor  # (N,) noisy copies whose solve failed, of those that were counted
    alpha: float

    @property
    def abstained(self) -> Tensor:
        """(N,) bool: the rows of which nothing is claimed."""
        return self.classes < 0


def least_probability(hits: int, draws: int, alpha: float) -> float:
    """The lower end of Clopper and Pearson: ≤ the probability of a hit, with probability ≥ 1 − α."""
    return float(betaincinv(hits, draws - hits + 1, alpha)) * (1 - _SLACK) if hits else 0.0


@torch.no_grad()
def smoothed_predictions(
    model: EquilibriumModel,
    X: Tensor,
    *,
    sigma: float,
    head: Callable[[Any], Tensor] | None = None,
    draws: int = 1000,
    selection: int = 100,
    alpha: float = 0.001,
    seed: int = 0,
) -> Smoothed:
    """The classes and radii of the smoothed classifier at rows X (N, …), of any model or cell.

    Noisy copies of a row are solved to the tolerance of the model, all from the equilibrium of the row: a
    fixed start keeps them independent. A copy whose solve failed, or whose scores are no numbers, counts
    against the class. One copy of each batch is also solved alone: if its scores are then others, by more
    than a thousandth, the copies depend on each other, and this is a ValueError.

    Args:
        model: such as `Equilibrium(cell)`, in `eval()` mode.
        X: rows as the model takes them.
        sigma: standard deviation of the noise, > 0, in the units of X.
        head: scores (B, k) from the equilibria of B copies; by default the model's own readout.
        draws: copies that are counted. They are others than the `selection` copies that choose the class.
        alpha: probability, in (0, 1), with which the claim about a row may be false.
        seed: of the noise.
    """
    if model.training:
        raise ValueError("model must be in eval() mode, so that answers are those of one function.")
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma must be a finite number > 0. Got {sigma!r} instead.")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be in (0, 1), such as 0.001. Got {alpha!r} instead.")
    for name, value in (("draws", draws), ("selection", selection)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be an integer ≥ 1. Got {value!r} instead.")
    if not len(X):
        raise ValueError("X must hold at least one row. Got none.")
    generator = torch.Generator().manual_seed(seed)
    found: list[tuple[int, float, float, int]] = []
    for x in X:
        noisy = (_answers(model, head or model.readout, x), x, sigma, generator)
        chosen = _votes(*noisy, selection)
        known = chosen[chosen >= 0]
        if not len(known):
            found.append((-1, 0.0, 0.0, 0))
            continue
        top = int(known.bincount().argmax())
        counted = _votes(*noisy, draws)
        p = least_probability(int((counted == top).sum()), draws, alpha)
        radius = sigma * float(ndtri(p)) if p > 0.5 else 0.0
        found.append((top if p > 0.5 else -1, radius, p, int((counted < 0).sum())))
    classes, radii, probabilities, failed = zip(*found, strict=True)
    return Smoothed(
        torch.tensor(classes),
        torch.tensor(radii, dtype=torch.float64),
        torch.tensor(probabilities, dtype=torch.float64),
        torch.tensor(failed),
        alpha,
    )


def _answers(model: EquilibriumModel, head: Callable[[Any], Tensor], x: Tensor) -> Answer:
    """Scores of noisy copies of x and which of their solves succeeded, each begun at the equilibrium of x."""
    middle = model.solve(x[None])
    begin = middle.value if bool(middle.converged.all()) else None

    def answer(copies: Tensor) -> tuple[Tensor, Tensor]:
        n, start = len(copies), begin
        if isinstance(begin, Tensor):
            start = begin.expand(n, *begin.shape[1:]).contiguous()
        elif begin is not None:
            start = tuple(part.expand(n, *part.shape[1:]).contiguous() for part in begin)
        solution = model.solve(copies, start=start)
        return head(model.state_of(solution.value)), solution.converged

    return answer


def _check_alone(answer: Answer, copy: Tensor, scores: Tensor, solved: Tensor) -> None:
    """Refuse answers that depend on the other copies, which average the noise away."""
    alone, again = answer(copy)
    off, size = (alone - scores).abs().amax(), scores.abs().amax()
    if bool(solved.all() & again.all() & (off > _MIXED * size)):
        raise ValueError(
            f"scores must be those of each copy alone. Got scores that change by {float(off / size):.1g} of "
            f"their size with the other copies of the batch: the cell, or the head, mixes samples."
        )


def _votes(answer: Answer, x: Tensor, sigma: float, generator: torch.Generator, draws: int) -> Tensor:
    """The class of every noisy copy of x, −1 where it has none, (draws,)."""
    votes = []
    for begin in range(0, draws, _BATCH):
        size = (min(_BATCH, draws - begin), *x.shape)
        noise = torch.randn(size, dtype=x.dtype, generator=generator).to(x.device)
        scores, solved = answer(x + sigma * noise)
        if scores.ndim != 2 or scores.shape[1] < 2:
            raise ValueError(
                "scores must be (copies, classes) with two classes or more: the largest names the class. "
                f"Got {tuple(scores.shape)} instead. Give head=, a function from equilibria to such scores."
            )
        _check_alone(answer, x + sigma * noise[:1], scores[:1], solved[:1])
        good = solved & torch.isfinite(scores).all(dim=1)
        votes.append(torch.where(good, scores.argmax(dim=1), -1).cpu())
    return torch.cat(votes)
