"""v ↦ J v, the product with the Jacobian of any map, from reverse mode or else from forward mode."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor


def jacobian_product(f: Callable[[Tensor], Tensor], z: Tensor) -> Callable[[Tensor], Tensor]:
    """v ↦ J v with f evaluated once: the gradient in u of ⟨Jᵀu, v⟩, since Jᵀu is linear in u.

    If an operation of f cannot be differentiated twice in reverse mode, forward mode is used, which takes one
    evaluation of f for each product.
    """
    transposed: tuple[Tensor, Tensor] | None = None  # Jᵀu and u
    try:
        with torch.enable_grad():
            at = z.detach().requires_grad_()
            out = f(at)
            if out.requires_grad:
                u = torch.zeros_like(out, requires_grad=True)
                (image,) = torch.autograd.grad(out, at, u, create_graph=True, materialize_grads=True)
                transposed = (image, u) if image.requires_grad else None
    except RuntimeError:  # not differentiable in reverse
        transposed = None

    def product(v: Tensor) -> Tensor:
        nonlocal transposed
        if transposed is not None:
            image, u = transposed
            try:
                return torch.autograd.grad(image, u, v, retain_graph=True)[0]
            except RuntimeError:  # not differentiable twice
                transposed = None
        try:
            _load_forward_mode()
            return torch.func.jvp(f, (z,), (v,))[1]
        except RuntimeError as error:
            raise TypeError(
                "Jacobian-vector products need an f that is twice differentiable in reverse mode, or once in "
                f"forward mode. Got one that is neither ({error}); use Anderson or Broyden instead."
            ) from error

    return product


@functools.cache
def _load_forward_mode() -> None:
    """Load forward mode without the warnings of deprecation that torch gives about its own parts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        one = torch.ones(())
        torch.func.jvp(torch.sin, (one,), (one,))
