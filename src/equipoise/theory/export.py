"""z_K with z_{k+1} = f(z_k, x): an equilibrium network as a plain feedforward module, K from a proved bound.

A map that contracts by q < 1 has ‖z_K − z*‖ ≤ q^K/(1 − q) · ‖f(0, x)‖ from z_0 = 0. With a bound of the last
factor over all inputs ‖x‖ ≤ radius, K makes the output's error at most `error` for every such input. A weight
W(θ) that is off by δ once it is stored adds αδ‖f(0, x)‖/(1 − q)². What comes out has no loop that depends on
data: torch.export and ONNX take it as it is.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ..checks import positive
from ..linalg import Interval, frobenius, norm_upper
from ..models import Equilibrium
from ..models.affine import AffineFamily
from ..models.altered import altered, double
from .common import not_finite
from .facts import AffineFacts, facts, find_facts
from .moves import RECORDED, ROUNDED, Unknown, sizes
from .recorded import RecordedCell, exact_inputs

_MOST_STEPS = 10_000


class UnrolledNetwork(nn.Module):
    """z ← f(z, x), `steps` times from zero, then the readout.

    `error` bounds the Euclidean distance of a sample's output to that of the equilibrium network for every
    input with ‖x‖ ≤ `radius`, in exact arithmetic; `proved` tells a proved bound from an estimated one.
    `hypotheses` are what the proof takes on trust, such as facts that a user registered.
    """

    def __init__(
        self,
        body: nn.Module,
        steps: int,
        error: float,
        radius: float,
        contraction: float,
        proved: bool,
        hypotheses: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.body = body
        self.steps, self.error, self.radius = steps, error, radius
        self.contraction, self.proved, self.hypotheses = contraction, proved, hypotheses

    def forward(self, x: Tensor) -> Tensor:
        """ŷ of the K-th iterate."""
        return self.body(x, self.steps)

    def extra_repr(self) -> str:
        """How many steps, for what error, and on what that rests."""
        how = "proved" if self.proved else "ESTIMATED"
        promise = f"error ≤ {self.error:g} for ‖x‖ ≤ {self.radius:g}"
        trusted = "".join(f", if {hypothesis}" for hypothesis in self.hypotheses)
        return f"{self.steps} steps, {promise} ({how} contraction {self.contraction:.4g}){trusted}"


def unroll(
    model: nn.Module,
    error: float,
    radius: float,
    *,
    contraction: float | Literal["estimate"] | None = None,
    offset: float | Literal["estimate"] | None = None,
    sample: Tensor | None = None,
) -> UnrolledNetwork:
    """A plain module of K steps whose output is within `error` of the equilibrium network's for ‖x‖ ≤ radius.

    Args:
        model: an affine family, for which sound bounds are known (for a family of your own they come from the
            facts that you register, with `input_map`); or an `Equilibrium` of any cell.
        error: the largest Euclidean error of one sample's output.
        radius: the largest ‖x‖ for which this is to hold.
        contraction: the factor q < 1 by which the cell of an Equilibrium contracts in z, for every such x: a
            number that you have a proof of, or "estimate", which is measured on `sample` and labelled so. By
            default it is proved from the parts of the cell, as `certify` does it, and so is `offset`.
        offset: a bound of ‖cell(0, x)‖ over ‖x‖ ≤ radius, given in the same way.
        sample: inputs to estimate on, or from which a proof takes the shape of x.
    """
    for name, value in (("error", error), ("radius", radius)):
        positive(name, value)
    known = find_facts(model)
    if known is not None and known.affine:
        if contraction is not None or offset is not None:
            raise ValueError("an affine family knows its own contraction and offset: give neither.")
        _refuse_altered(model, ())
        return _unrolled_affine(known.model, error, radius)
    if not getattr(model, "any_cell", False):
        hint = ": its as_equilibrium() is one" if hasattr(model, "as_equilibrium") else ""
        raise TypeError(
            f"model must be an affine family or an Equilibrium. Got {type(model).__name__} instead{hint}."
        )
    layer = cast(Equilibrium, model)
    _refuse_altered(layer, ("cell",))  # the cell is the user's own, and copied as it is
    if contraction is None and offset is None and sample is not None:
        q, first = _proved_of_cell(layer, radius, sample)
        steps = _steps(q, first, Interval(1.0), error)
        trusted = (RECORDED, ROUNDED)
        return UnrolledNetwork(_CellBody(layer), steps, error, radius, q.hi, True, trusted)
    q, first, proved = _bounds_of_cell(layer, radius, contraction, offset, sample)
    steps = _steps(q, first, Interval(1.0), error)
    return UnrolledNetwork(_CellBody(layer), steps, error, radius, q.hi, proved)


def _refuse_altered(model: nn.Module, outside: Sequence[str]) -> None:
    if why := altered(model, outside):
        raise ValueError(f"what is unrolled is the family's own map: {why}")


def _steps(
    q: Interval,
    first: Interval,
    gain: Interval,
    error: float,
    rest: Interval = Interval(0.0),  # noqa: B008
) -> int:
    """The least K with gain · (q^K/(1 − q) · first + rest) ≤ error."""
    if not q.hi < 1:
        raise ValueError(
            f"a proved contraction factor below 1 is required: without one no number of steps is enough. "
            f"Got {q.hi:.6g} instead; smaller weights give one."
        )
    if not (gain * rest).hi < error:
        raise ValueError(
            f"the weight W(θ), rounded as it is stored, is off by more than the error allows: "
            f"{(gain * rest).hi:.3g} of {error:g} in the output. Unroll model.double(), or ask for less."
        )
    whole = gain * first / (1 - q)
    for K in range(1, _MOST_STEPS + 1):
        if (whole * q**K + gain * rest).hi <= error:
            return K
    raise ValueError(
        f"more than {_MOST_STEPS} steps would be needed (contraction {q.hi:.6g}): ask for a larger error or "
        f"a smaller radius, or train with a smaller weight."
    )


# -- affine families ---------------------------------------------------------------------------------------


class _AffineBody(nn.Module):
    """z ← P((1 − α) z + α (W z + u)), the family's own contraction; α = 1 is the plain iteration."""

    weight: Tensor

    def __init__(self, family: AffineFamily, alpha: float, weight: Tensor) -> None:
        super().__init__()
        self.family = copy.deepcopy(family).requires_grad_(False)
        self.alpha = alpha
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor, steps: int) -> Tensor:
        u = self.family.injection(x)
        z = self.family.activation(self.alpha * u)
        for _ in range(steps - 1):
            p = z @ self.weight.T + u
            z = self.family.activation(p if self.alpha == 1 else (1 - self.alpha) * z + self.alpha * p)
        return self.family.readout(z)


