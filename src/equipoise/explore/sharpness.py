"""λ_max(∇²L): how sharp a minimum is, by Lanczos on Hessian-vector products."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..linalg import Estimate, estimate_lambda_max

_FIRST = 16  # steps: with fewer the second eigenvalue may be taken for the first


def hessian_lambda_max(
    loss: Callable[[], Tensor],
    parameters: nn.Module | Iterable[Tensor],
    steps: int = 64,
    generator: torch.Generator | None = None,
    rtol: float = 1e-6,
) -> Estimate:
    """About λ_max of the Hessian of `loss()` in the parameters, from below: an estimate that proves nothing.

    A product with the Hessian is a gradient of a gradient; through an equilibrium both are exact. Lanczos
    takes 16 steps and begins again with twice as many until its residual is at most rtol·|λ| or `steps` are
    reached. Some eigenvalue lies within the residual; after few steps it may still be the second one.
    """
    chosen = list(parameters.parameters()) if isinstance(parameters, nn.Module) else list(parameters)
    chosen = [p for p in chosen if p.requires_grad]
    if not chosen:
        raise ValueError("parameters must hold at least one that requires a gradient. Got none.")
    sizes = [p.numel() for p in chosen]
    with torch.enable_grad():
        value = loss()
        if not value.requires_grad:
            raise ValueError("loss() must depend on the parameters. Got a number without a gradient instead.")
        first = torch.autograd.grad(value, chosen, create_graph=True, materialize_grads=True)
        flat = torch.cat([g.flatten() for g in first])
    if not flat.requires_grad:  # a gradient that is constant
        return Estimate(0.0, products=0, residual=0.0)

    def product(v: Tensor) -> Tensor:
        with torch.enable_grad():
            second = torch.autograd.grad(flat, chosen, v, retain_graph=True, materialize_grads=True)
        return torch.cat([g.flatten() for g in second]).detach()

    like, length, products = flat.detach().new_empty(sum(sizes)), min(_FIRST, steps), 0
    while True:
        found = estimate_lambda_max(product, like, length, generator)
        products += found.products
        if found.residual <= rtol * abs(found.value) or length == steps:
            return replace(found, products=products)
        length = min(2 * length, steps)
