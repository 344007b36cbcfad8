"""ConvMonotone and ConvOptEq of tiny images: equilibria, gradients and error bounds."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

import equipoise as eq
from references import dense_gradients, equilibria, wide

from .draw import Draw, Word


def images(draw: Draw) -> Word:
    """z and the gradients of ⟨c, z⟩ in the images and the kernels of the equation."""
    dtype, N = draw.choice((torch.float64, torch.float32)), draw.random.randint(1, 2)
    shape = tuple(draw.random.randint(1, n) for n in (2, 3, 3))
    given = {"outputs": 2, "features": 2, "pool": 1, "dtype": torch.float64, "generator": draw.generator}
    monotone = draw.chance(0.5)
    if monotone:
        model = eq.ConvMonotone(
            shape, 2, margin=draw.choice((0.3, 1.0)), norm=draw.choice((0.3, 0.7, 2.0)), **given
        )
    else:
        activation, alpha = draw.choice(("relu", "tanh")), draw.choice((1.0, 0.5))
        hidden = [2] * draw.random.randint(1, 2)
        model = eq.ConvOptEq(
            shape, 2, hidden, norm=draw.uniform(0.3, 0.9), alpha=alpha, activation=activation, **given
        )
    for name, p in model.named_parameters():
        if name.split(".")[-1] == "b":
            p.data.copy_(0.3 * draw.normal(*p.shape))
    model = model.to(dtype).eval()
    x = (draw.choice((1e-6, 1.0, 30.0)) * draw.normal(N, *shape)).to(dtype).requires_grad_()
    certificate = eq.certify(model, x.detach())
    kernels = [p for n, p in model.named_parameters() if n.split(".")[-1] in ("A", "B", "W")]
    try:
        z = model.equilibrium(x)
        c = draw.normal(*z.shape)
        got = torch.autograd.grad(z, [x, *kernels], c.to(dtype))
    except eq.EquilibriumError:
        return Word(certificate.proved)
    found, model = z.detach().double(), model.double()
    X = x.detach().double().requires_grad_()
    kernels = [p for n, p in model.named_parameters() if n.split(".")[-1] in ("A", "B", "W")]
    f = (lambda z: _monotone(model, z, X)[1]) if monotone else (lambda z: _averaged(model, z, X)[1])
    exact = _pivoted(model, X, z.shape) if monotone else _iterated(f, torch.zeros_like(found))
    if exact is None:
        return Word(certificate.proved)
    J = torch.autograd.functional.jacobian(f, exact).reshape(exact.numel(), -1)
    factor = 2 + 2 * float(torch.linalg.matrix_norm(torch.linalg.inv(torch.eye(len(J)).double() - J), ord=2))
    weights = 1 + sum(float(p.detach().norm()) for p in kernels) ** 2
    rtol = eq.Stop().resolve(dtype).rtol + 64 * torch.finfo(dtype).eps
    off, size = (found - exact).norm(), float(exact.norm() + X.detach().norm()) + 1
    what, allowed = f"{model} {dtype}", 2 * factor * weights * rtol * size
    if float(off) > allowed:
        return Word(True, f"{what}: z is off by {float(off)}, at most {allowed} is allowed")
    if certificate.proved and not monotone:
        moved = exact + draw.choice((1e-6, 0.1)) * draw.normal(*exact.shape)
        claimed, true = eq.equilibrium_error(model, X.detach(), moved), float((moved - exact).norm())
        if true > claimed * (1 + 1e-9):
            return Word(True, f"{what}: equilibrium_error {claimed}, truly {true}")
    with torch.no_grad():
        units = _monotone(model, exact, X)[0] if monotone else _averaged(model, exact, X)[0]
    slack = 8 * rtol * factor**2
    if slack > 0.3 or float(units.abs().min()) <= allowed * weights:
        return Word(True)
    want = dense_gradients(f, exact, [X, *kernels], c)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if not float((a.double() - b).norm()) <= slack * weights**2 * size * float(c.norm()):
            return Word(True, f"{what}: gradient {i} is {a.tolist()}, truly {b.tolist()}")
    return Word(True)


def _injected(layer, model, x):
    return F.conv2d(model.extractor(x), layer.U, layer.b, padding="same")


def _back(kernel, h):
    """The transpose of a convolution."""
    return F.conv_transpose2d(h, kernel, padding=kernel.shape[-1] // 2)


def _weight(model, z):
    """(1 − μ) z − Aᵀ⋆A⋆z + B⋆z − Bᵀ⋆z."""
    A, B = model.A, model.B
    through = lambda kernel, z: F.conv2d(z, kernel, padding="same")
    return (1 - model.margin) * z - _back(A, through(A, z)) + through(B, z) - _back(B, z)


def _monotone(model, z, x):
    """The pre-activations, and relu of them."""
    p = _weight(model, z) + _injected(model, model, x)
    return p, torch.relu(p)


def _averaged(model, z, x):
    """The pre-activations of every layer (none that has a kink where there is no relu), and T(z)."""
    kinks = [torch.ones(1, dtype=z.dtype)]
    for layer in model.layers:
        p = F.conv2d(z, layer.W, padding="same") + _injected(layer, model, x)
        kinks += [p.flatten()] if model.activation.name == "relu" else []
        h = torch.relu(p) if model.activation.name == "relu" else torch.tanh(p)
        z = model.alpha * _back(layer.W, h) + (1 - model.alpha) * z
    return torch.cat(kinks), z


@torch.no_grad()
def _pivoted(model, x, shape):
    """z = relu(W z + c) with W written out as a matrix."""
    one = torch.eye(shape[1:].numel(), dtype=torch.float64).reshape(-1, *shape[1:])
    W, c = _weight(model, one).flatten(1).T, _injected(model, model, x).flatten(1)
    return torch.from_numpy(equilibria(wide(W), wide(c)).astype(np.float64)).reshape(shape)


@torch.no_grad()
def _iterated(f, z):
    for _ in range(2000):
        z, before = f(z), z
        if float((z - before).abs().max()) <= 1e-15 * (1 + float(z.abs().max())):
            return z
    return None