@torch.no_grad()
def _unrolled_affine(model: AffineFamily, error: float, radius: float) -> UnrolledNetwork:
    """The module, by the facts of the family, which say how it contracts and how large u can be."""
    known = facts(double(model, torch.device("cpu")))
    assert isinstance(known, AffineFacts)
    if known.obstacle:
        raise ValueError(known.obstacle)
    found = known.model.weight()
    weight = found.to(model.readout_weight)  # rounded once, after all cancellation
    stored = weight.cpu().double()
    by = known.iteration(stored, stored - found)
    at_zero = known.model.activation(torch.zeros(1, model.width, dtype=torch.float64))
    first = by.alpha * known.injection_bound(radius) * by.scale
    first = Interval((first + frobenius(at_zero) * by.scale).hi)  # ≥ ‖f(0, x)‖
    gain = Interval(norm_upper(model.readout_weight.detach().reshape(model.width, -1)))
    q = by.factor
    rest = by.alpha * by.weight_error * first / (1 - q) ** 2 if q.hi < 1 else Interval(0.0)
    body = _AffineBody(model, by.alpha, weight)
    steps = _steps(q, first, gain, error, rest)
    return UnrolledNetwork(body, steps, error, radius, q.hi, True, known.rests_on)


# -- any cell ----------------------------------------------------------------------------------------------


