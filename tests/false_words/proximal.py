"""OptEq and DeepOptEq: equilibria, gradients and bounds against their equation, written out."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import normalize

import equipoise as eq
from references import dense_gradients

from .draw import Draw, Word
from .settings import sizes_within

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


def proximal(draw: Draw) -> Word:
    """z, its gradients and what is certified, with inputs, readouts and cotangents of every size.

    Everything is compared at the size 1: a relu without biases is homogeneous, and so are the rest.
    """
    dtype, name = draw.choice((torch.float64, torch.float32)), draw.choice(("relu", "tanh"))
    model = _network(draw, name).to(dtype)
    of_x, of_V, of_cotangent = sizes_within(draw, dtype)
    of_x = of_x if name == "relu" else 1.0
    model.V.data.mul_(of_V)
    x = (of_x * draw.normal(draw.random.randint(1, 3), model.inputs)).to(dtype).requires_grad_()
    at = _Twin(model, x, of_x, of_V)
    what = f"{model} {dtype}, sizes {of_x, of_V, of_cotangent}"
    certificate = eq.certify(model, x.detach())
    if certificate.proved and not at.contraction < 1 + 1e-12:
        return Word(True, f"{what}: proved, though each step is only known to move by {at.contraction}")
    try:
        Z = model.equilibrium(x)
        y = model.readout(Z)
        c = draw.normal(*y.shape)
        names, tensors = zip(("x", x), *model.named_parameters(), strict=True)
        got = torch.autograd.grad(y, tensors, (of_cotangent * c).to(dtype))
    except eq.EquilibriumError:
        return Word(certificate.proved)
    exact = at.equilibrium(at.X)
    if exact is None or at.contraction >= 0.999:
        return Word(certificate.proved)
    units = (8 + model.width) * torch.finfo(dtype).eps
    rtol = eq.Stop().resolve(dtype).rtol / model.alpha + units
    factor = 1 / (1 - at.contraction)
    size = exact.norm(dim=1) + at.X.detach().norm(dim=1) + float(name == "tanh")
    off, allowed = (Z.detach().double() / of_x - exact).norm(dim=1), 2 * factor * at.weights * rtol * size
    if bool((off > allowed).any()):
        return Word(True, f"{what}: Z is off by {off.tolist()}, at most {allowed.tolist()} is allowed")
    if certificate.proved and (said := _exceeded(draw, model, x.detach(), at, exact, of_x, of_V)):
        return Word(True, f"{what}: {said}")
    slack = 8 * rtol * (1 + factor) ** 2
    near_a_kink = name == "relu" and at.nearest(exact) <= float(allowed.max()) * at.weights
    if near_a_kink or slack > 0.3:
        return Word(True)
    want, scale = at.gradients(exact, c)
    for n, a in zip(names, got, strict=True):
        b, last = want[n], n.split(".")[-1]
        unit = of_x if last == "V" else of_V if last in ("x", "b") else of_x * of_V
        a = a.double() / of_cotangent / unit
        if not float((a - b).norm()) <= slack * scale:
            return Word(True, f"{what}: ∇{n} is {a.tolist()}, truly {b.tolist()}")
    return Word(True)


def _network(draw: Draw, activation: str) -> eq.OptEq | eq.DeepOptEq:
    d, m, alpha = (
        draw.random.randint(1, 3),
        draw.random.randint(1, 4),
        draw.choice((1.0, draw.uniform(0.1, 0.9))),
    )
    width = lambda: draw.random.randint(1, 4)
    given = {"alpha": alpha, "outputs": draw.choice((1, 1, 2)), "activation": activation}
    given |= {"dtype": torch.float64, "generator": draw.generator}
    if draw.chance(0.5):
        model = eq.OptEq(d, m, width(), draw.choice((0.7, 1.3)), **given)
    else:
        model = eq.DeepOptEq(d, m, [width() for _ in range(width())], **given)
    for block in model.blocks:
        W, norm = (
            draw.normal(*block.W.shape),
            draw.uniform(0.1, 0.95) if draw.chance(0.8) else draw.uniform(0.95, 1.5),
        )
        block.W.data.copy_(norm * model.mu**0.5 * W / torch.linalg.matrix_norm(W, ord=2))
        if activation == "tanh":
            block.b.data.copy_(draw.normal(len(block.b)))
    return model


class _Twin:
    """T of a network in float64, with inputs and readout of the size 1."""

    def __init__(self, model, x, of_x: float, of_V: float) -> None:
        double = lambda p, size=1.0: (p.detach().double() / size).requires_grad_()
        self.layers = [tuple(map(double, (b.W, b.U, b.b))) for b in model.blocks]
        self.X, self.V = double(x, of_x), double(model.V, of_V)
        self.act, self.alpha, self.mu = ACTIVATIONS[model.activation.name], model.alpha, model.mu
        norms = [float(torch.linalg.matrix_norm(W, ord=2)) ** 2 / self.mu for W, _, _ in self.layers]
        self.contraction = math.prod(1 - self.alpha + self.alpha * n for n in norms)
        self.prefixes = (
            [f"layers.{i}." for i in range(len(norms))] if isinstance(model, eq.DeepOptEq) else [""]
        )
        self.weights = 1 + sum(float(p.norm()) for layer in self.layers for p in layer)

    def steps(self, z, X):
        """The pre-activation of each layer, and T(z)."""
        found = []
        for W, U, b in self.layers:
            found.append(z @ W.T + X @ U.T + b)
            z = (self.alpha / self.mu) * self.act(found[-1]) @ W + (1 - self.alpha) * z
        return found, z

    @torch.no_grad()
    def equilibrium(self, X):
        """z = T(z), or None where steps do not lead there."""
        z = X.new_zeros(len(X), len(self.V))
        for _ in range(2000):
            z, before = self.steps(z, X)[1], z
            if float((z - before).abs().max()) <= 1e-15 * float(z.abs().max()):
                return z
        return None

    @torch.no_grad()
    def nearest(self, z) -> float:
        """How near a unit is to its kink."""
        return min(float(p.abs().min()) for p in self.steps(z, self.X)[0])

    def gradients(self, z, c):
        """Of ⟨c, ŷ⟩, by name, and what they are measured by."""
        every = [p for layer in self.layers for p in layer]
        C = c.reshape(len(z), -1)
        of_z = C @ self.V.detach().reshape(len(self.V), -1).T
        found = dense_gradients(lambda z: self.steps(z, self.X)[1], z, [self.X, *every], of_z)
        names = ["x", *(prefix + n for prefix in self.prefixes for n in "WUb")]
        scale = self.weights**2 * float(C.norm()) * (1 + float(z.norm() + self.X.detach().norm()))
        by_name = dict(zip(names, found, strict=True)) | {"V": (z.T @ C).reshape(self.V.shape)}
        return by_name, scale * (1 + float(self.V.detach().norm()))


@torch.no_grad()
def _exceeded(draw: Draw, model, x, at: _Twin, exact, of_x: float, of_V: float) -> str:
    """What equilibrium_error, lipschitz_bound and certified_radius say, where it is false."""
    moved = exact + draw.choice((1e-6, 0.1, 1.0)) * draw.normal(*exact.shape)
    claimed, true = eq.equilibrium_error(model, x, of_x * moved) / of_x, float((moved - exact).norm())
    if true > claimed * (1 + 1e-9) + 1e-13:
        return f"equilibrium_error {claimed}, truly {true}"
    outputs = lambda z: (z @ at.V).reshape(len(x), -1)
    y, reach, radii = outputs(exact), eq.lipschitz_bound(model) / of_V, eq.certified_radius(model, x)
    radius = (radii.radius / of_x).clamp_max(1e3)[:, None]
    ways = (
        draw.normal(*x.shape),
        1e-3 * draw.normal(*x.shape),
        0.999 * radius * normalize(draw.normal(*x.shape)),
    )
    for way in ways:
        near = at.equilibrium(at.X + way)
        if near is None:
            continue
        far = (outputs(near) - y).norm(dim=1)
        if bool((far > reach * way.norm(dim=1) * (1 + 1e-9) + 1e-12 * (1 + y.norm())).any()):
            return f"moved {(far / way.norm(dim=1)).tolist()}, lipschitz_bound {reach}"
    if near is not None:
        scores = outputs(near)
        shown = scores.argmax(dim=1) if model.outputs > 1 else torch.where(scores[:, 0] < 0, -1, 1)
        if bool((shown != radii.prediction)[radii.certified].any()):
            return f"{radii.prediction.tolist()} became {shown.tolist()} within {radii.radius.tolist()}"
    return ""
