"""A start of Monotone from which the theorems of [hieu2022] hold: U is enlarged, and u begins at 0."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ...checks import one_of
from ...models.affine import Monotone
from ...models.checks import refuse_nonfinite
from ...models.norms import spectral_norm
from ...solve import Stop


@torch.no_grad()
def certified_start(
    model: Monotone, X: Tensor, y: Tensor, kind: Literal["flow", "descent"] = "flow"
) -> dict[str, float]:
    """Scale U and set u = 0, so that the theorem's conditions hold; returns its radii R_A, R_B, R_U, R_u.

    With κ = σ_N(Z)/(‖X‖_F‖U‖), which no scaling of U changes, U is enlarged until

        flow:     ‖U‖‖X‖_F ≥ 1.3 √(128(1 + 4‖A‖²)) ‖y‖/(μκ)^2.5
        descent:  ‖U‖‖X‖_F ≥ 1.3·64 √(1 + 4‖A‖²) ‖y‖/(μκ)³          (the repaired conditions)

    A and B stay. Needs n ≥ N and independent equilibria, σ_N(Z) > 0.
    """
    one_of("kind", kind, ("flow", "descent"))
    stop = Stop(rtol=1e-12) if X.dtype == torch.float64 else None
    _check(model, X, y)
    N, Z = len(X), model.solve(X, stop=stop).raise_if_failed().value
    assert isinstance(Z, Tensor)
    least = torch.linalg.svdvals(Z.double())[N - 1].item()  # λ₀
    a, size = spectral_norm(model.A), spectral_norm(model.U) * X.double().norm().item()
    if a == 0 or least <= N * torch.finfo(X.dtype).eps * size:
        raise ValueError(
            f"the certified start needs A ≠ 0 and independent equilibria, σ_N(Z) > 0. Got ‖A‖ = {a:.3g} "
            f"and σ_N(Z) = {least:.3g} instead: remove repeated or proportional rows of X, or draw again."
        )
    kappa, target = least / size, y.double().norm().item()
    if kind == "flow":
        c = 4
        wanted = 1.3 * (128 * (1 + 4 * a**2)) ** 0.5 * target / (model.margin * kappa) ** 2.5
    else:
        c = 8
        wanted = 1.3 * 64 * (1 + 4 * a**2) ** 0.5 * target / (model.margin * kappa) ** 3
    model.U.mul_(max(1.0, wanted / size))
    model.u.zero_()
    size = max(size, wanted)
    radius = 1.05 * c * target / (model.margin * kappa**2 * size)
    return {"A": a, "B": 1.0, "U": 0.02 * spectral_norm(model.U), "u": radius}


def _check(model: Monotone, X: Tensor, y: Tensor) -> None:
    """A ValueError unless the model has one output and no bias, and y a target for each row of X."""
    N = len(X)
    if model.outputs != 1 or model.bias is not None or model.c is not None:
        raise ValueError(
            f"the certified start is that of one output and no bias. Got outputs={model.outputs}, "
            f"bias={model.bias is not None}, output_bias={model.c is not None}."
        )
    if tuple(y.shape) != (N,):
        raise ValueError(f"y must be ({N},), a target a row of X. Got shape {tuple(y.shape)} instead.")
    refuse_nonfinite("y", y)
    if not bool(y.any()):
        raise ValueError("y must not be zero: there u = 0 fits already, and the radii would vanish.")
    if model.width < N or N == 0:
        raise ValueError(
            f"the certified start needs 1 ≤ N ≤ n, at most one sample a unit of width. "
            f"Got N = {N} and n = {model.width} instead."
        )
