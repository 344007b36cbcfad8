"""‖∂f/∂z‖_F² / D and ρ(∂f/∂z) at the equilibrium: penalties to add to a loss, to keep a map contracting.

Both are random estimates that steer training and prove nothing about the map. The equilibrium is held fixed,
so a penalty reaches the parameters and inputs of the cell only through f, and the cell must be twice
differentiable. For a proof that a map contracts, see the model families and their certificates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrize import ParametrizationList

from ..solve.problem import Layout
from ..solve.solution import State
from .graph import nodes_of

_UNKNOWN = ("NotImplemented", "autograd::Error")  # nodes of torch that have no derivative


def jacobian_penalty(
    layer: Any,
    x: Any,
    *args: Any,
    shared: Sequence[Any] = (),
    z: State | None = None,
    samples: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """mean_n ‖vᵀ J_n‖² / D over random signs v: an unbiased estimate of the mean of ‖∂f/∂z‖_F² / D.

    `z` is the equilibrium of `layer(x, *args, shared=shared)`; if it is not given, it is solved for.
    `samples` draws of v are averaged. The penalty is differentiable in the parameters of the cell.
    """
    if samples < 1:
        raise ValueError(f"samples must be ≥ 1. Got {samples} instead.")
    at, fz = _evaluate(layer, (x, *args), shared, z)
    total = fz.new_zeros(())
    for _ in range(samples):
        v = torch.randint(0, 2, fz.shape, generator=generator, device=fz.device).to(fz.dtype) * 2 - 1
        total = total + _pull(at, fz, v, record=True).square().sum()
    return total / (samples * max(fz.numel(), 1))


def spectral_radius_penalty(
    layer: Any,
    x: Any,
    *args: Any,
    shared: Sequence[Any] = (),
    z: State | None = None,
    steps: int = 10,
    generator: torch.Generator | None = None,
) -> Tensor:
    """mean_n ‖J_nᵀ u_n‖, u ← Jᵀu / ‖Jᵀu‖: an estimate of the mean of ρ(∂f/∂z), by power iteration.

    It takes `steps` products with Jᵀ from a random start. The last one is differentiable in the parameters of
    the cell, with u held fixed. The limit is exact if one real eigenvalue is the largest; if a complex pair
    is, the estimate swings about ρ. `z` is as in `jacobian_penalty`.
    """
    if steps < 1:
        raise ValueError(f"steps must be ≥ 1. Got {steps} instead.")
    at, fz = _evaluate(layer, (x, *args), shared, z)
    u = torch.randn(fz.shape, generator=generator, dtype=fz.dtype, device=fz.device)
    for _ in range(steps - 1):
        u = _pull(at, fz, _unit(u))
    return _pull(at, fz, _unit(u), record=True).norm(dim=1).sum() / max(len(fz), 1)


def _evaluate(
    layer: Any, inputs: Sequence[Any], shared: Sequence[Any], z: State | None
) -> tuple[Tensor, Tensor]:
    """z as a leaf and f(z) with its graph, both flat (N, D), on the samples that have an equilibrium."""
    if not hasattr(layer, "cell"):
        raise TypeError(f"layer must be an Equilibrium. Got {type(layer).__name__} instead.")
    with torch.enable_grad():
        if z is None:
            z = layer(*inputs, shared=shared)
            if layer.last.masked:
                kept = torch.nonzero(layer.last.forward.converged).flatten()
                inputs = [a[kept] if isinstance(a, Tensor) else a for a in inputs]
                z = tuple(part[kept] for part in z) if isinstance(z, tuple) else z[kept]
        layout = Layout.of(z)
        at = layout.flat(z).detach().requires_grad_()
        # Torch's fast kernels of attention cannot be differentiated twice; the plain one can.
        with _steady(layer.cell), sdpa_kernel(SDPBackend.MATH):
            return at, layout.flat(layer.cell(layout.unflat(at), *inputs, *shared))


@contextmanager
def _steady(cell: Any) -> Iterator[None]:
    """Hold parametrisations as the layer left them: one more power iteration would change the map."""
    modules = cell.modules() if isinstance(cell, nn.Module) else ()
    lists = [m for m in modules if isinstance(m, ParametrizationList)]
    moving = [m for one in lists for m in one.modules() if m.training]
    for m in moving:
        m.training = False
    try:
        yield
    finally:
        for m in moving:
            m.training = True


def _pull(z: Tensor, fz: Tensor, u: Tensor, record: bool = False) -> Tensor:
    """Jᵀu of every row; with `record`, differentiable where gradients are wanted at all."""
    if not fz.requires_grad:
        return torch.zeros_like(z)
    (image,) = torch.autograd.grad(
        fz, z, u, create_graph=record and torch.is_grad_enabled(), retain_graph=True, materialize_grads=True
    )
    if any(node.name().endswith(_UNKNOWN) for node in nodes_of(image)):  # torch would tell in backward only
        raise RuntimeError(
            "a penalty on ∂f/∂z needs a cell that can be differentiated twice. Got one with an operation "
            "that torch differentiates only once, such as a fused kernel of attention: write it as plain "
            "operations, or call it under torch.nn.attention.sdpa_kernel(SDPBackend.MATH)."
        )
    return image


def _unit(u: Tensor) -> Tensor:
    return u / u.norm(dim=1, keepdim=True).clamp_min(torch.finfo(u.dtype).tiny)
