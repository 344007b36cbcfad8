"""λ_max(∇²L): how sharp a minimum is, by Lanczos on Hessian-vector products."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from ..linalg import Estimate, estimate_lambda_max


def hessian_lambda_max(
    loss: Callable[[], Tensor],
    parameters: nn.Module | Iterable[Tensor],
    steps: int = 20,
    generator: torch.Generator | None = None,
) -> Estimate:
    """About λ_max of the Hessian of `loss()` in the parameters, from below: an estimate that proves nothing.

    A product with the Hessian is a gradient of a gradient; through an equilibrium both are exact.
    """
    chosen = list(parameters.parameters()) if isinstance(parameters, nn.Module) else list(parameters)
    chosen = [p for p in chosen if p.requires_grad]
    if not chosen:
        raise ValueError("parameters must hold at least one that requires a gradient. Got none.")
    sizes = [p.numel() for p in chosen]
    with torch.enable_grad():
        value = loss()
        first = torch.autograd.grad(value, chosen, create_graph=True, materialize_grads=True)
        flat = torch.cat([g.flatten() for g in first])

    def product(v: Tensor) -> Tensor:
        with torch.enable_grad():
            second = torch.autograd.grad(flat, chosen, v, retain_graph=True, materialize_grads=True)
        return torch.cat([g.flatten() for g in second]).detach()

    return estimate_lambda_max(product, flat.detach().new_empty(sum(sizes)), steps, generator)
