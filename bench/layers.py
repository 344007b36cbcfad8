"""A layer of ours beside torchdeq's DEQ on the same cell: one cold pass, and one forward and backward pass.

Both run Anderson to the same relative residual of every sample, in float32, from zero. A pass is verified by
the largest ‖f(z) − z‖ / ‖z‖ of a sample, a gradient by its distance to that of our layer in float64 at 1e-9.
A second row of each kind is torchdeq with 30 steps and absolute tolerances, as scripts often set it, whatever
it reaches.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import equipoise as eq
from bench.measure import Absent, Contender, Row, calibrate, side_by_side

MAX_STEPS = 300


def rows_of(
    work: str, cell: nn.Module, inputs: tuple[Tensor, ...], rtol: float, repeats: int, target: float
) -> list[Row]:
    """The rows of one cell; its state is shaped like the first of the inputs."""
    layer = eq.Equilibrium(cell, stop=eq.Stop(rtol=rtol), on_failure="accept")

    @torch.no_grad()
    def residual(z: Tensor) -> float:
        return float(((cell(z, *inputs) - z).flatten(1).norm(dim=1) / z.flatten(1).norm(dim=1)).max())

    exact = _gradient(_double_layer(cell), tuple(_double(t) for t in inputs))

    def error(grad: Tensor) -> float:
        return float((grad.double() - exact).norm() / exact.norm())

    ours = Contender("equipoise", torch.no_grad()(lambda: layer(*inputs)))
    both = Contender("equipoise", lambda: _gradient(layer, inputs))
    found = side_by_side(
        f"{work}, forward",
        ours,
        [_forward(cell, inputs, residual, rtol), _forward_30(cell, inputs)],
        residual,
        repeats,
        {"torchdeq to": target},
    )
    return found + side_by_side(
        f"{work}, forward and backward (error of the gradient)",
        both,
        [_step(cell, inputs, rtol), _step_30(cell, inputs)],
        error,
        repeats,
        {"torchdeq to": target},
    )


def deq_of(**how: Any) -> Any:
    """torchdeq's DEQ by Anderson; None where it is not installed."""
    if importlib.util.find_spec("torchdeq") is None:
        return None
    from torchdeq import get_deq

    return get_deq(f_solver="anderson", ift=True, **how)


def thirty() -> Any:
    """As scripts often set it: 30 steps, absolute tolerances, plain iteration backwards."""
    return deq_of(f_max_iter=30, b_max_iter=30, f_tol=1e-3, b_tol=1e-3)


def _strict(tolerance: float) -> Any:
    how = {"b_solver": "anderson", "f_stop_mode": "rel", "b_stop_mode": "rel"}
    return deq_of(f_max_iter=MAX_STEPS, b_max_iter=MAX_STEPS, f_tol=tolerance, b_tol=tolerance, **how)


def _solve(deq: Any, cell: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    return deq(lambda z: cell(z, *inputs), torch.zeros_like(inputs[0]))[0][-1]


def _forward(
    cell: nn.Module, inputs: tuple[Tensor, ...], residual: Callable[[Tensor], float], rtol: float
) -> Contender | Absent:
    name = f"torchdeq to {rtol:g}"
    if deq_of() is None:
        return Absent(name, "not installed")

    def make(tolerance: float) -> Contender:
        deq = _strict(tolerance)
        return Contender(name, torch.no_grad()(lambda: _solve(deq, cell, inputs)))

    return calibrate(name, make, residual, rtol, [rtol * 2.0**-k for k in range(4)])


def _forward_30(cell: nn.Module, inputs: tuple[Tensor, ...]) -> Contender | Absent:
    if (deq := thirty()) is None:
        return Absent("torchdeq 30 steps", "not installed")
    return Contender("torchdeq 30 steps", torch.no_grad()(lambda: _solve(deq, cell, inputs)))


def _step(cell: nn.Module, inputs: tuple[Tensor, ...], rtol: float) -> Contender | Absent:
    name = f"torchdeq to {rtol:g}"
    if deq_of() is None:
        return Absent(name, "not installed")
    deq = _strict(rtol)
    return Contender(name, lambda: _gradient(lambda *inputs: _solve(deq, cell, inputs), inputs, cell))


def _step_30(cell: nn.Module, inputs: tuple[Tensor, ...]) -> Contender | Absent:
    if (deq := thirty()) is None:
        return Absent("torchdeq 30 steps", "not installed")
    solve = lambda *inputs: _solve(deq, cell, inputs)
    return Contender("torchdeq 30 steps", lambda: _gradient(solve, inputs, cell))


def _gradient(layer: Any, inputs: tuple[Tensor, ...], cell: nn.Module | None = None) -> Tensor:
    """∂/∂θ of mean z·w for a fixed w, flat."""
    parameters = [*(layer if cell is None else cell).parameters()]
    z = layer(*inputs)
    w = torch.linspace(-1, 1, z[0].numel(), dtype=z.dtype).view_as(z[0])
    return torch.cat([g.flatten() for g in torch.autograd.grad((z * w).mean(), parameters)])


def _double_layer(cell: nn.Module) -> eq.Equilibrium:
    stop = eq.Stop(rtol=1e-9, max_steps=2000)
    return eq.Equilibrium(copy.deepcopy(cell).double(), stop=stop, on_failure="accept")


def _double(t: Tensor) -> Tensor:
    return t.double() if t.is_floating_point() else t
