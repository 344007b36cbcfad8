"""|ŷ(x) − ŷ(x')| ≤ ‖a‖ R ‖u'‖ ‖x − x'‖: how far an input may move before a prediction can change.

R bounds how equilibria follow their injection u(x), and ‖u'‖ how u follows x. For the ReLU families,
⟨z − z', (I − W)(z − z') − (u − u')⟩ ≤ 0 gives R = 1/λ_min(sym(I − W)), never above 1/(1 − ‖W‖) or 1/μ:

| family | ‖z − z'‖ ≤ R‖u − u'‖ | ‖u(x) − u(x')‖ |
| --- | --- | --- |
| gao2022, ling2023, hieu2022 | R = 1/λ_min(sym(I − W)) | ‖W‖, ‖U‖, ‖U‖ times ‖x − x'‖ |
| the same, u(x) affine | the ellipsoid of sym(I − W), see `lipschitz`, where it is better | |
| xie2021 | R = s/(1 − q) of x itself, see `families/opteq`; of images `conv_robustness` | |
| kawaguchi2021 | ŷ = M x is linear: ‖M‖ itself, M = B(I − γS)⁻¹ | |

The local form sees that units far below zero stay off near x: where the active set of every x' in a ball lies
within S, z_S = relu(W_SS z_S + u_S) there, and a, W and u' may be cut down to S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..linalg import row_norms_upper
from .certificate import FLOAT64_TIER
from .lipschitz import DOWN, Bounds, no_bounds
from .recorded import RecordedBounds, is_cell_layer
from .register import find_facts

_ROWS = 2048  # rows whose equilibria are found at a time
_HYPOTHESES = (FLOAT64_TIER, "distances between inputs are Euclidean")


@dataclass(frozen=True)
class Radii:
    """For every row: what is predicted, and a ball of inputs around it in which no other prediction occurs.

    They are about the exact network with the stored weights. A radius of 0 certifies nothing; `uncertified`
    says why.
    """

    radius: Tensor  # (N,) float64: in the open ball of this radius the prediction is constant
    prediction: Tensor  # (N,) the class, or the sign (1 or −1) of a single output
    margin: Tensor  # (N,) a lower bound of how far the runner-up (or zero) is behind
    uncertified: dict[int, str]  # row -> reason
    hypotheses: tuple[str, ...] = _HYPOTHESES

    @property
    def certified(self) -> Tensor:
        """(N,) whether anything is proved of the row."""
        return self.radius > 0

    def share(self, radius: float) -> float:
        """The share of rows certified at a radius: a point of the curve of certified accuracy."""
        return float((self.radius > radius).double().mean())

    def __str__(self) -> str:
        done = self.radius[self.certified]
        typical = f", median radius {done.median().item():.3g}" if len(done) else ""
        lines = [f"{len(done)} of {len(self.radius)} rows certified{typical}"]
        lines += [f"row {row}: {why}" for row, why in list(self.uncertified.items())[:5]]
        if len(self.uncertified) > 5:
            lines.append(f"and {len(self.uncertified) - 5} rows more")
        return "\n".join(lines)


def lipschitz_bound(model: nn.Module, X: Tensor | None = None) -> float:
    """≥ sup ‖ŷ(x) − ŷ(x')‖ / ‖x − x'‖ over all inputs; ∞ if uniqueness is not proved.

    An `Equilibrium` of a cell, and a module of known layers around it, need an X, of which the shape counts.
    The bound is about the outputs at equilibria, even if the model returns unrolled steps or those of SAM.
    Images have the size that the model was built for, and their distance is that of all their pixels.
    """
    return _bounds_of(model, X).output_bound()


def pairwise_lipschitz(model: nn.Module, X: Tensor | None = None) -> Tensor:
    """(k, k): ≥ the Lipschitz constant of ŷ_p − ŷ_q, the difference that decides between two classes."""
    return _bounds_of(model, X).pair_bounds()


@torch.no_grad()
def certified_outputs(model: nn.Module, X: Tensor) -> tuple[Tensor, Tensor]:
    """ŷ (N, k) in float64, and for each row (N,) ≥ the error of an output and of a difference of two of them.

    The exact ŷ is that of the stored weights and of their one equilibrium; the solver is not trusted. Where
    uniqueness is not proved this is a ValueError.
    """
    network, outputs, errors = _bounds_of(model, X), [], []
    for part in X.split(_ROWS):
        points, obstacle = network.checked(part)
        if obstacle:
            raise ValueError(f"outputs are certified where every input has one equilibrium. Here {obstacle}.")
        found = network.scores(points)
        size = torch.as_tensor(found.scale, dtype=torch.float64).expand(len(part))
        outputs.append(found.values / size[:, None])
        # ŷ = values/s, and 1/s lies between 1/scale and (1 + excess)/scale.
        off = outputs[-1].abs().amax(dim=1) * (found.excess + 2.0**-50) + found.error / size * (
            1 + found.excess
        )
        errors.append(torch.where(off.isnan(), math.inf, off) * (1 + 2.0**-48) + 2.0**-1000)
    return torch.cat(outputs), torch.cat(errors)


@torch.no_grad()
def output_ranges(model: nn.Module, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """(N, k) each: ends between which ŷ lies for every input of the boxes low ≤ x ≤ high, in float64.

    They follow from the Lipschitz constant and the outputs at the centres, so that they serve every model
    that has one. `verify_predictions` knows much sharper ones of some families.
    """
    if not isinstance(low, Tensor) or not isinstance(high, Tensor) or low.shape != high.shape:
        got = [tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in (low, high)]
        raise ValueError(f"low and high must be tensors of one shape, one box for each row. Got {got}.")
    low, high = low.detach().double(), high.detach().double()
    if not bool((low <= high).all()) or not bool(torch.isfinite(high - low).all()):
        raise ValueError("low and high must be finite, with low ≤ high in every entry.")
    centre = low / 2 + high / 2
    half = torch.maximum(high - centre, centre - low)  # rounded once, and made larger by far more than that
    far = row_norms_upper(half.flatten(1)) * (1 + 2.0**-50) + 2.0**-1000
    values, errors = certified_outputs(model, centre)
    reach = far.to(errors) * lipschitz_bound(model, centre) + errors
    reach = (reach + 2.0**-50 * values.abs().amax(dim=1)) * (1 + 2.0**-48)
    return values - reach[:, None], values + reach[:, None]


def certified_radius(
    model: nn.Module, X: Tensor, labels: Tensor | None = None, *, local: bool = False
) -> Radii:
    """(margin − error) / Lipschitz of the difference, for every row; the worst over the other classes.

    Args:
        model: an affine family, an OptEq or a ConvOptEq that predicts classes: with k ≥ 2 outputs that of the
            largest, with one output by its sign.
        labels: classes (N,), or −1 and 1 for one output; rows that are predicted wrongly get the radius 0.
        local: use the sharper bound on the units that can be active near each row. It is never smaller, costs
            some factorisations for each row, and is known for affine families only.
    """
    network = _bounds_of(model, X)
    if local and not network.local:
        raise ValueError("local=True is known for affine families only. Leave it out for an OptEq.")
    points, obstacle = network.checked(X)
    N, k = len(X), network.a.shape[1]
    truth = None if labels is None else _checked_labels(labels, N, k)
    if obstacle:
        return _nothing(N, obstacle)
    scores, error, scale, _ = network.scores(points)
    prediction, ahead = _decide(scores)
    bounds = network.score_bounds()[prediction]
    known = torch.isfinite(scores).all(dim=1, keepdim=True)  # a score that overflowed says nothing
    off = torch.as_tensor(error, dtype=ahead.dtype, device=ahead.device).expand(N)[:, None]
    margins = _certain((ahead - off).where(known, 0.0) * DOWN)  # (N, k), or (N, 1)
    ratio = _certain(margins / bounds * DOWN)
    if k > 1:
        own = torch.nn.functional.one_hot(prediction, k).bool()
        ratio, margins = ratio.masked_fill(own, math.inf), margins.masked_fill(own, math.inf)
        shown = prediction
    else:
        shown = torch.where(scores[:, 0] < 0, -1, 1)
    radius = ratio.amin(dim=1)
    if local:
        radius = network.sharpened(points, prediction, margins, radius)
    reasons = {}
    for row in torch.nonzero(~(margins.amin(dim=1) > 0)).flatten().tolist():
        reasons[row] = "the two best outputs are closer than the error of the equilibrium"
    if truth is not None:
        wrong = shown != truth.to(shown)
        radius = radius.masked_fill(wrong, 0.0)
        for row in torch.nonzero(wrong).flatten().tolist():
            reasons[row] = f"predicted {shown[row].item()}, labelled {truth[row].item()}"
    margin = margins.amin(dim=1) / scale * DOWN
    return Radii(radius, shown, margin, dict(sorted(reasons.items())), (*_HYPOTHESES, *network.believed))


def _bounds_of(model: nn.Module, X: Tensor | None) -> Bounds:
    if X is not None and any(map(is_cell_layer, model.modules())):
        return RecordedBounds(model, X)
    known = find_facts(model)
    if known is None:
        raise no_bounds(model)
    return known.bounds()


# -- margins -------------------------------------------------------------------------------------------------


def _decide(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The predicted class, and how far every other output is behind it; for one output, |ŷ|."""
    if scores.shape[1] == 1:
        return torch.zeros(len(scores), dtype=torch.long, device=scores.device), scores.abs()
    best = scores.argmax(dim=1)
    return best, scores.gather(1, best[:, None]) - scores


def _certain(lower: Tensor) -> Tensor:
    """Lower bounds, or 0 where they are NaN or so small that DOWN does not cover the rounding."""
    return torch.where(lower > 2.0**-1000, lower, 0.0)


# -- housekeeping --------------------------------------------------------------------------------------------


def _nothing(N: int, why: str) -> Radii:
    zero = torch.zeros(N, dtype=torch.float64)
    return Radii(zero, torch.zeros(N, dtype=torch.long), zero.clone(), dict.fromkeys(range(N), why))


def _checked_labels(labels: Tensor, N: int, k: int) -> Tensor:
    want = f"classes 0 to {k - 1}" if k > 1 else "−1 or 1"
    if not isinstance(labels, Tensor) or tuple(labels.shape) != (N,):
        got = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(f"labels must be ({N},), {want}. Got {got} instead.")
    good = (labels.long() == labels) & ((labels >= 0) & (labels < k) if k > 1 else labels.abs() == 1)
    if not bool(good.all()):
        row = int(torch.nonzero(~good)[0])
        raise ValueError(f"labels must be {want}. Got {labels[row].item()} in row {row} instead.")
    return labels.long()
