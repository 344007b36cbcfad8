"""z_k → argmin R over Fix(T): which fixed point SAM is promised to choose    [xie2021, Theorem 4]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from ..models.proximal.properties import Property
from ..solve import SAM


class _Layered(Protocol):
    regulariser: Property | None

    def layer_sizes(self) -> list[tuple[float, float]]:
        """Of each layer a sound bound of ‖W_l‖, and the norm up to which it is a proximal map."""
        ...


@dataclass(frozen=True)
class Selection:
    """Whether Theorem 4 promises that SAM tends to the fixed point with the least R."""

    promised: bool
    missing: tuple[str, ...]  # hypotheses that do not hold or are not known to
    schedule: str

    def __str__(self) -> str:
        verdict = "promised by Theorem 4" if self.promised else f"not promised: {'; '.join(self.missing)}"
        return f"least R among the fixed points: {verdict}. {self.schedule}"


def selection(model: _Layered, sam: SAM) -> Selection:
    """The hypotheses of [xie2021, Theorem 4], checked: R convex, T nonexpansive (by a sound norm bound).

    That R has one minimiser on Fix(T), and that the perturbed fixed points stay bounded, is not checked: both
    hold for a contraction, and for ½‖z − a‖² where there is a fixed point at all.
    """
    R, missing = sam.regulariser, []
    if not R.convex:
        missing.append(f"{R.name} is not convex")
    if model.regulariser is not None and not model.regulariser.nonexpansive:
        missing.append(f"{model.regulariser} is not known to be nonexpansive")
    for i, (size, limit) in enumerate(model.layer_sizes(), 1):
        if not size <= limit:
            missing.append(f"‖W‖ of layer {i} is not ≤ √(μ/L_σ) = {limit:.6g} but {size:.6g}")
    L = R.lipschitz
    eta = min(math.sqrt(2 * L), 0.5, L / 2)
    schedule = (
        f"γ = {1 / (2 * L):g}, β_k = {eta:g}/k^{sam.rho:g}, λ_k = {eta:g}/k^{sam.c:g}: the iterate is "
        f"~ k^-{sam.rho:g} off the fixed points"
    )
    return Selection(not missing, tuple(missing), schedule)
