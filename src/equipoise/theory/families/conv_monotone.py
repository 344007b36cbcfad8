"""sym(I − W) = μI + Aᵀ⋆A⋆, for every A, B: what is known of ConvMonotone.    [hieu2022]

R = 1/μ, and W = (1 − μ)I − Aᵀ⋆A⋆ + B⋆ − Bᵀ⋆.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...linalg import Interval, conv_norm_upper, frobenius, gamma
from ...models.affine import ConvMonotone
from ...models.images.parts import transposed_kernel
from ..certificate import Certificate
from ..common import declared
from ..conv_robustness import (
    conv_rounding,
    extracted,
    extractor_norms,
    refuse_unknown,
    solved_double,
)
from ..image_features import PooledReads
from ..register import facts_of, has_own_facts
from ..verify.image_units import image_units
from ..verify.images import Chain, Conv
from ..verify.network import UnitNetwork
from .images import ImageFacts
from .monotone import is_monotone


@facts_of(ConvMonotone)
class ConvMonotoneFacts(ImageFacts):
    """What is known of ConvMonotone."""

    family = "ConvMonotone"
    has_error = False

    def reason(self, frame: dict[str, Any]) -> Certificate:
        """With M = I − W = S − K, S = μI + Aᵀ⋆A⋆ and K = B⋆ − Bᵀ⋆,

            ‖Mx‖ ≤ (‖S^½‖ + ‖K‖/√μ) ‖S^½x‖ = √λ ‖S^½x‖,  so  ‖(I − αM)x‖² ≤ (1 − (2α − α²λ)μ)‖x‖²  for αλ ≤ 2:

        forward-backward splitting contracts, most at α = 1/λ.
        """
        model = self.model
        claim, mu = is_monotone(model.margin), Interval(model.margin)
        a, k = _norms(model)
        curvature = ((mu + a**2).sqrt() + k / mu.sqrt()) ** 2  # λ
        step, rate, nearer = 1 / curvature.hi, 1.0, ""
        if step:
            rate = min((1 - (2 * Interval(step) - Interval(step) ** 2 * curvature.hi) * mu).sqrt().hi, 1.0)
        if rate < 1:
            nearer = (
                f"; each step of forward-backward splitting with α = {step:.6g} brings the iterate nearer "
                f"by a factor {rate:.6g}"
            )
        return Certificate(
            claims=(claim,),
            promise=f"every image has exactly one equilibrium ({claim.name}){nearer}.",
            constants={"R": (1 / mu).hi, "rate": rate, "step_size": step, "reason": claim.name},
            **frame,
        )

    @torch.no_grad()
    def unit_network(self) -> UnitNetwork:
        """The units of the extractor, and z itself: W = (1 − μ)I − Aᵀ⋆A⋆ + B⋆ − Bᵀ⋆, R = 1/μ."""
        exact, blocks, core = image_units(self.model)
        size, side, reach = exact.state[1:], exact.A.shape[-1] // 2, exact.U.shape[-1] // 2
        A, B, U = (Conv(K, size, 1, p) for K, p in ((exact.A, side), (exact.B, side), (exact.U, reach)))
        loop = Chain((A,)).steps + Chain((A,)).transposed().steps
        skew = Chain((B,)), replace(Chain((B,)).transposed(), scale=-1.0)
        blocks.places[core, core] = (Chain((), 1 - exact.margin), Chain(loop, -1.0), *skew)
        blocks.places[core, core - 1] = (Chain((U,)),)
        blocks.shapes.append(exact.state)
        blocks.offsets.append(exact.b.repeat_interleave(size[0] * size[1]))
        return blocks.network(exact, (1 / Interval(exact.margin)).hi, (Chain(),))

    def reads(self) -> ConvMonotoneReads:
        """The means of z that the head reads."""
        refuse_unknown(self.model)
        found = ConvMonotoneReads(self.model)
        found.hypotheses = tuple(declared(self.model))
        if not has_own_facts(self.model):
            found.obstacle = f"{type(self.model).__name__} may compute otherwise than {self.family}."
        return found


class ConvMonotoneReads(PooledReads):
    """What the head of a ConvMonotone reads."""

    def __init__(self, model: ConvMonotone) -> None:
        super().__init__(model, solved_double(model))
        exact, self.claims = self.exact, (is_monotone(model.margin),)
        self.a, self.k = _norms(exact)
        mu = Interval(exact.margin)
        self.injection = Interval(conv_norm_upper(exact.U, exact.state[1:], 1, exact.U.shape[-1] // 2))
        self.norms = extractor_norms(exact)
        # ‖z − z*‖ ≤ (1 + ‖W‖/μ)‖z − f(z)‖
        self.factor = 1 + (abs(1 - mu) + self.a**2 + self.k) / mu
        self.resolvent = (1 / mu).hi

    def extracted(self, X: Tensor) -> tuple[Tensor, Interval]:
        """With the norms of its convolutions."""
        return extracted(self.exact, self.norms, X)

    def state_error(self, X: Tensor, Z: Tensor) -> float:
        """‖Z − f(Z)‖_F (1 + ‖W‖/μ), with the rounding of g and f added."""
        model, pad = self.exact, self.exact.A.shape[-1] // 2
        K, A_T = model.skew(), transposed_kernel(model.A)
        g, g_off = self.given(X)
        c = F.conv2d(g, model.U, padding=model.U.shape[-1] // 2) + model.b[:, None, None]
        h = F.conv2d(Z, model.A, padding=pad)
        AAz, Kz = F.conv2d(h, A_T, padding=pad), F.conv2d(Z, K, padding=pad)
        rest = Z - torch.relu((1 - model.margin) * Z - AAz + Kz + c)
        size = frobenius(Z)
        off = self.injection * g_off + conv_rounding(model.U, g)
        off += self.a * conv_rounding(model.A, Z) + conv_rounding(A_T, h) + conv_rounding(K, Z)
        off += gamma(1) * K.shape[-1] * frobenius(K) * size  # entries of K were rounded
        sums = (2 + abs(Interval(model.margin))) * size + frobenius(AAz) + frobenius(Kz) + frobenius(c)
        return ((frobenius(rest) + off + gamma(8) * sums) * self.factor).hi


def _norms(model: ConvMonotone) -> tuple[Interval, Interval]:
    """≥ ‖A‖ and ≥ ‖B − Bᵀ‖, as maps of images of the state's size."""
    B = model.B.cpu().double()
    K, side = B - transposed_kernel(B), B.shape[-1]
    a, k = (Interval(conv_norm_upper(T, model.state[1:], 1, side // 2)) for T in (model.A, K))
    return a, k + gamma(1) * side * frobenius(K)  # entries of K were rounded; ‖K‖ ≤ side ‖K‖_F
