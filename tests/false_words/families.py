"""Affine families: equilibria, gradients, and what is certified of them as they are and altered."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch
from torch.nn.utils import parametrizations, prune

import equipoise as eq
from references import LONG, equilibria, error_factor, norms, parts, readout, wide

from .draw import DTYPES, Draw, Word
from .solves import rounding, smallest

HIDDEN = {"GaussianReLU": "W", "ScaledReLU": "A", "Monotone": "B", "LinearEquilibrium": "A"}


def family(draw: Draw, dtype: torch.dtype, outputs: int) -> eq.models.affine.AffineFamily:
    """A narrow network of one of the families, some pruned, with one equilibrium."""
    d, m = draw.random.randint(1, 3), draw.random.randint(1, 6)
    given = {"dtype": torch.float64, "generator": draw.generator}
    kind = draw.choice(("gaussian", "scaled", "monotone", "linear"))
    if kind == "gaussian":
        model = eq.GaussianReLU(d, m, outputs=outputs, relu_at_zero=draw.choice((0, 1)), **given)
        model.W.data.copy_(_sized(draw.normal(m, m), draw.uniform(0.1, 0.9)))
    elif kind == "scaled":
        model = eq.ScaledReLU(d, m, 0.5, outputs, init="section5.2", **given)
        model.A.data.copy_(_sized(draw.normal(m, m), draw.uniform(0.1, 1.8)))
    elif kind == "monotone":
        model = eq.Monotone(d, m, draw.choice((0.2, 1.0)), outputs, bias=draw.chance(0.3), **given)
        model.B.data.mul_(draw.choice((0.1, 1.0, 3.0)))
    else:
        model = eq.LinearEquilibrium(m, outputs, draw.uniform(0.1, 0.9), **given)
        model.A.data.mul_(draw.choice((1.0, 5.0)))
    if draw.chance(0.3):
        for name, p in model.named_parameters():
            if p.ndim == 2 and name != model.readout_name:
                p.data.mul_(torch.rand(p.shape, generator=draw.generator) > draw.uniform(0.3, 0.9))
    return model.to(dtype)


def _sized(M: torch.Tensor, norm: float) -> torch.Tensor:
    return M * norm / torch.linalg.matrix_norm(M, ord=2)


# -- equilibria and gradients -------------------------------------------------------------------------------


def gradients(draw: Draw) -> Word:
    """Z and the gradients of ⟨c, ŷ⟩ in X and every parameter, at every size, against dense solves.

    A unit whose pre-activation is within the error of Z of zero, and is none exactly, has no mask to be told.
    """
    dtype = draw.choice(DTYPES)
    model, size = family(draw, dtype, draw.choice((1, 1, 2))), draw.size(dtype)
    if getattr(model, "bias", None) is not None:
        size = 1.0
    X = (size * draw.normal(draw.random.randint(1, 3), model.inputs)).to(dtype)
    weight, info = draw.size(dtype), torch.finfo(dtype)
    if not math.log2(info.tiny) + 12 <= math.log2(size) + math.log2(weight) <= math.log2(info.max) - 12:
        weight = 1.0
    twin, name = copy.deepcopy(model).double(), HIDDEN[type(model).__name__]
    if draw.chance(0.2):  # by torch, which makes W a tensor that is computed of W_orig
        mask = torch.rand(model.width, model.width, generator=draw.generator) > 0.5
        prune.custom_from_mask(model, name, mask)
        getattr(twin, name).data.mul_(mask)
    X.requires_grad_()
    around = torch.autocast("cpu", dtype=torch.bfloat16) if draw.chance(0.1) else nullcontext()
    start = draw.choice((None, None, size, 1.0))
    begin = None if start is None else (start * draw.normal(len(X), model.width).abs()).to(dtype)
    try:
        with around:
            Z = model.equilibrium(X, start=begin)
            y = model.readout(Z)
        c = (weight * draw.normal(*y.shape)).to(dtype)
        names, tensors = zip(("X", X), *model.named_parameters(), strict=True)
        got = torch.autograd.grad(y, tensors, c)
    except eq.EquilibriumError:
        return Word(False)
    w, u = parts(model, X)
    factor, exact, z = error_factor(w), equilibria(w, u, model.activation.name), wide(Z)
    sizes, rtol = np.abs(z) @ np.abs(w.T) + np.abs(u), eq.Stop().resolve(dtype).rtol
    units = (model.width + 8) * info.eps * (1 + factor) * (1 + np.abs(w).sum() + _sizes_of_weight(model))
    off = norms(z - exact)
    own = norms(np.abs(u))
    if begin is not None:  # where f(0) = 0 the size of the start decides
        f0 = np.maximum(u, 0) if model.activation.name == "relu" else u
        lost = norms(f0) == 0
        own = np.where(lost, norms(wide(begin)), own)
    scale = np.maximum(np.maximum(norms(z), 1e-4 * own), info.tiny)  # relative down to the normal numbers
    allowed = factor * (1.01 * rtol * scale + rounding(Z, sizes))
    allowed = allowed + units * (norms(exact) + norms(np.abs(wide(X)))) + 64 * smallest(Z) * factor
    if (off > allowed).any():
        return Word(True, f"{type(model).__name__} {dtype}: Z is off by {off}, at most {allowed} is allowed")
    if units > 0.05 or (begin is not None and lost.any()):
        return Word(True)  # in half precision the weight itself is too uncertain for a gradient
    true, read = exact @ w.T + u, z @ w.T + u
    sure = np.abs(true - read) + rounding(Z, sizes)[:, None] + units * norms(sizes)[:, None]
    tie = (u == 0) & (np.abs(true) <= 1e-17 * norms(sizes)[:, None])
    if model.activation.name == "relu" and ((np.abs(true) <= sure) & ~tie).any():
        return Word(True)
    D = np.where(tie, model.relu_at_zero, true > 0) if model.activation.name == "relu" else np.ones_like(true)
    want, scale = _true_gradients(twin, X, c, size, weight, exact, D)
    slack = 8 * (rtol + units) * (1 + factor) ** 2
    for name, a in zip(names, got, strict=True):
        b = want[name.removesuffix("_orig")]
        b = b * mask if name.endswith("_orig") else b
        a = a.double() / weight / (1.0 if name == "X" else size)
        if not float((a - b).norm()) <= slack * scale + 1e-3 * info.eps:
            return Word(True, f"{type(model).__name__} {dtype}: ∇{name} is {a.tolist()}, truly {b.tolist()}")
    return Word(True)


def _sizes_of_weight(model) -> float:
    """Of what W(θ) is the sum: it rounds, and cancels."""
    if isinstance(model, eq.Monotone):
        return float(model.A.double().square().sum() + 2 * model.B.double().abs().sum() + 1)
    return 0.0


def _true_gradients(model, X, c, size, weight, exact, D):
    """Of ⟨c/weight, ŷ⟩ at X/size, by name, for a model in float64; and by what they are to be measured."""
    x = (X.detach().double() / size).requires_grad_()
    Z = torch.from_numpy((exact / LONG(size)).astype(np.float64))
    W, u, D = model.weight(), model.injection(x), torch.from_numpy(D.astype(np.float64))
    eye = torch.eye(model.width, dtype=torch.float64)
    at = D * (Z @ W.T + u)
    at.register_hook(lambda g: torch.linalg.solve(eye - W.detach().T * D[:, None, :], g[:, :, None])[..., 0])
    C = c.double().reshape(len(X), -1) / weight
    names, tensors = zip(("X", x), *model.named_parameters(), strict=True)
    want = torch.autograd.grad(model.readout(at).reshape(len(X), -1), tensors, C)
    # Rows add up in a gradient, and may cancel: the sizes of the terms count.
    inner = 1 + sum(float(p.detach().norm()) for p in model.parameters())
    scale = inner**2 * float(C.norm()) * (1 + float(Z.norm() + x.detach().norm()))
    return dict(zip(names, want, strict=True)), scale


# -- bounds and certificates --------------------------------------------------------------------------------


def bounds(draw: Draw) -> Word:
    """wellposed, equilibrium_error, lipschitz_bound, certified_radius, unroll, of weights of every size."""
    dtype = draw.choice((torch.float64, torch.float64, torch.float32))
    model = family(draw, dtype, draw.choice((1, 2, 3)))
    kind = type(model).__name__
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name in ("U", "bias", model.readout_name) or (kind == "ScaledReLU" and name == "W"):
                p.mul_(draw.size(dtype, 30.0 if dtype == torch.float64 else 9.0))
        if draw.chance(0.3) and kind in ("GaussianReLU", "ScaledReLU"):
            getattr(model, HIDDEN[kind]).mul_(draw.uniform(0.9, 4.0))
    room = 80.0 if dtype == torch.float64 else 12.0
    X = (draw.size(dtype, room) * draw.normal(2, model.inputs)).to(dtype)
    w, u = parts(model, X)
    q = np.linalg.norm(w.astype(float), 2)
    margin = np.linalg.eigvalsh(np.eye(len(w)) - (w + w.T).astype(float) / 2)[0]
    certain = kind == "LinearEquilibrium" or q < 1 + 1e-12 or margin > -1e-12
    certificate = eq.certify(model, X)
    if certificate.proved and not certain:
        return Word(True, f"{kind}: proved at ‖W‖ = {q}, margin {margin}")
    reach = eq.lipschitz_bound(model)
    if not certificate.proved:
        return Word(
            True, f"{kind}: a bound {reach} without a proof" if math.isfinite(reach) and not certain else ""
        )
    exact = equilibria(w, u, model.activation.name)
    y, unit = readout(model, exact), 1 + 1e-9
    if certificate.constants["error"] < math.inf:
        Z = exact.astype(float) * draw.choice((1.0, 1.0, 1.1))
        claimed = eq.equilibrium_error(model, X, torch.from_numpy(Z))
        true = norms((Z - exact).reshape(1, -1))[0]
        if true > claimed * unit:
            return Word(True, f"{kind}: equilibrium_error {claimed}, truly {true}")
    step = X.double() * draw.choice((1e-6, 0.1, 1.0)) * draw.normal(*X.shape)
    other = (X.double() + step).to(dtype)
    near = readout(model, equilibria(*parts(model, other), model.activation.name))
    moved, way = norms(near - y), norms(wide(other) - wide(X))
    blur = 1e-17 * (norms(y) + norms(near)) * (1 + error_factor(w) if math.isfinite(error_factor(w)) else 1e6)
    if (moved > LONG(reach) * way * unit + blur).any():
        return Word(True, f"{kind}: moved {moved / way}, lipschitz_bound {reach}")
    return _radius(draw, model, X, y) or _unrolled(draw, model, X) or Word(True)


def _radius(draw: Draw, model, X, y) -> Word | None:
    """Whether a prediction changes within a certified radius, along random directions."""
    radii = eq.theory.certified_radius(model, X, local=draw.chance(0.3))
    shown = y.argmax(axis=1) if model.outputs > 1 else np.where(y[:, 0] < 0, -1, 1)
    done = radii.certified.numpy()
    if (radii.prediction.numpy() != shown)[done].any():
        return Word(True, f"certified {radii.prediction.tolist()}, predicted {shown.tolist()}")
    for _ in range(3):
        way = draw.normal(*X.shape)
        away = radii.radius.clamp_max(1e300)[:, None] * 0.999 * way / way.norm(dim=1, keepdim=True)
        far = wide(X.double() + away)
        if not np.isfinite(far).all():
            continue
        there = readout(model, equilibria(*parts_at(model, far), model.activation.name))
        now = there.argmax(axis=1) if model.outputs > 1 else np.where(there[:, 0] < 0, -1, 1)
        if (now != shown)[done].any():
            return Word(True, f"{type(model).__name__}: {shown} became {now} within {radii.radius.tolist()}")
    return None


def parts_at(model, x: np.ndarray):
    return parts(model, torch.from_numpy(x.astype(np.float64)))


def _unrolled(draw: Draw, model, X) -> Word | None:
    """Whether an unrolled network that is proved is as near as it says."""
    size = float(norms(wide(X)).max())
    w, u = parts(model, X)
    y = readout(model, equilibria(w, u, model.activation.name))
    scale = float(norms(y).max())
    if not (1e-30 < scale < 1e30 and 1e-30 < size < 1e30):
        return None
    try:
        net = eq.unroll(model, draw.choice((1e-3, 1e-1)) * scale, size * 1.01)
    except ValueError:
        return None
    with torch.no_grad():
        got = wide(net.double()(X.double()).reshape(len(X), -1))
    off = norms(got - y)
    if net.proved and (off > net.error * (1 + 1e-6) + 1e-9 * norms(y)).any():
        return Word(True, f"{type(model).__name__}: unrolled is off by {off}, {net.error} was proved")
    return None


# -- altered models -----------------------------------------------------------------------------------------


def _tensor(model, name):
    value = getattr(model, name).detach().clone()
    delattr(model, name)
    setattr(model, name, value)


def _override(model, draw):
    method = draw.choice(("forward", "readout", "injection", "equilibrium"))
    own = getattr(type(model), method)
    model.__class__ = type("Mine", (type(model),), {method: lambda self, *a, **k: -own(self, *a, **k)})


def _patch(model, draw):
    method = draw.choice(("forward", "readout", "injection", "weight"))
    own = getattr(model, method)
    setattr(model, method, lambda *a, **k: 2 * own(*a, **k))


ALTERED: dict[str, Callable] = {
    "a hook": lambda model, draw: model.register_forward_hook(lambda module, given, out: -out),
    "a hook before": lambda model, draw: model.register_forward_pre_hook(lambda module, given: (-given[0],)),
    "an override": _override,
    "a patch": _patch,
    "pruned": lambda model, draw: prune.random_unstructured(model, HIDDEN[type(model).__name__], amount=0.5),
    "a parametrisation": lambda model, draw: parametrizations.weight_norm(
        model, HIDDEN[type(model).__name__]
    ),
    "a tensor": lambda model, draw: _tensor(model, model.readout_name),
    "an attribute": lambda model, draw: (
        setattr(model, "activation", eq.solve.TANH)
        if model.activation.name == "relu"
        else setattr(model, "weight", lambda: 0.5 * type(model).weight(model))
    ),
}


def altered(draw: Draw) -> Word:
    """A model that is no longer its family: nothing is certified, bounded or unrolled of it."""
    model = family(draw, torch.float64, draw.choice((1, 2)))
    X = draw.normal(2, model.inputs)
    kind, what = type(model).__name__, draw.choice([*ALTERED])
    y = draw.normal(2, *(() if model.outputs == 1 and kind != "LinearEquilibrium" else (model.outputs,)))
    ALTERED[what](model, draw)
    for theorem in ("wellposed", "two_timescale", "safeguarded"):
        try:
            if eq.certify(model, X, None if theorem == "wellposed" else y, theorem=theorem).proved:
                return Word(True, f"{kind} with {what} has a proved {theorem}")
        except (ValueError, TypeError, RuntimeError):
            continue
    with torch.no_grad():
        said = {
            "lipschitz_bound": lambda: eq.lipschitz_bound(model) < math.inf,
            "certified_radius": lambda: bool(eq.theory.certified_radius(model, X).certified.any()),
            "equilibrium_error": lambda: (
                eq.equilibrium_error(model, X, torch.zeros(2, model.width).double()) < math.inf
            ),
            "unroll": lambda: eq.unroll(model, 0.1, 10.0).proved,
        }
        for name, claim in said.items():
            try:
                if claim():
                    return Word(True, f"{kind} with {what} has a {name}")
            except (ValueError, TypeError, RuntimeError):
                continue
    return Word(True)


# -- proved runs --------------------------------------------------------------------------------------------


def runs(draw: Draw) -> Word:
    """A proved run: the loss at its end, at equilibria solved for by other means, is within the promise."""
    model = family(draw, torch.float64, draw.choice((1, 2)))
    N, size = draw.random.randint(1, 3), draw.choice((1.0, 1e-12, 1e6, 1e-60, 1e60))
    X = size * draw.normal(N, model.inputs)
    y = draw.choice((1.0, size, 1e-9)) * draw.normal(*readout_shape(model, N))
    theorem = draw.choice(("two_timescale", "safeguarded"))
    slack = draw.choice((0.0, 0.0, 1.0))
    certificate = eq.certify(
        model, X, y, theorem=theorem, readout=draw.choice(("gradient", "gauss-newton")), slack=slack
    )
    if not certificate.proved:
        return Word(False)
    steps = draw.random.randint(1, 4)
    before = _loss(model, X, y, certificate)
    if theorem == "safeguarded":
        run = eq.safeguarded_descent(model, X, y, steps, certificate)
    else:
        run = eq.gradient_descent(model, X, y, steps, certificate)
    if broken := run.violations():
        return Word(True, f"{theorem}: violations {broken}")
    if slack == 0 and not run.stopped:
        after, least = _loss(model, X, y, certificate), LONG(certificate.constants.get("least", 0.0))
        promised = LONG(certificate.bound(steps)) * (before - least) + least
        if after > promised * (1 + 1e-6) + 1e-25 * before:
            return Word(
                True, f"{type(model).__name__} {theorem}: L({steps}) = {after}, {promised} was promised"
            )
    return Word(True)


def readout_shape(model, N: int) -> tuple[int, ...]:
    return tuple(model.readout(torch.zeros(N, model.width, dtype=torch.float64)).shape)


def _loss(model, X, y, certificate) -> np.longdouble:
    """‖ŷ − y‖² in long double, at the true equilibria; half of it where the family's loss is."""
    w, u = parts(model, X)
    found = readout(model, equilibria(w, u, model.activation.name)) - wide(y).reshape(len(X), -1)
    return (found**2).sum() * (LONG(0.5) if certificate.loss == "half_square" else LONG(1))
