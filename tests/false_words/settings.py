"""Layers in every setting: gradients, policies, solvers and starts, inputs and weights of any size."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext, suppress

import torch

import equipoise as eq
from references import dense_gradients

from .draw import DTYPES, Draw, Word
from .layers import CHANGES, Cell, Halved, Mixing


class Attending(Cell):
    """Attention across the rows of a batch."""

    def forward(self, z, x):
        return super().forward((z + torch.softmax(z @ z.mT, dim=-1) @ z) / 2, x)


class Linear(Cell):
    """0.9 V W z + U x, which is as large as its inputs and its weights are."""

    def forward(self, z, x):
        return 0.9 * self.second(self.first(z)) + self.input(x)


class LinearMixing(Linear):
    def forward(self, z, x):
        return super().forward((z + z.mean(dim=0)) / 2, x)


CELLS = (Cell, Halved, Mixing, Attending, Linear, Linear, LinearMixing, LinearMixing)
MIXING = (Mixing, Attending, LinearMixing)


class Doubled(eq.Equilibrium):
    """A layer that derives from the library's and reads its state in a way of its own."""

    def readout(self, z):
        return 2 * z


def settings(draw: Draw) -> Word:
    """Statuses, states and gradients of a layer, in whatever way it is solved and differentiated."""
    m, N = draw.random.randint(1, 4), draw.random.randint(1, 5)
    dtype, kind, change = draw.choice(DTYPES[:4]), draw.choice(CELLS), draw.choice([*CHANGES])
    lowered = dtype == torch.float32 and draw.chance(0.1)  # by autocast; a state of half precision is refused
    cell = kind(m, draw)
    x, sizes = draw.normal(N, m) * draw.choice((1e-3, 1.0, 3.0)), (1.0, 1.0, 1.0)
    if issubclass(kind, Linear):
        sizes = sizes_within(draw, dtype)
        for part in (cell.first, cell.second, cell.input):
            part.bias.data.zero_()
    CHANGES[change](cell)
    of_x, of_weight, of_cotangent = sizes
    cell = cell.to(dtype)
    cell.input.weight.data.mul_(of_weight)
    x, unit = (of_x * x.to(dtype)).requires_grad_(), of_x * of_weight
    gradient = draw.choice((eq.Implicit(),) * 4 + (eq.Unrolled(60), eq.Phantom(3), eq.Reversible(30)))
    doubled, hooked = draw.chance(0.1), draw.chance(0.1)
    layer = (Doubled if doubled else eq.Equilibrium)(
        cell,
        state=draw.choice((None, None, (m,), lambda a: a / 2)),
        solver=draw.choice(
            (
                None,
                None,
                eq.Picard(),
                eq.Anderson(3),
                eq.Broyden(),
                eq.Newton(),
                eq.Auto(),
                [eq.Picard(), eq.Newton()],
            )
        ),
        gradient=gradient,
        stop=eq.Stop(max_steps=draw.choice((3, 10, 60, 500)), patience=draw.choice((5, 50))),
        on_failure=draw.choice(
            ("raise", "raise", "warn", "accept", eq.OnFailure("mask", 1.0), eq.OnFailure("mask", 0.5))
        ),
    )
    if hooked:
        layer.register_forward_hook(lambda module, given, out: 2 * out)
    if draw.chance(0.7):
        layer.eval()  # a spectral norm stands still
    start = (unit * draw.normal(N, m)).to(dtype) if draw.chance(0.3) else None
    cotangent = draw.normal(N, m)
    told = 2.0 ** (doubled + hooked)
    named = [("x", x), *((name, p) for name, p in cell.named_parameters() if p.requires_grad)]
    got = None
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16) if lowered else nullcontext():
            out = layer(x, start=start)
        with suppress(eq.EquilibriumError):  # of the adjoint: a refusal, where the state may be right
            given = (of_cotangent * cotangent).to(dtype)
            got = torch.autograd.grad(out, [t for _, t in named], given, allow_unused=True)
    except (eq.EquilibriumError, RuntimeError, ValueError):  # refused, as a cell is that changes its buffers
        return Word(False)
    layer.eval()
    cell.double().input.weight.data.div_(of_weight)
    found, X = layer.last.forward, (x.detach().double() / of_x).requires_grad_()
    z, f = (out.detach().double() / told / unit), lambda z: cell(z, X)
    begin = layer.start_of(x.detach(), start=start).double() / unit
    what = f"{kind.__name__} {change}, {dtype}, {gradient}, sizes {sizes}"
    units = (2 * m + N + 16) * torch.finfo(torch.bfloat16 if lowered else dtype).eps
    if said := _false_status(found, z, f, begin, X, units):
        return Word(True, f"{what}: {said}")
    done = found.converged
    adjoint = layer.last.adjoint
    if got is None or not bool(done.any()) or not (adjoint is None or bool(adjoint.converged.all())):
        return Word(bool(done.any()))
    if kind in MIXING and not bool(done.all()):
        return Word(True)  # what the others are is then no equilibrium of the batch
    exact = _equilibrium(f, z)
    if exact is None:
        return Word(True)
    solved = isinstance(gradient, eq.Implicit | eq.Phantom)  # else the steps themselves are differentiated
    factor = _error_factor(f, exact) if solved else 1.0 + gradient.steps / 4
    slack = 8 * (1 + factor) ** 2 * (units + found.stop.rtol * solved)
    masked = layer.on_failure.policy == "mask"
    if slack > 0.3 or (solved and not masked and not bool(done.all())):
        return Word(True)
    weights = told * cotangent * (done[:, None] if masked else 1.0)
    want = _gradients(gradient, f, exact, begin, [X, *(t for _, t in named[1:])], weights)
    scale = told * float(cotangent.norm()) * (1 + float(exact.norm() + X.detach().norm()))
    for (name, _), a, b in zip(named, got, want, strict=True):
        if (a is None) != (b is None):
            return Word(True, f"{what}: the gradient of {name} is missing or made up")
        size = of_weight if name == "x" else of_x if name == "input.weight" else 1 if "bias" in name else unit
        a = a if a is None else a.double() / of_cotangent / size
        if a is not None and not float((a - b).norm()) <= slack * scale:
            return Word(True, f"{what}: the gradient of {name} is {a.tolist()}, truly {b.tolist()}")
    return Word(True)


