"""Six steps of training a ConvOptEq on one batch, and one cold forward and backward pass, in float32.

The same map, weights and data for all, ‖W_l‖ = .95 at the start. Ours: the model as it is used; in training
each solve starts at 2z_t − z_{t−1}. torchdeq: its DEQ with exact implicit gradients, cold, as it is used, the
faster of fixed-point iteration and Anderson, with the cell as the paper writes it (conv2d, then
conv_transpose2d). The single pass is shown with the cell we use ourselves too, whose kernels are turned so
that both are conv2d. Each is asked for 1e-2 in its own terms and for less until its answer passes our test.
Verified: the relative error of what the steps changed (at most 1e-3), or of the gradient (at most 1e-4),
against float64 at 1e-10.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import equipoise as eq
from bench.measure import Absent, Contender, Row, calibrate, fastest, side_by_side
from equipoise.models.proximal import ConvOptEq

LIMIT, TRAINED, STEPS, RATE = 1e-4, 1e-3, 6, 0.002
TOLERANCES = [1e-2 * 2.0 ** (-k / 2) for k in range(24)]
SIZES = {  # images, channels of z, its size, hidden channels, α
    "7×7, α=1": (100, 16, 7, (16, 32), 1.0),
    "7×7, α=.4": (100, 16, 7, (16, 32), 0.4),
    "16×16, α=1": (50, 32, 16, (32, 64), 1.0),
}


REASONS = {
    "one pass": "Both sides need about four evaluations and as many pulls, and in a profile of ours the "
    "convolutions of these and their gradients are two thirds of the time (9 and 10 of 30 ms). Judging "
    "every row after every step takes 2 ms, the head and the loss 1 ms; the rest is Python around so short "
    "a solve.",
    "steps": "A solve takes four evaluations, of which a warm start saves one or two, and the adjoint, which "
    "starts anew at every step, four pulls. Convolutions and their gradients are two thirds of the time.",
}


def run(quick: bool = False) -> list[Row]:
    return [row for part in list(PARTS.values())[: 1 if quick else None] for row in part()]


def _at(name: str) -> list[Row]:
    return _training(name, *SIZES[name], repeats=3) + _single(name, *SIZES[name], repeats=3)


def _problem(
    n: int, channels: int, side: int, hidden: tuple[int, ...], alpha: float
) -> tuple[ConvOptEq, Tensor]:
    generator = torch.Generator().manual_seed(0)
    options = {"alpha": alpha, "limit": 0.95, "norm": 0.95, "generator": generator}
    model = ConvOptEq((1, side, side), channels, hidden, **options)  # type: ignore[arg-type]
    return model, torch.randn(n, 1, side, side, generator=generator)


def _training(name: str, *size: Any, repeats: int) -> list[Row]:
    first, x = _problem(*size)
    y = torch.arange(len(x)) % 10
    start = _flat(first)

    def ours(tolerance: float, dtype: torch.dtype = torch.float32) -> Tensor:
        model, images = copy.deepcopy(first).to(dtype), x.to(dtype)
        warm = previous = None
        optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
        for _ in range(STEPS):
            z = model.equilibrium(images, start=warm, stop=eq.Stop(rtol=tolerance, max_steps=2000))
            warm, previous = eq.extrapolate(z.detach(), previous), z.detach()
            _step(optimiser, F.cross_entropy(model.readout(z), y))
        return _flat(model)

    def theirs(method: str, tolerance: float) -> Tensor:
        model = copy.deepcopy(first)
        optimiser, deq, cell = (
            torch.optim.SGD(model.parameters(), lr=RATE),
            _deq(method, tolerance),
            _as_printed(model),
        )
        for _ in range(STEPS):
            c, weights = model.injection(x), model.shared()
            found, _ = deq(lambda z, c=c, w=weights: cell(z, *c, *w), torch.zeros(len(x), *model.state))
            _step(optimiser, F.cross_entropy(model.readout(found[-1]), y))
        return _flat(model)

    exact = ours(1e-10, torch.float64)
    verify = lambda weights: float((weights - exact).norm() / (exact - start).norm())
    mine = calibrate(
        "equipoise", lambda t: Contender("equipoise", lambda: ours(t)), verify, TRAINED, TOLERANCES
    )
    assert isinstance(mine, Contender)
    peer = _fastest("torchdeq", lambda m, t: lambda: theirs(m, t), verify, TRAINED)
    return side_by_side(
        f"{STEPS} steps, {name}, {len(x)} images", mine, [peer], verify, repeats, {"torchdeq": 2.0}
    )


def _single(name: str, *size: Any, repeats: int) -> list[Row]:
    model, x = _problem(*size)

    def gradient(model: ConvOptEq, z: Tensor) -> Tensor:
        model.zero_grad()
        (0.5 * z.square().sum()).backward()
        found = [p.grad.double().flatten() for p in model.parameters() if p.grad is not None]
        return torch.cat(found)

    def ours(tolerance: float) -> Tensor:
        return gradient(model, model.equilibrium(x, stop=eq.Stop(rtol=tolerance)))

    def theirs(cell: Callable[..., Tensor], method: str, tolerance: float) -> Tensor:
        c, weights = model.injection(x), model.shared()
        start = torch.zeros(len(x), *model.state)
        return gradient(model, _deq(method, tolerance)(lambda z: cell(z, *c, *weights), start)[0][-1])

    double = copy.deepcopy(model).double()
    exact = gradient(double, double.equilibrium(x.double(), stop=eq.Stop(rtol=1e-10, max_steps=2000)))
    verify = lambda g: float((g - exact).norm() / exact.norm())
    mine = calibrate(
        "equipoise", lambda t: Contender("equipoise", lambda: ours(t)), verify, LIMIT, TOLERANCES
    )
    assert isinstance(mine, Contender)
    cells = {"torchdeq": _as_printed(model), "torchdeq, our cell": model.cell}
    peers = [
        _fastest(words, lambda m, t, cell=cell: lambda: theirs(cell, m, t), verify, LIMIT)  # type: ignore[misc]
        for words, cell in cells.items()
    ]
    # With our cell the peer has what makes ours fast: there is no target beside it.
    return side_by_side(
        f"one pass, {name}, {len(x)} images", mine, peers, verify, repeats, {"torchdeq (": 1.3}
    )


def _fastest(
    name: str,
    make: Callable[[str, float], Callable[[], Tensor]],
    verify: Callable[[Tensor], float],
    limit: float,
) -> Contender | Absent:
    if importlib.util.find_spec("torchdeq") is None:
        return Absent(name, "not installed")
    found = []
    for method in ("fixed_point_iter", "anderson"):
        contender = lambda t, method=method: Contender(f"{name} ({method})", make(method, t))
        found.append(calibrate(name, contender, verify, limit, TOLERANCES))
    return fastest(found)


def _deq(method: str, tolerance: float) -> Any:
    from torchdeq import get_deq

    options = {"f_solver": method, "b_solver": method, "f_max_iter": 200, "b_max_iter": 200}
    return get_deq(
        ift=True, f_tol=tolerance, b_tol=tolerance, f_stop_mode="rel", b_stop_mode="rel", **options
    )


def _as_printed(model: ConvOptEq) -> Callable[..., Tensor]:
    def cell(z: Tensor, *tensors: Tensor) -> Tensor:
        L = len(model.layers)
        for c, W in zip(tensors[:L], tensors[L : 2 * L], strict=True):
            f = F.conv_transpose2d(torch.relu(F.conv2d(z, W, padding=1) + c), W, padding=1)
            z = f if model.alpha == 1 else model.alpha * f + (1 - model.alpha) * z
        return z

    return cell


def _step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def _flat(model: ConvOptEq) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


PARTS = {name.replace("×", "x").replace(", ", "-"): partial(_at, name) for name in SIZES}
