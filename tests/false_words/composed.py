"""Cells composed at random of parts, known ones and others: constants of certificates, against the cell."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

import equipoise as eq

from .draw import Draw, Word

F64 = torch.float64
KNOWN = (
    *(nn.ReLU, nn.ReLU6, nn.Tanh, nn.Softsign, nn.Tanhshrink, nn.LogSigmoid, nn.GELU, nn.Sigmoid, nn.SiLU),
    *(nn.SELU, nn.Softplus, lambda: nn.Softplus(0.5, 30.0), lambda: nn.GELU("tanh"), nn.Identity),
    *(lambda: nn.Hardtanh(-3, 0.5), lambda: nn.Softshrink(0.3), lambda: nn.LeakyReLU(-1.7)),
    *(lambda: nn.LeakyReLU(0.1), lambda: nn.ELU(3.0), lambda: nn.ELU(-2.0)),
)
OTHER = (
    *(nn.CELU, nn.Mish, nn.Hardswish, nn.Hardsigmoid, nn.Hardshrink, lambda: nn.LeakyReLU(math.nan)),
    *(lambda: nn.ELU(math.nan), lambda: nn.Threshold(0.1, 20.0), lambda: nn.Softplus(4.0, 2.0)),
    *(lambda: nn.PReLU(init=2.5, dtype=F64), lambda: nn.Dropout(0.9), lambda: nn.RReLU(2.0, 3.0)),
    *(lambda: nn.Softmax(-1), lambda: nn.Softmax(0), lambda: nn.Softmin(-1), lambda: nn.ReLU(inplace=True)),
)
FUNCTIONS = (F.relu, torch.tanh, F.softplus, F.silu, F.gelu, torch.sigmoid, torch.neg)


class Composed(nn.Module):
    """A straight program: each line makes a value of those before it, the first of which are z and x."""

    def __init__(self, m: int, draw: Draw, images: bool) -> None:
        super().__init__()
        self.draw_parts(m, draw, images)
        self.lines = []
        lines = draw.choice((LINES, LINES, LINES, LINES + OPEN))
        for _ in range(draw.random.randint(2, 6)):
            known = len(self.lines) + 2
            a = draw.choice((0, known - 1, known - 1, draw.random.randrange(known)))
            self.lines.append((draw.choice(lines), a, draw.random.randrange(known)))
        self.last = draw.choice((0, 0, len(self.lines) + 1))  # added at the end

    def draw_parts(self, m: int, draw: Draw, images: bool) -> None:
        """A linear map, an activation, a tensor of the batch's own shape and what else the lines take."""
        if images:
            k = draw.choice((1, 3))
            how = {"padding": draw.choice((k // 2, "same")), "groups": draw.choice((1, m))}
            mode = draw.choice(("zeros", "zeros", "zeros", "circular", "reflect" if k > 1 else "zeros"))
            dilation = 2 if how["padding"] == "same" and k == 3 else 1
            self.linear = nn.Conv2d(m, m, k, dilation=dilation, padding_mode=mode, dtype=F64, **how)
        else:
            self.linear = nn.Linear(m, m, dtype=F64)
        self.linear.weight.data.mul_(draw.uniform(0.2, 1.5))
        self.matrix = nn.Parameter(draw.normal(m, m) / m)
        self.act = draw.choice(draw.choice((KNOWN, KNOWN, KNOWN, OTHER)))()
        self.function = draw.choice(FUNCTIONS)
        self.number = draw.choice((0.5, -0.7, 1.3, 2))
        self.fixed = nn.Parameter(draw.normal(m, 1, 1) if images else draw.normal(m))
        self.register_buffer("narrow", torch.tensor([draw.choice((-128, 1, 3))], dtype=torch.int8))
        self.train(draw.chance(0.5))

    def forward(self, z, x):
        values = [z, x]
        for line, a, b in self.lines:
            values.append(line(self, values[a], values[b]))
        return 0.25 * values[-1] + 0.1 * values[self.last] + x


def plus_in_place(c, a, b):
    """What is recorded as a new tensor changes the one that was there, and with it what else reads it."""
    h = 0.5 * a
    kept = h
    h += 30 * F.relu(b - 2)
    return kept


LINES = (
    *(lambda c, a, b: c.linear(a), lambda c, a, b: c.act(a)) * 4,
    *(lambda c, a, b: c.function(a), lambda c, a, b: a + b) * 2,
    *(lambda c, a, b: a - b, lambda c, a, b: 1 - a, lambda c, a, b: a.sub(b), lambda c, a, b: c.number * a),
    *(lambda c, a, b: a / c.number, lambda c, a, b: a * c.fixed, lambda c, a, b: -a.contiguous()),
    *(lambda c, a, b: 0.01 * (a * c.narrow), lambda c, a, b: a - c.fixed),
)
OPEN = (
    *(lambda c, a, b: a @ c.matrix, lambda c, a, b: a @ c.matrix.T, lambda c, a, b: F.linear(a, c.matrix)),
    *(lambda c, a, b: a * b, lambda c, a, b: torch.add(a, b, alpha=3), lambda c, a, b: a.clamp(-1, 1)),
    *(lambda c, a, b: F.elu(a, 3.0), lambda c, a, b: F.mish(a), lambda c, a, b: True * a, plus_in_place),
)


def composed(draw: Draw) -> Word:
    """The Lipschitz constants of the cell in z and of its equilibrium in x, at and between many points."""
    images, m = draw.chance(0.3), draw.random.randint(1, 3)
    shape = (m, draw.random.randint(2, 4), 3) if images else (m,)
    cell = Composed(m, draw, images)
    layer = eq.Equilibrium(cell)
    layer.train(cell.training)
    X = draw.normal(2, *shape)
    try:
        found = eq.certify(layer, X)
    except RuntimeError:  # a part that does not fit
        return Word(False)
    q = found.claims[0].left.hi if found.claims else math.inf
    if not math.isfinite(q):
        return Word(False)
    if not (steepest := _steepest(lambda z: cell(z, X[:1]), shape, draw)) <= q * (1 + 1e-9):
        return Word(True, f"{cell}: the cell moves by {steepest}, not by {q} at most")
    if found.proved and "lipschitz" in found.constants and found.constants["rate"] < 0.99:
        with torch.no_grad():
            states = [_state(cell, x, found.constants["rate"]) for x in (X[:1], X[1:])]
        Z = torch.cat(states)
        Z = Z + draw.choice((0.0, 1e-9, 0.1)) * draw.normal(*Z.shape)
        far, error = (Z - torch.cat(states)).norm(), eq.equilibrium_error(layer, X, Z)
        if not float(far) <= error * (1 + 1e-6) + 1e-9:
            return Word(True, f"{cell}: a state is {far} from its equilibrium, not {error} at most")
        moved, limit = (states[0] - states[1]).norm(), (X[0] - X[1]).norm() * found.constants["lipschitz"]
        if not float(moved) <= float(limit) * (1 + 1e-9) + 1e-9:
            return Word(True, f"{cell}: the equilibrium moves by {moved}, not by {limit} at most")
    return Word(True)


def _state(cell: nn.Module, x: torch.Tensor, rate: float) -> torch.Tensor:
    z = torch.zeros_like(x)
    for _ in range(min(2000, 10 + int(math.log(1e-13) / math.log(max(rate, 1e-9))))):
        z = cell(z, x)
    return z


def _steepest(f, shape: tuple[int, ...], draw: Draw) -> float:
    """The largest ‖J‖ and ‖f(a) − f(b)‖/‖a − b‖ that a search finds, which climbs from three sizes."""
    best = 0.0
    for size in (0.1, 1.0, 10.0):
        a = size * draw.normal(1, *shape)
        d = draw.normal(1, *shape)
        for step in (0.0, 0.3 * size, 0.1 * size):
            a, d = a.requires_grad_(), d / d.norm()
            with torch.no_grad():
                for reach in (1e-3, 1.0, 10.0):
                    moved = f(a + reach * d) - f(a)
                    best = max(best, float(moved.norm()) / reach - 1e-11 * float(f(a).norm()) / reach)
            J = torch.autograd.functional.jacobian(f, a.detach()).reshape(a.numel(), -1)
            norm, V = torch.linalg.matrix_norm(J, 2), torch.linalg.svd(J).Vh[0]
            best = max(best, float(norm))
            pull = torch.autograd.functional.vjp(f, a.detach(), f(a.detach()).detach())[1]
            uphill = d if float(pull.norm()) == 0 else pull / pull.norm()
            a = (a + step * uphill).detach()
            d = V.reshape(1, *shape)
    return best
