"""∏(1 − α + α‖W_l‖²) < 1: what is known of ConvOptEq and OptEqSegmenter.    [xie2021]

R = 1/(1 − q), with q that product. How outputs follow their images is derived in `conv_robustness`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from ...linalg import Interval
from ...models.altered import altered
from ...models.images.parts import PixelHead, reduced
from ...models.proximal import ConvOptEq
from ...models.proximal.conv_opteq import ConvLayer
from ...models.zoo import OptEqSegmenter
from ..certificate import Certificate
from ..claim import Claim
from ..common import declared, unknown_layer
from ..conv_robustness import ConvNetwork
from ..conv_wellposed import images_wellposed
from ..image_features import ConvOptEqReads
from ..lipschitz import Bounds, Part, above, joint, pairs
from ..register import facts_of
from ..verify.image_units import image_units
from ..verify.images import Chain, Conv
from ..verify.network import UnitNetwork
from ..wellposed import check_shape
from .images import ImageFacts


def contracts_by(q: float) -> Claim:
    """∏(1−α+α‖W_l‖²) < 1, from a bound q of the product."""
    return Claim(
        "∏(1−α+α‖W_l‖²) < 1",
        "the map contracts: one equilibrium for every image",
        Interval(0.0, q),
        "<",
        Interval(1.0),
        "the symbol on an FFT grid, its rounding added",
        remedy="project_() with limit=0.99: smaller kernels",
    )


@facts_of(ConvOptEq)
class ConvOptEqFacts(ImageFacts):
    """What is known of ConvOptEq."""

    family = "ConvOptEq"

    def reason(self, frame: dict[str, Any]) -> Certificate:
        """Every layer is averaged and the whole contracts by the product."""
        q = images_wellposed(self.model).contraction
        claim = contracts_by(q)
        if not claim.holds:
            return Certificate(claims=(claim,), constants={"reason": claim.name}, **frame)
        return Certificate(
            claims=(claim,),
            promise=(
                f"every image has exactly one equilibrium ({claim.name}); each step of plain iteration "
                f"brings the iterate nearer by a factor {q:.6g}."
            ),
            constants={"R": (1 / (1 - Interval(q))).hi, "rate": q, "reason": claim.name},
            **frame,
        )

    def parts_obstacle(self) -> str:
        """Why a layer of another class, or a property that may expand, stands in the way; or empty."""
        if why := unknown_layer(self.model.layers, ConvLayer):
            return why
        R = self.model.regulariser
        if R is not None and not R.nonexpansive:
            return f"{R} is not known to be nonexpansive: R is not convex, or the step too long."
        return ""

    def equilibrium_error(self, X: Tensor, Z: Tensor) -> float:
        """≥ ‖Z − Z*‖_F by ‖Z − T(Z)‖_F/(1 − q), of T itself; infinite where nothing is proved."""
        if altered(self.model, outside=()):
            return math.inf
        network = ConvNetwork(self.model)
        X = network.checked(X)
        check_shape(Z, (len(X), *self.model.state))
        if network.obstacle or not bool(torch.isfinite(Z).all()):
            return math.inf
        return network.error(X, Z.detach().to(X))

    def reads(self) -> ConvOptEqReads:
        """The means of z that the head reads."""
        network = ConvNetwork(self.model)
        q = math.inf if network.obstacle else network.q.hi
        found = ConvOptEqReads(network, self.model, contracts_by(q))
        found.hypotheses = tuple(declared(self.model))
        return found

    @torch.no_grad()
    def unit_network(self) -> UnitNetwork:
        """The units of the extractor and of all layers, h_l: z is linear in these, as for a DeepOptEq.

        Where the injections of all layers move by at most 1, z_l moves by g_l times as far as z_{l−1} plus
        α‖W_l‖, and h_l by ‖W_l‖ times as far as z_{l−1}, plus 1.
        """
        exact, blocks, first = image_units(self.model)
        proved = images_wellposed(exact)
        q, L = Interval(proved.contraction), len(exact.layers)
        if not q.certainly_lt(1):
            raise ValueError(f"nothing can be verified of this model: {proved.explain()}")
        alpha, rest, norms = Fraction(exact.alpha), 1 - Fraction(exact.alpha), map(Interval, proved.norms)
        share = [float(alpha * rest**i / (1 - rest**L)) for i in range(L)]
        W = [Conv(layer.W, layer.size, layer.stride, layer.padding) for layer in exact.layers]
        back = [replace(conv, back=True) for conv in W]
        for at, layer in enumerate(exact.layers):
            U = Conv(layer.U, layer.size, layer.stride, layer.reach // 2)
            blocks.places[first + at, first - 1] = (Chain((U,)),)
            for j in range(L):
                blocks.places[first + at, first + j] = (Chain((back[j], W[at]), share[(at - 1 - j) % L]),)
            shape = len(layer.b), *reduced(layer.size, layer.stride)
            blocks.shapes.append(shape)
            blocks.offsets.append(layer.b.repeat_interleave(shape[1] * shape[2]))
        size, moved, a = list(norms), Interval(0.0), Interval(exact.alpha)
        for n in size:
            moved = (1 - a + a * n**2) * moved + a * n
        moved, total = moved / (1 - q), Interval(0.0)
        for n in size:
            total, moved = total + (n * moved + 1) ** 2, (1 - a + a * n**2) * moved + a * n
        reads = tuple(Chain((back[j],), share[L - 1 - j]) for j in range(L))
        return blocks.network(exact, total.sqrt().hi, reads)

    def bounds(self) -> ConvBounds:
        """Lipschitz constants of the outputs, or of the scores that decide."""
        return ConvBounds(self.model)


@facts_of(OptEqSegmenter)
class SegmenterFacts(ConvOptEqFacts):
    """What is known of OptEqSegmenter, which is a ConvOptEq that classifies pixels."""

    family = "OptEqSegmenter"


class ConvBounds(ConvNetwork, Bounds):
    """The Lipschitz constants of a ConvOptEq."""

    def __init__(self, model: ConvOptEq) -> None:
        super().__init__(model)
        self.believed = tuple(declared(model))

    def output_bound(self) -> float:
        """≥ the Lipschitz constant of all outputs together."""
        if self.obstacle:
            return math.inf
        return joint(self.outputs())

    def parts(self, units: Tensor | None) -> list[Part]:
        """The linear maps whose sum is the outputs, on all units."""
        return self.outputs()

    def score_bounds(self) -> Tensor:
        """The bounds of sŷ if the head normalises, so that classes are decided without 1/√ε."""
        if not self.head.normalised:
            return super().score_bounds()
        v, linear = self.head.v, self.undivided()  # of Vc + sv
        slope = (self.state * self.head.slope).hi
        if len(v) == 1:
            return above(v.new_tensor([[joint(linear)]]) + v.abs() * slope)
        return above(pairs(linear) + (v[:, None] - v).abs() * slope).fill_diagonal_(0.0)

    def checked(self, X: Tensor) -> tuple[Tensor, str]:  # type: ignore[override]
        """X in float64, and why nothing can be said."""
        if isinstance(self.model.head, PixelHead):
            raise ValueError(
                "a radius is about the one class of an image. Got task='segmentation' instead, a class for "
                "every pixel: lipschitz_bound says how far all outputs move together."
            )
        return super().checked(X), self.obstacle
