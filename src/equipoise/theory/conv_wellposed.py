"""Lip T ≤ ∏(1 − α + α‖W_l‖²): why every image has one equilibrium of a ConvOptEq    [xie2021]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..linalg import Interval
from ..models.proximal import ConvOptEq


@dataclass(frozen=True)
class ImagesWellPosed:
    """Whether every image has one equilibrium, and why. Lip T ≤ Π_l (1 − α + α‖W_l‖²) for 1-Lipschitz σ.

    The bound also holds with a nonexpansive property behind the layers; with any other nothing is known.
    """

    norms: tuple[float, ...]  # ≥ ‖W_l‖
    contraction: float  # ≥ Lip T; ∞ where nothing bounds it
    averaged: float | None  # θ with T θ-averaged, where every ‖W_l‖ ≤ 1 and there is no property
    obstacle: str = ""  # the property that is not known to be nonexpansive

    @property
    def verdict(self) -> Literal["proved", "inconclusive"]:
        """Whether one equilibrium is proved."""
        return "proved" if self.contraction < 1 else "inconclusive"

    def explain(self) -> str:
        """The norms, and what follows from them."""
        sizes = ", ".join(f"‖W_{i}‖ ≤ {n:.6g}" for i, n in enumerate(self.norms, 1))
        if self.obstacle:
            return f"{sizes}: nothing is proved, for {self.obstacle} is not known to be nonexpansive."
        if self.contraction < 1:
            return f"{sizes}: T contracts by {self.contraction:.6g}, so every image has one equilibrium."
        return f"{sizes}: nothing is proved. Call project_() after each step of training."


def images_wellposed(model: ConvOptEq) -> ImagesWellPosed:
    """Whether every image has one equilibrium: soundly, from ‖W_l‖, α and what is known of T_R."""
    norms = model.norms()
    if model.regulariser is not None and not model.regulariser.nonexpansive:
        return ImagesWellPosed(norms, math.inf, None, str(model.regulariser))
    factor, alpha, L = Interval(1.0), Interval(model.alpha), len(norms)
    for n in norms:
        factor = factor * (1 - alpha + alpha * Interval(n) ** 2)
    averaged = None
    if model.regulariser is None and all(n <= 1 for n in norms):
        averaged = L * model.alpha / (2 + (L - 1) * model.alpha)
    return ImagesWellPosed(norms, factor.hi, averaged)
