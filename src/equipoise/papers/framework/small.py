"""Small things every check needs: seeded draws, operator norms, least singular values, explicit steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ...solve import Stop

TIGHT = Stop(rtol=1e-13)  # of equilibria that stand for exact ones
Model = TypeVar("Model", bound=nn.Module)


def seeded(seed: int) -> torch.Generator:
    """A generator of its own, at the start of that seed."""
    return torch.Generator().manual_seed(seed)


def draw(seed: int, *shape: int) -> Tensor:
    """Standard normal, float64."""
    return torch.randn(*shape, dtype=torch.float64, generator=seeded(seed))


def eye(n: int) -> Tensor:
    """The identity, float64."""
    return torch.eye(n, dtype=torch.float64)


def norm(M: Tensor) -> float:
    """‖M‖, the operator norm."""
    return torch.linalg.matrix_norm(M.detach(), 2).item()


def sigma_min(M: Tensor) -> float:
    """The least singular value."""
    return torch.linalg.svdvals(M.detach())[-1].item()


def vec(M: Tensor) -> Tensor:
    """The columns of M, stacked."""
    return M.T.flatten()


def filled(model: Model, **values: Tensor) -> Model:
    """The model itself, with these values of its parameters by name."""
    with torch.no_grad():
        for name, value in values.items():
            getattr(model, name).copy_(value)
    return model


def descend(loss: Tensor, parameters: Sequence[Tensor], step: float) -> float:
    """θ ← θ − step ∇L in place; returns ‖∇L‖."""
    gradients = torch.autograd.grad(loss, list(parameters))
    with torch.no_grad():
        for p, g in zip(parameters, gradients, strict=True):
            p -= step * g
    return torch.cat([g.flatten() for g in gradients]).norm().item()


def follow(model: Any, X: Tensor, y: Tensor, step: float, steps: int) -> tuple[list[float], list[float]]:
    """½‖ŷ − y‖² and σ_min(Z) at the start and after every one of so many explicit steps of descent."""
    losses, least = [], []
    for _ in range(steps + 1):
        Z = model.equilibrium(X, stop=TIGHT)
        loss = (model.readout(Z) - y).square().sum() / 2
        losses.append(loss.item())
        least.append(sigma_min(Z))
        descend(loss, list(model.parameters()), step)
    return losses, least


def take_step(
    optimiser: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler, loss: Tensor
) -> float:
    """One step of an optimiser down a loss, which is returned, and one of the schedule of its rate."""
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    schedule.step()
    return loss.item()


def moments(steps: int, most: int) -> set[int]:
    """At most `most` of the steps 0, …, `steps`, evenly spread, the first and the last included."""
    return set(np.linspace(0, steps, min(most, steps + 1)).round().astype(int).tolist())
