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
from functools import singledispatch
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..linalg import Interval, frobenius, gamma, norm_upper
from .affine.family import AffineFamily
from .affine.gaussian_relu import GaussianReLU
from .affine.linear import LinearEquilibrium
from .affine.monotone import Monotone
from .affine.scaled_relu import ScaledReLU
from .altered import altered, double, family_of
from .cell import Equilibrium

_MOST_STEPS = 10_000


class UnrolledNetwork(nn.Module):
    """z ← f(z, x), `steps` times from zero, then the readout.

    `error` bounds the distance of the output (Euclidean, a sample) to that of the equilibrium network for
    every input with ‖x‖ ≤ `radius`, in exact arithmetic; `proved` tells a proved bound from an estimated.
    """

    def __init__(
        self, body: nn.Module, steps: int, error: float, radius: float, contraction: float, proved: bool
    ) -> None:
        super().__init__()
        self.body = body
        self.steps, self.error, self.radius = steps, error, radius
        self.contraction, self.proved = contraction, proved

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x, self.steps)

    def extra_repr(self) -> str:
        how = "proved" if self.proved else "ESTIMATED"
        promise = f"error ≤ {self.error:g} for ‖x‖ ≤ {self.radius:g}"
        return f"{self.steps} steps, {promise} ({how} contraction {self.contraction:.4g})"


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
        model: an affine family, which knows its own sound bounds; or an `Equilibrium` of any cell.
        error: the largest Euclidean error of one sample's output.
        radius: the largest ‖x‖ it is to hold for.
        contraction: q < 1 of an Equilibrium's cell in z, for every such x: a number you have a proof of, or
            "estimate", measured on `sample` and labelled so.
        offset: a bound of ‖cell(0, x)‖ over ‖x‖ ≤ radius, likewise.
        sample: inputs to estimate on.
    """
    for name, value in (("error", error), ("radius", radius)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be a finite number > 0. Got {value} instead.")
    if isinstance(model, AffineFamily):
        if contraction is not None or offset is not None:
            raise ValueError("an affine family knows its own contraction and offset: give neither.")
        _refuse_altered(model, ())
        body, q, first, gain, rest = _affine(model, radius)
        steps, proved = _steps(q, first, gain, error, rest), True
    elif isinstance(model, Equilibrium):
        _refuse_altered(model, ("cell",))  # which is the user's own, and copied as it is
        q, first, proved = _bounds_of_cell(model, radius, contraction, offset, sample)
        body, steps = _CellBody(model), _steps(q, first, Interval(1.0), error)
    else:
        hint = ": its as_equilibrium() is one" if hasattr(model, "as_equilibrium") else ""
        raise TypeError(
            f"model must be an affine family or an Equilibrium. Got {type(model).__name__} instead{hint}."
        )
    return UnrolledNetwork(body, steps, error, radius, q.hi, proved)


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
def _affine(model: AffineFamily, radius: float) -> tuple[nn.Module, Interval, Interval, Interval, Interval]:
    """The body, q, a bound of ‖z_1‖, what the readout does to an error, and the error of the weight in z."""
    family = family_of(type(model))
    if family not in (GaussianReLU, ScaledReLU, Monotone, LinearEquilibrium):
        raise ValueError(
            f"bounds are known of GaussianReLU, ScaledReLU, Monotone and LinearEquilibrium. Got "
            f"{type(model).__name__} instead: unroll an Equilibrium of its map, whose bounds you give."
        )
    exact = double(model, torch.device("cpu"))
    found = exact.weight()
    weight = found.to(model.readout_weight)  # rounded once, after all cancellation
    shift = weight.cpu().double() - found
    alpha, q, scale, off = contraction_of(exact, weight.cpu().double(), shift)
    first = Interval((alpha * _injection_bound(model, radius) * scale).hi)
    gain = Interval(norm_upper(model.readout_weight.detach().reshape(model.width, -1)))
    rest = alpha * off * first / (1 - q) ** 2 if q.hi < 1 else Interval(0.0)
    return _AffineBody(model, alpha, weight), q, first, gain, rest


@singledispatch
def contraction_of(
    model: AffineFamily, weight: Tensor, shift: Tensor
) -> tuple[float, Interval, float, Interval]:
    """α, the contraction factor of z ← P((1−α)z + α(Wz + u)), the equivalence constant of its norm, and δ.

    `model` is in float64. δ bounds ‖Ŵ − W‖ in that norm, of `weight` Ŵ as it is stored and of the exact
    W = W(θ), from which the W(θ) computed in float64 differs by `shift`; the factor holds for both.
    """
    off = _off(shift, frobenius(weight), 2)
    return 1.0, Interval(norm_upper(weight)) + off, 1.0, off


@contraction_of.register
def _(model: LinearEquilibrium, weight: Tensor, shift: Tensor) -> tuple[float, Interval, float, Interval]:
    spread = math.ceil(min(float((model.A.amax(dim=0) - model.A.amin(dim=0)).amax()), 1000.0))
    units = gamma(model.width + 2 * spread + 32)  # of an entry of γS, its exponentials and their sum
    rounded = float(shift.abs().sum(dim=0).amax()) * (1 + 2.0**-40) + model.width * 2.0**-1000
    off = Interval(units) * float(model.gamma) + rounded
    return 1.0, Interval(float(model.gamma)) + off, math.sqrt(model.width) * (1 + 1e-15), off  # in ℓ₁


@contraction_of.register
def _(model: Monotone, weight: Tensor, shift: Tensor) -> tuple[float, Interval, float, Interval]:
    n = model.width
    sizes = abs(1 - model.margin) * math.sqrt(n) + 1 + frobenius(model.A) ** 2 + 2 * frobenius(model.B)
    off = _off(shift, sizes, n + 8)
    plain = Interval(norm_upper(weight)) + off
    if plain.hi < 1:
        return 1.0, plain, 1.0, off
    eye = torch.eye(n, dtype=torch.float64)
    ell = Interval(norm_upper(eye - weight)) * (1 + 2.0**-50) + off
    mu = Interval(float(model.margin)) - off
    if not mu.lo > 0:
        return 1.0, plain, 1.0, off  # B is too large for its rounding: nothing is proved
    alpha = (mu / ell**2).lo
    return alpha, (1 - 2 * alpha * mu + alpha**2 * ell**2).sqrt(), 1.0, off


def _off(shift: Tensor, sizes: Interval, roundings: int) -> Interval:
    """≥ ‖Ŵ − W‖: what the rounding to the stored dtype moved, and that of the sums behind W in float64."""
    return Interval(norm_upper(shift)) * (1 + 2.0**-50) + gamma(roundings) * sizes


def _injection_bound(model: AffineFamily, radius: float) -> Interval:
    """≥ ‖u(x)‖ for every ‖x‖ ≤ radius: u is a 1-Lipschitz function of a linear map of x, plus a bias."""
    if isinstance(model, LinearEquilibrium):
        if model.feature_map is not None:
            raise ValueError("a feature map has no bound that is known: unroll a model without one.")
        return Interval(radius)
    into = model.get_parameter("W" if isinstance(model, ScaledReLU) else "U")
    bound = Interval(norm_upper(into.detach())) * radius
    bias = getattr(model, "bias", None)
    return bound if bias is None else bound + Interval(norm_upper(bias.detach()[None]))


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
    """0 in the shape of the state: `offset` bounds no step from where a function of the inputs may begin."""
    z = layer.start_of(x)
    return tuple(map(torch.zeros_like, z)) if isinstance(z, tuple) else torch.zeros_like(z)


def _bounds_of_cell(
    layer: Equilibrium, radius: float, contraction: Any, offset: Any, sample: Tensor | None
) -> tuple[Interval, Interval, bool]:
    if contraction is None or offset is None:
        raise ValueError(
            "a cell of your own needs contraction= and offset=: numbers you have a proof of, or 'estimate' "
            "(measured on sample=, and labelled so in the result)."
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