class _CellBody(nn.Module):
    def __init__(self, layer: Equilibrium) -> None:
        super().__init__()
        self.layer = copy.deepcopy(layer).requires_grad_(False)

    def forward(self, x: Tensor, steps: int) -> Any:
        z = _zero_start(self.layer, x)
        for _ in range(steps):
            z = self.layer.cell(z, x)
        return z


def _zero_start(layer: Equilibrium, x: Tensor) -> Any:
    """0 in the shape of the state, since `offset` bounds the first step from 0 and from no other start."""
    z = layer.start_of(x)
    return tuple(map(torch.zeros_like, z)) if isinstance(z, tuple) else torch.zeros_like(z)


def _proved_of_cell(layer: Equilibrium, radius: float, sample: Tensor) -> tuple[Interval, Interval]:
    """≥ q and ≥ ‖cell(0, x)‖ ≤ ‖cell(0, 0)‖ + k‖x‖, by the parts of the cell."""
    if why := not_finite(layer, sample):
        raise ValueError(why)
    x = torch.zeros_like(exact_inputs(sample[:1]))
    try:
        cell = RecordedCell(layer)
        at = cell.at(torch.zeros_like(cell.start(x)), x)
    except Unknown as unknown:
        raise ValueError(
            f"the cell's contraction is not proved: {unknown.what} Give contraction= and offset=, numbers "
            f"you have a proof of, or 'estimate'."
        ) from None
    first = Interval(float(sizes(at.value))) + float(at.off) + at.with_x * radius
    if not first.hi < math.inf:
        raise ValueError(
            "how the cell follows x is not proved: no constant is known of a layer that acts on x. Give "
            "contraction= and offset=."
        )
    return Interval(0.0, at.with_z.hi), Interval(0.0, first.hi)


def _bounds_of_cell(
    layer: Equilibrium, radius: float, contraction: Any, offset: Any, sample: Tensor | None
) -> tuple[Interval, Interval, bool]:
    if contraction is None or offset is None:
        raise ValueError(
            "a cell of your own needs sample=, inputs of which the shape counts, for a proof from its parts; "
            "or contraction= and offset=: numbers you have a proof of, or 'estimate' (measured on sample=, "
            "and labelled so in the result)."
        )
    estimated = "estimate" in (contraction, offset)
    if estimated and sample is None:
        raise ValueError("an estimate is measured on data: give sample=, inputs like those in use.")
    if contraction == "estimate":
        contraction = _estimate(lambda: _observed_contraction(layer, sample))
    if offset == "estimate":
        offset = _estimate(lambda: _observed_offset(layer, sample, radius))
    return Interval(float(contraction)), Interval(float(offset)), not estimated


def _estimate(measure: Callable[[], float]) -> float:
    with torch.no_grad():
        return 1.1 * measure()  # a tenth more than was seen, which proves nothing


def _observed_contraction(layer: Equilibrium, x: Tensor | None) -> float:
    """The largest ‖f(z) − f(z')‖/‖z − z'‖ seen near the equilibria of the sample."""
    assert x is not None
    z = layer.solve(x).value
    if isinstance(z, tuple):
        raise ValueError("estimates are made for a state of one tensor.")
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for scale in (1e-3, 1e-1, 1.0):
        v = torch.randn(z.shape, generator=generator, dtype=z.dtype).to(z.device)
        for _ in range(10):
            v = scale * v / v.flatten(1).norm(dim=1).clamp_min(1e-30).reshape(-1, *[1] * (z.ndim - 1))
            moved = layer.cell(z + v, x) - layer.cell(z, x)  # type: ignore[operator]
            worst = max(worst, float((moved.flatten(1).norm(dim=1) / scale).max()))
            v = moved
    return worst


def _observed_offset(layer: Equilibrium, x: Tensor | None, radius: float) -> float:
    assert x is not None
    size = x.flatten(1).norm(dim=1).clamp_min(1e-30).reshape(-1, *[1] * (x.ndim - 1))
    at = x / size * radius
    first = layer.cell(_zero_start(layer, at), at)
    return float(first.flatten(1).norm(dim=1).max())  # type: ignore[union-attr]