def sizes_within(draw: Draw, dtype: torch.dtype) -> tuple[float, float, float]:
    """Of inputs, of weights and of cotangents, so that every product of theirs is a normal number."""
    info, room = torch.finfo(dtype), 5.0 if dtype == torch.float16 else 12.0
    for _ in range(20):
        a, b, c = (math.log2(draw.size(dtype, 1.0)) for _ in range(3))
        products = (a, b, c, a + b, a + c, b + c, a + b + c)
        if all(math.log2(info.tiny) + room <= p <= math.log2(info.max) - room for p in products):
            return 2.0**a, 2.0**b, 2.0**c
    return 1.0, 1.0, 1.0


@torch.no_grad()
def _false_status(found: eq.Solution, z, f: Callable, begin, X, units: float) -> str:
    """Whether a row is called converged at which the equation of the whole batch does not hold."""
    image = f(z)
    residual, own, first = (image - z).norm(dim=1), f(0 * z).norm(dim=1), f(begin).norm(dim=1)
    own = torch.where(own > 0, own, torch.where(first > 0, first, begin.norm(dim=1)))
    limit = found.stop.rtol * torch.maximum(image.norm(dim=1), 1e-4 * own)
    sizes = (z.norm() + X.norm() + 1) if float(own.max()) > 1e-2 else z.norm() + X.norm()
    late = found.converged & ~(residual <= 1.01 * limit + 2 * units * sizes)
    return f"converged at {residual[late].tolist()} of {limit[late].tolist()}" if bool(late.any()) else ""


@torch.no_grad()
def _equilibrium(f: Callable, z) -> torch.Tensor | None:
    """The equilibrium of the batch, from near by where a layer found it, or None."""
    exact = torch.zeros_like(z)
    for _ in range(600):
        exact, before = f(exact), exact
        if float((exact - before).abs().max()) <= 1e-15:
            return exact
    return None


def _error_factor(f: Callable, z) -> float:
    """‖(I − J)⁻¹‖ of the whole batch."""
    J = torch.autograd.functional.jacobian(f, z).reshape(z.numel(), z.numel())
    return float(torch.linalg.matrix_norm(torch.linalg.inv(torch.eye(len(J), dtype=J.dtype) - J), ord=2))


def _gradients(gradient, f: Callable, exact, begin, tensors, cotangent):
    """What the documentation of each gradient says that it is."""
    if isinstance(gradient, eq.Implicit):
        return dense_gradients(f, exact, tensors, cotangent)
    if isinstance(gradient, eq.Phantom):
        z = exact
        for _ in range(gradient.steps):
            z = torch.lerp(z, f(z), gradient.damping)
    elif isinstance(gradient, eq.Unrolled):
        z = begin
        for _ in range(gradient.steps):
            z = f(z)
    else:
        y = z = begin
        for _ in range(gradient.steps):
            y = (y + f(z)) / 2
            z = (z + f(y)) / 2
    return torch.autograd.grad(z, tensors, cotangent, allow_unused=True)
