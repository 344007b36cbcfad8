"""Layers of cells to which everything is done that users do to modules: states and gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm

import equipoise as eq
from references import dense_gradients

from .draw import DTYPES, Draw, Word


class Cell(nn.Module):
    """0.9 tanh(V tanh(W z + U x) + x), to be tied, masked, normalised, hooked and derived from."""

    def __init__(self, m: int, draw: Draw) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(m, m, dtype=torch.float64) for _ in range(2))
        self.input = nn.Linear(m, m, dtype=torch.float64)
        for layer in (self.first, self.second, self.input):
            W = draw.normal(m, m)
            layer.weight.data.copy_(draw.uniform(0.2, 0.9) * W / torch.linalg.matrix_norm(W, ord=2))
            layer.bias.data.copy_(draw.normal(m))

    def forward(self, z, x):
        return 0.9 * torch.tanh(self.second(torch.tanh(self.first(z) + self.input(x))) + x)


class Halved(Cell):
    def forward(self, z, x):
        return super().forward(z, x) / 2


class Mixing(Cell):
    def forward(self, z, x):
        return super().forward(z + 0.3 * z.mean(dim=0), x)


def tie(cell: Cell) -> None:
    cell.second = cell.first


def tie_weights(cell: Cell) -> None:
    cell.second.weight = cell.first.weight


CHANGES: dict[str, Callable[[Cell], object]] = {
    "nothing": lambda cell: None,
    "tied modules": tie,
    "tied weights": tie_weights,
    "pruned": lambda cell: prune.l1_unstructured(cell.first, "weight", amount=0.5),
    "pruned and tied": lambda cell: (prune.l1_unstructured(cell.first, "weight", amount=0.5), tie(cell)),
    "weight norm": lambda cell: parametrizations.weight_norm(cell.first),
    "spectral norm": lambda cell: spectral_norm(cell.first),
    "hooked": lambda cell: cell.first.register_forward_hook(lambda module, given, out: out / 2),
    "hooked before": lambda cell: cell.register_forward_pre_hook(
        lambda module, given: (given[0] / 2, given[1])
    ),
    "frozen": lambda cell: cell.first.requires_grad_(False),
}


def layer(draw: Draw) -> Word:
    """Equilibrium of an altered cell: its state and every gradient, against a dense solve in float64."""
    m, N = draw.random.randint(1, 4), draw.random.randint(1, 4)
    dtype, kind, change = (
        draw.choice(DTYPES[:4]),
        draw.choice((Cell, Cell, Halved, Mixing)),
        draw.choice([*CHANGES]),
    )
    cell = kind(m, draw)
    CHANGES[change](cell)
    x = (draw.normal(N, m) * draw.choice((1e-3, 1.0, 3.0))).to(dtype)
    layer = eq.Equilibrium(
        cell.to(dtype),
        solver=draw.choice((None, eq.Picard(), eq.Broyden(), eq.Newton())),
        gradient=draw.choice((eq.Implicit(), eq.Implicit(), eq.Unrolled(150))),
    )
    x.requires_grad_()
    if draw.chance(0.5):
        cell.eval()  # a spectral norm stands still
    try:
        z = layer(x)
        cotangent = draw.normal(N, m)
        loss = (cotangent.to(dtype) * z).sum()
        given = [x, *(p for p in cell.parameters() if p.requires_grad)]
        got = torch.autograd.grad(loss, given, allow_unused=True)
    except (eq.EquilibriumError, RuntimeError):  # refused, as a cell is that changes its buffers
        return Word(False)
    cell.eval()
    twin, X = cell.double(), x.detach().double().requires_grad_()
    f = lambda z: twin(z, X)
    with torch.no_grad():
        exact = torch.zeros(N, m, dtype=torch.float64)
        for _ in range(400):
            exact, before = f(exact), exact
            if float((exact - before).abs().max()) <= 1e-15:
                break
        else:
            return Word(False)
    want = dense_gradients(f, exact, [X, *(p for p in twin.parameters() if p.requires_grad)], cotangent)
    tolerance = 400 * (eq.Stop().resolve(dtype).rtol + torch.finfo(dtype).eps)
    if not float((z.detach() - exact).norm()) <= tolerance * float(exact.norm() + 1e-3):
        return Word(True, f"{kind.__name__} {change}: the state is off")
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if (a is None) != (b is None):
            return Word(True, f"{kind.__name__} {change}: gradient {i} is missing or made up")
        if a is not None and not float((a - b).norm()) <= tolerance * float(b.norm() + cotangent.norm()):
            return Word(True, f"{kind.__name__} {change}: gradient {i} is {a.tolist()}, truly {b.tolist()}")
    return Word(True)
