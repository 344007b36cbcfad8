"""sym(I − W) = μI + Aᵀ⋆A⋆, for every A, B: what is known of ConvMonotone.    [hieu2022]

R = 1/μ, and W = (1 − μ)I − Aᵀ⋆A⋆ + B⋆ − Bᵀ⋆.
"""

from __future__ import annotations

from typing import Any

from ...linalg import Interval, conv_norm_upper, frobenius, gamma
from ...models.affine import ConvMonotone
from ...models.images.parts import transposed_kernel
from ..certificate import Certificate
from ..register import facts_of
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
        claim = is_monotone(model.margin)
        mu, B = Interval(model.margin), model.B.cpu().double()
        K, side = B - transposed_kernel(B), B.shape[-1]
        a, k = (Interval(conv_norm_upper(T, model.state[1:], 1, side // 2)) for T in (model.A, K))
        k = k + gamma(1) * side * frobenius(K)  # entries of K were rounded; ‖K‖ ≤ side ‖K‖_F
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
