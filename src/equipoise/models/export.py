"""z_K with z_{k+1} = f(z_k, x): an equilibrium network as a plain feedforward module, K from a proved bound.

A map that contracts by q < 1 has ‖z_K − z*‖ ≤ q^K/(1 − q) · ‖f(z_0, x) − z_0‖. With a bound of the last
factor over all inputs ‖x‖ ≤ radius, K makes the output's error at most `error` for every such input. What
comes out has no loop that depends on data: torch.export and ONNX take it as it is.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..linalg import Interval, norm_upper
from .affine import AffineFamily
from .equilibrium import Equilibrium
from .linear import LinearEquilibrium
from .monotone import Monotone
from .scaled_relu import ScaledReLU

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
        body, q, first, gain = _affine(model, radius)
        steps, proved = _steps(q, first, gain, error), True
    elif isinstance(model, Equilibrium):
        q, first, proved = _bounds_of_cell(model, radius, contraction, offset, sample)
        body, steps = _CellBody(model), _steps(q, first, Interval(1.0), error)
    else:
        hint = ": its as_equilibrium() is one" if hasattr(model, "as_equilibrium") else ""
        raise TypeError(
            f"model must be an affine family or an Equilibrium. Got {type(model).__name__} instead{hint}."
        )
    return UnrolledNetwork(body, steps, error, radius, q.hi, proved)


def _steps(q: Interval, first: Interval, gain: Interval, error: float) -> int:
    """The least K with gain · q^K/(1 − q) · first ≤ error."""
    if not q.hi < 1:
        raise ValueError(
            f"a proved contraction factor below 1 is required: without one no number of steps is enough. "
            f"Got {q.hi:.6g} instead; smaller weights give one."
        )
    whole = gain * first / (1 - q)
    for K in range(1, _MOST_STEPS + 1):
        if (whole * q**K).hi <= error:
            return K
    raise ValueError(
        f"more than {_MOST_STEPS} steps would be needed (contraction {q.hi:.6g}): ask for a larger error or "
        f"a smaller radius, or train with a smaller weight."
    )


# -- affine families ---------------------------------------------------------------------------------------


class _AffineBody(nn.Module):
    """z ← P((1 − α) z + α (W z + u)), the family's own contraction; α = 1 is the plain iteration."""

    weight: Tensor

    def __init__(self, family: AffineFamily, alpha: float) -> None:
        super().__init__()
        self.family = copy.deepcopy(family).requires_grad_(False)
        self.alpha = alpha
        self.register_buffer("weight", family.weight().detach().clone())

    def forward(self, x: Tensor, steps: int) -> Tensor:
        u = self.family.injection(x)
        z = self.family.activation(self.alpha * u)
        for _ in range(steps - 1):
            p = z @ self.weight.T + u
            z = self.family.activation(p if self.alpha == 1 else (1 - self.alpha) * z + self.alpha * p)
        return self.family.readout(z)


def _affine(model: AffineFamily, radius: float) -> tuple[nn.Module, Interval, Interval, Interval]:
    """The body, q, a bound of ‖z_1‖, and what the readout does to an error."""
    with torch.no_grad():
        alpha, q, scale = contraction_of(model)
        first = alpha * _injection_bound(model, radius) * scale
        gain = Interval(norm_upper(model.readout_weight.detach().reshape(model.width, -1)))
        return _AffineBody(model, alpha), q, Interval(first.hi), gain


@singledispatch
def contraction_of(model: AffineFamily) -> tuple[float, Interval, float]:
    """α, the contraction factor of z ← P((1−α)z + α(Wz + u)), and the equivalence constant of its norm."""
    slack = 4 * torch.finfo(model.weight().dtype).eps  # the rounding of the effective weight itself
    return 1.0, Interval(norm_upper(model.weight().detach())) * (1 + slack), 1.0


@contraction_of.register
def _(model: LinearEquilibrium) -> tuple[float, Interval, float]:
    return 1.0, Interval(float(model.gamma)), math.sqrt(model.width) * (1 + 1e-15)  # in the ℓ₁ norm


@contraction_of.register
def _(model: Monotone) -> tuple[float, Interval, float]:
    weight = model.weight().detach()
    slack = 1 + 16 * torch.finfo(weight.dtype).eps * model.width
    plain = Interval(norm_upper(weight)) * slack
    if plain.hi < 1:
        return 1.0, plain, 1.0
    ell = Interval(norm_upper(torch.eye(model.width, dtype=torch.float64) - weight.double().cpu())) * slack
    mu = Interval(float(model.margin))
    alpha = (mu / ell**2).lo
    return alpha, (1 - 2 * alpha * mu + alpha**2 * ell**2).sqrt(), 1.0


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
        z = self.layer._start((x,), None)
        for _ in range(steps):
            z = self.layer.cell(z, x)
        return z


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
    z0 = layer._start((at,), None)
    first = layer.cell(z0, at)
    return float((first - z0).flatten(1).norm(dim=1).max())  # type: ignore[operator]
