"""Converged, and `Solution.error`: of affine maps and of cells, alone and mixing samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import equipoise as eq
from references import ACTIVATIONS, equilibria, error_factor, norms, wide

from .draw import DTYPES, Draw, Word

GENERAL = (
    eq.Picard(),
    eq.Picard(damping=0.7),
    eq.Anderson(),
    eq.Anderson(memory=3),
    eq.Broyden(),
    eq.Newton(),
)
SPLITTING = (eq.PeacemanRachford(), eq.ForwardBackward())


def affine_maps(draw: Draw) -> Word:
    """fixed_point of an AffineMap: the equation, the distance to the equilibrium, and `Solution.error`."""
    dtype, m, N = draw.choice(DTYPES), draw.random.randint(1, 6), draw.random.randint(1, 4)
    W, unique = draw.weight(m)
    b, size = draw.normal(N, m), draw.size(dtype)
    if draw.chance(0.3):
        b = b * (torch.rand(N, m, generator=draw.generator) > 0.5)
    if draw.chance(0.2):
        b = b * 10.0 ** -draw.uniform(0, 8)
    activation = draw.choice(("relu", "relu", "relu", "identity", "tanh"))
    W, b = W.to(dtype), (size * b).to(dtype)
    solver = draw.choice(GENERAL + SPLITTING if activation == "relu" and monotone(W) else GENERAL)
    if draw.chance(0.2):
        solver = [draw.choice(GENERAL), draw.choice(GENERAL)]
    start = draw.choice((None, 0.0, size, 1.0))
    z0 = None if start is None else (draw.normal(N, m) * start).to(dtype)
    stop = eq.Stop(max_steps=100, rtol=draw.choice((None, None, 0.1, 16 * torch.finfo(dtype).eps)))
    precision = "mixed" if dtype == torch.float64 and draw.chance(0.2) else "native"
    found = eq.fixed_point(eq.AffineMap(W, b, activation), z0, solver=solver, stop=stop, precision=precision)
    w, u, z, f = wide(W), wide(b), wide(found.value), ACTIVATIONS[activation]
    begin = f(u) if z0 is None else wide(z0)
    if said := false_status(found, z, lambda z: f(z @ w.T + u), begin, np.abs(z) @ np.abs(w.T) + np.abs(u)):
        return Word(True, said)
    factor = error_factor(w)
    if not unique or not factor < 1e6 or (activation == "tanh" and np.linalg.norm(w.astype(float), 2) > 0.95):
        return Word(bool(found.converged.any()))
    exact = equilibria(w, u, activation)
    off, done = norms(z - exact), found.converged.numpy()
    slack = factor * norms(exact) * 1e-16 + 1e-3 * smallest(found.value)
    allowed = factor * (wide(found.tolerance) + rounding(found.value, np.abs(z) @ np.abs(w.T) + np.abs(u)))
    if (off > 1.01 * allowed + slack)[done].any():
        return Word(True, f"converged {off / norms(exact)} from the equilibrium")
    bound = found.error
    if bound is not None and (off > wide(bound) * (1 + 1e-9) + slack).any():
        return Word(True, f"error {bound.tolist()} where {off} is true")
    return Word(bool(done.any()) or bound is not None)


def monotone(W: torch.Tensor) -> bool:
    """Whether I − W is, so that splitting solvers take it."""
    W = W.double()
    return float(torch.linalg.eigvalsh(torch.eye(len(W), dtype=W.dtype) - (W + W.T) / 2)[0]) > 1e-2


def false_status(found, z, f, begin, sizes) -> str:
    """Whether a row is called converged that is not at tolerance, as the documentation of Stop states it."""
    image = f(z)
    residual, scale, own = norms(image - z), norms(image), norms(f(np.zeros_like(z)))
    first = norms(f(begin))
    own = np.where(own > 0, own, np.where(first > 0, first, norms(begin)))
    info = torch.finfo(found.value.dtype)
    limit = found.stop.rtol * np.maximum(scale, np.maximum(1e-4 * own, info.tiny))
    late = residual > 1.01 * limit + rounding(found.value, sizes)
    late &= found.converged.numpy()
    return f"converged at {residual[late]} of {limit[late]}" if late.any() else ""


def rounding(value: torch.Tensor, sizes: np.ndarray) -> np.ndarray:
    """What f rounds, of each row: a few units of its sums, and of subnormal numbers."""
    units = (sizes.shape[1] + 4) * torch.finfo(value.dtype).eps
    return 2 * units * norms(sizes) + 8 * sizes.shape[1] * smallest(value)


def smallest(value: torch.Tensor) -> float:
    info = torch.finfo(value.dtype)
    return info.tiny * info.eps


# -- cells, alone and mixing samples ------------------------------------------------------------------------


def attention(z, x, w):
    return 0.5 * torch.tanh(torch.softmax(z @ z.mT, dim=-1) @ z @ w.T + x) + 0.4 * x.sigmoid() * z


CELLS: dict[str, Callable] = {
    "tanh": lambda z, x, w: torch.tanh(z @ w.T + x),
    "relu": lambda z, x, w: torch.relu(z @ w.T + x),
    "slow rows": lambda z, x, w: 0.9 * x[:, :1].sigmoid() * torch.tanh(z) + x,
    "sine": lambda z, x, w: torch.sin(z @ w.T) + x,
    "mean": lambda z, x, w: torch.tanh(x[:, :1].sigmoid() * z + z.mean(dim=0) @ w.T + x),
    "roll": lambda z, x, w: torch.tanh(x[:, :1].sigmoid() * z + z.roll(1, dims=0) + x),
    "batch norm": lambda z, x, w: 0.5 * (z - z.mean(dim=0)) / (1 + z.var(dim=0, correction=0)) + x,
    "attention": attention,
}


def cells(draw: Draw) -> Word:
    """fixed_point of any map, rows on their own or not: the equation holds for the whole batch."""
    dtype, m, N = draw.choice(DTYPES), draw.random.randint(1, 5), draw.random.randint(1, 8)
    name = draw.choice(tuple(CELLS))
    cell, x = CELLS[name], draw.normal(N, m) * draw.choice((0.1, 1.0, 3.0))
    size = draw.size(dtype) if name == "relu" else 1.0
    W, _ = draw.weight(m)
    x, w = (size * x).to(dtype), W.to(dtype)
    solver = draw.choice((*GENERAL, [eq.Picard(), eq.Anderson()], [eq.Picard(), eq.Newton()]))
    z0 = draw.choice((0.0, 1.0)) * (size * draw.normal(N, m)).to(dtype)
    stop = eq.Stop(max_steps=draw.choice((10, 40)), patience=draw.choice((5, 50)))
    if draw.chance(0.4):
        found = eq.fixed_point(lambda z: cell(z, x, w), z0, solver=solver, stop=stop)
    else:
        found = eq.fixed_point(cell, z0, args=(x,), shared=(w,), solver=solver, stop=stop)
    z, unit = found.value.double() / size, (x.double() / size, w.double())
    image = cell(z, *unit)
    residual, own = (image - z).norm(dim=1), cell(0 * z, *unit).norm(dim=1)
    first = cell(z0.double() / size, *unit).norm(dim=1)
    own = torch.where(own > 0, own, torch.where(first > 0, first, (z0.double() / size).norm(dim=1)))
    limit = found.stop.rtol * torch.maximum(image.norm(dim=1), 1e-4 * own)
    sizes = z.abs() @ unit[1].abs().T + unit[0].abs() + 2 * z.abs() + 1
    if name == "relu":
        sizes = sizes - 1
    allowed = 1.01 * limit + 2 * (m + N + 8) * torch.finfo(dtype).eps * sizes.norm(dim=1)
    allowed = allowed + 8 * m * smallest(x) / size
    late = found.converged & ~(residual <= allowed)
    if bool(late.any()):
        return Word(True, f"{name}: converged at {residual[late].tolist()} of {allowed[late].tolist()}")
    return Word(bool(found.converged.any()))
