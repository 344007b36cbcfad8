"""‖G/m − K‖_F ~ m^(−1/2): networks of finite width against their limit [ling2023, Theorems 2, 4 and 5]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .population import population_gram, population_lambda_min, require_rows


@dataclass(frozen=True)
class WidthStudy:
    """‖G/m − K‖_F against m, and the numbers that [ling2023, Thms 2, 4 and 5] compare."""

    widths: tuple[int, ...]
    gram_errors: tuple[tuple[float, ...], ...]  # [width][draw]            ‖G/m − K‖_F
    layer_errors: tuple[tuple[tuple[float, ...], ...], ...]  # [width][draw][l−1]  ‖G^(l)/m − K^(l)‖_F
    layer_gaps: tuple[tuple[tuple[float, ...], ...], ...]  # [width][draw][l−1]  ‖G − G^(l)‖_F/m
    lambda_0: tuple[tuple[float, ...], ...]  # [width][draw]            λ_min(G)
    lambda_star: float  # λ_min(K)

    @property
    def slope(self) -> float:
        """The slope of log(mean ‖G/m − K‖_F) over log m: about −1/2."""
        if len(set(self.widths)) < 2:
            raise ValueError(f"a slope needs two widths or more; the study has {self.widths}")
        return _slope(np.log(self.widths), np.log(np.mean(self.gram_errors, axis=1)))

    @property
    def decay(self) -> float:
        """The factor of ‖G − G^(l)‖_F/m from layer to layer; [ling2023, Thm 4] bounds it by 2√2 σ_w."""
        gaps = np.mean(self.layer_gaps, axis=(0, 1))
        seen = gaps > 1e4 * np.finfo(float).eps * gaps[0]
        return math.exp(_slope(np.arange(len(gaps))[seen], np.log(gaps[seen])))

    @property
    def theorem_2(self) -> tuple[float, ...]:
        """The share of draws with λ₀ ≥ m λ*/2, for each width."""
        floors = np.array(self.widths)[:, None] * self.lambda_star / 2
        return tuple(np.mean(np.array(self.lambda_0) >= floors, axis=1).tolist())


@torch.no_grad()
def width_convergence(
    X: Tensor, sigma_w2: float, widths: Sequence[int], draws: int, generator: torch.Generator, layers: int = 6
) -> WidthStudy:
    """G/m → K: networks drawn by [ling2023, Assumption 1], solved in float64, against K and K^(l)."""
    require_rows(X, "X")
    if not widths or min(widths) < 1 or draws < 1 or layers < 2:
        raise ValueError(
            "widths must be one or more positive integers, draws at least 1 and layers at least 2; "
            f"got widths={list(widths)}, draws={draws}, layers={layers}"
        )
    X = X.double()
    K = population_gram(X, sigma_w2)
    K_by_layer = torch.stack(
        [population_gram(X, sigma_w2, depth) for depth in range(1, layers + 1)]
    )  # (l, N, N)
    norms = lambda matrices: tuple(torch.linalg.matrix_norm(matrices).tolist())
    gram_errors, layer_errors, layer_gaps, lambda_0 = [], [], [], []
    for m in widths:
        drawn = [_drawn_grams(X, sigma_w2, m, layers, generator) for _ in range(draws)]
        gram_errors.append(norms(torch.stack([G for G, _ in drawn]) - K))
        layer_errors.append(tuple(norms(by_layer - K_by_layer) for _, by_layer in drawn))
        layer_gaps.append(tuple(norms(by_layer - G) for G, by_layer in drawn))
        lambda_0.append(tuple(m * float(torch.linalg.eigvalsh(G)[0]) for G, _ in drawn))
    return WidthStudy(
        widths=tuple(widths),
        gram_errors=tuple(gram_errors),
        layer_errors=tuple(layer_errors),
        layer_gaps=tuple(layer_gaps),
        lambda_0=tuple(lambda_0),
        lambda_star=population_lambda_min(X, sigma_w2),
    )


def _drawn_grams(
    X: Tensor, sigma_w2: float, m: int, layers: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """G/m (N, N) at the equilibrium of one drawn network, and G^(l)/m for its first layers (layers, N, N)."""
    d = X.shape[1]
    normal = lambda columns: torch.randn(m, columns, dtype=X.dtype, device=X.device, generator=generator)
    W = normal(m) * math.sqrt(2 * sigma_w2 / m)
    injection = X @ normal(d).mT * math.sqrt(2 / d)
    Z = torch.relu(injection)
    by_layer = [Z @ Z.mT / m]
    for _ in range(10_000):
        before, Z = Z, torch.relu(Z @ W.mT + injection)
        if len(by_layer) < layers:
            by_layer.append(Z @ Z.mT / m)
        elif torch.linalg.norm(Z - before) <= 1e-13 * torch.linalg.norm(Z):
            return Z @ Z.mT / m, torch.stack(by_layer)
    raise ArithmeticError(
        f"a drawn network of width {m} has no equilibrium within 10000 layers at sigma_w2={sigma_w2}: "
        "try a larger width or a smaller sigma_w2 (the paper asks for sigma_w2 < 1/8)"
    )


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.polynomial.polynomial.polyfit(x, y, 1)[1])
