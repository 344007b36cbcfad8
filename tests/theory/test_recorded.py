"""Cells of a user's own, and modules around them: errors, radii, ranges, exports that hold, or refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import equipoise as eq
from equipoise.theory import output_ranges
from equipoise.theory.moves import Moved, Walk
from equipoise.theory.recorded import RecordedCell, recorded
from equipoise.theory.robustness import certified_outputs, pairwise_lipschitz

F64 = torch.float64
LONG = np.longdouble
# Activations, and what they are in 64 bits of mantissa.
EXACT = {
    nn.ReLU: lambda t: np.maximum(t, 0),
    nn.Tanh: np.tanh,
    nn.Sigmoid: lambda t: 1 / (1 + np.exp(-t)),
    nn.SiLU: lambda t: t / (1 + np.exp(-t)),
    nn.Softplus: lambda t: np.logaddexp(LONG(0), t),
    nn.Tanhshrink: lambda t: t - np.tanh(t),
    nn.Softsign: lambda t: t / (1 + abs(t)),
    nn.LogSigmoid: lambda t: -np.logaddexp(LONG(0), -t),
}


def drawn(seed):
    torch.manual_seed(seed)  # of layers as torch begins them
    draw = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, dtype=F64, generator=draw)


class Cell(nn.Module):
    """act(W z + U x) with ‖W‖ = norm."""

    def __init__(self, draw, d=3, m=5, act=nn.Tanh, norm=0.7, scale=1.0, dtype=F64):
        super().__init__()
        self.W, self.U, self.act = nn.Linear(m, m, dtype=dtype), nn.Linear(d, m, dtype=dtype), act()
        with torch.no_grad():
            W = draw(m, m)
            self.W.weight.copy_(norm * W / torch.linalg.matrix_norm(W, 2))
            self.W.bias.copy_(scale * draw(m))
            self.U.weight.copy_(draw(m, d))
            self.U.bias.copy_(-scale * self.W.bias / abs(scale) + draw(m))  # which cancels most of it

    def forward(self, z, x):
        return self.act(self.W(z) + self.U(x))


def longs(t):
    return t.detach().double().numpy().astype(LONG)


def in_long(cell, z, x):
    """cell(z, x) in 64 bits of mantissa."""
    p = z @ longs(cell.W.weight).T + longs(cell.W.bias) + x @ longs(cell.U.weight).T + longs(cell.U.bias)
    return EXACT[type(cell.act)](p)


def truth(cell, x):
    """The equilibria of x in 64 bits of mantissa."""
    z = np.zeros((len(x), len(cell.W.weight)), dtype=LONG)
    for _ in range(2000):
        z = in_long(cell, z, x)
    return z


@given(st.integers(0, 10_000), st.sampled_from(list(EXACT)), st.sampled_from([1.0, 1e6, 1e12]))
@settings(max_examples=30, deadline=None)
def test_what_a_cell_computes_is_as_near_as_it_says(seed, act, scale):
    draw = drawn(seed)
    cell = Cell(draw, act=act, scale=scale)
    z, x = draw(4, 5), draw(4, 3)
    moved = RecordedCell(eq.Equilibrium(cell, state=(5,))).at(z, x)
    true = np.linalg.norm(longs(moved.value) - in_long(cell, longs(z), longs(x)), axis=1)
    step = 2e-8 if act is nn.Softplus and scale > 1 else 0.0  # torch takes t for softplus(t) from 20 on
    assert bool((true <= moved.off.numpy()).all())
    assert float(moved.off.max()) <= 1e-13 * (1 + scale) + step


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("noise", [0.0, 1e-12, 1e-3])
@given(st.integers(0, 10_000), st.sampled_from(list(EXACT)))
@settings(max_examples=6, deadline=None)
def test_no_equilibrium_is_farther_than_its_error(noise, dtype, seed, act):
    draw = drawn(seed)
    cell = Cell(draw, act=act, dtype=dtype)
    layer = eq.Equilibrium(cell, state=(5,))
    x = draw(3, 3).to(dtype)
    Z = layer.solve(x).value + (noise * draw(3, 5)).to(dtype)
    far = np.linalg.norm(longs(Z) - truth(cell, longs(x)))
    error = eq.equilibrium_error(layer, x, Z)
    assert far <= error <= 100 * (far + 1e-12)
    found = eq.certify(layer, x)
    assert found.constants["error"] <= error + 1e-12


def test_a_state_without_numbers_or_of_another_shape_has_no_error():
    layer, x = eq.Equilibrium(Cell(drawn(0)), state=(5,)), drawn(1)(3, 3)
    Z = layer.solve(x).value
    assert eq.equilibrium_error(layer, x, Z) < 1e-6
    assert eq.equilibrium_error(layer, x, Z.clone().fill_(math.nan)) == math.inf
    with pytest.raises(ValueError, match=r"Z must be \(3, 5\)"):
        eq.equilibrium_error(layer, x, Z[:, :4])
    steep = eq.Equilibrium(Cell(drawn(0), norm=1.5), state=(5,))
    assert eq.equilibrium_error(steep, x, Z) == math.inf
    layer.cell.register_forward_hook(lambda module, given, out: 2 * out)
    assert eq.equilibrium_error(layer, x, Z) == math.inf


# -- norms outside of the loop -------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.sampled_from([1e-5, 1e-12, 1.0]), st.sampled_from([0.0, 1e5, 1e10]))
@settings(max_examples=20, deadline=None)
def test_a_norm_of_the_input_is_as_near_and_moves_as_far_as_it_says(seed, eps, level):
    draw = drawn(seed)
    layer = nn.LayerNorm(6, eps=eps, dtype=F64) if seed % 2 else nn.GroupNorm(2, 6, eps=eps, dtype=F64)
    with torch.no_grad():
        layer.weight.copy_(draw(6))
        layer.bias.copy_(1e3 * draw(6))
    x = draw(4, 6) + level
    moved = Walk(recorded(nn.Sequential(layer), 1, "model")).run(Moved.given(x, 0.0, 1.0))
    groups = longs(x).reshape(4, 1 if seed % 2 else 2, -1)
    c = groups - groups.mean(axis=-1, keepdims=True)
    own = (c / np.sqrt((c**2).mean(axis=-1, keepdims=True) + LONG(eps))).reshape(4, 6)
    own = own * longs(layer.weight) + longs(layer.bias)
    assert bool((np.linalg.norm(longs(moved.value) - own, axis=1) <= moved.off.numpy()).all())
    assert float(moved.off.max()) <= 1e-10 * (1 + level)
    J = torch.autograd.functional.jacobian(layer, x[:1]).reshape(6, 6)
    assert torch.linalg.matrix_norm(J, 2) <= moved.with_x.hi
    near = x[:1].mean() + 1e-3 * math.sqrt(eps) * draw(1, 6)  # where the norm is steepest
    J = torch.autograd.functional.jacobian(layer, near).reshape(6, 6)
    if level == 0:
        assert 0.5 * moved.with_x.hi <= torch.linalg.matrix_norm(J, 2) <= moved.with_x.hi


# -- modules around equilibria -------------------------------------------------------------------------------


class Around(nn.Module):
    """An encoder, an equilibrium and a linear readout in the forward of a user's own."""

    def __init__(self, draw, act=nn.Tanh, dtype=F64, norm=False):
        super().__init__()
        self.encode = nn.Linear(3, 3, dtype=dtype)
        self.norm = nn.LayerNorm(3, eps=0.1, dtype=dtype) if norm else nn.Identity()
        self.layer = eq.Equilibrium(Cell(draw, act=act, dtype=dtype), state=(5,))
        self.head = nn.Linear(5, 4, dtype=dtype)
        with torch.no_grad():
            self.encode.weight.copy_(draw(3, 3))
            self.head.weight.copy_(draw(4, 5))

    def forward(self, x):
        return self.head(self.layer(F.relu(self.encode(self.norm(x)))))


def images(draw):
    class Seen(nn.Module):
        def __init__(self):
            super().__init__()
            self.W, self.U = (nn.Conv2d(c, 2, 3, padding=1, dtype=F64) for c in (2, 1))
            with torch.no_grad():
                self.W.weight.copy_(0.1 * draw(2, 2, 3, 3))
                self.U.weight.copy_(draw(2, 1, 3, 3))

        def forward(self, z, x):
            return F.relu(self.W(z) + self.U(x))

    head = nn.Linear(32, 3, dtype=F64)
    with torch.no_grad():
        head.weight.copy_(draw(3, 32))
    return nn.Sequential(eq.Equilibrium(Seen(), state=(2, 4, 4)), nn.Flatten(), head)


def pushed(model, x, y, far):
    """Inputs at distances up to `far` from x that climb to where y is behind another class."""
    wide = far.reshape(-1, *[1] * (x.ndim - 1))
    unit = lambda t: F.normalize(t.flatten(1), dim=1).reshape(t.shape)
    for start in range(2):
        moved = x + 0.3 * wide * unit(drawn(start)(*x.shape))
        for _ in range(6):
            moved = moved.detach().requires_grad_()
            scores = model(moved)
            others = scores.masked_fill(F.one_hot(y, scores.shape[1]).bool(), -math.inf)
            behind = others.amax(dim=1) - scores.gather(1, y[:, None])[:, 0]
            (g,) = torch.autograd.grad(behind.sum(), moved)
            step = moved.detach() - x + wide * unit(g)
            moved = x + unit(step) * torch.minimum(wide, step.flatten(1).norm(dim=1).reshape(wide.shape))
            yield moved


@pytest.mark.parametrize("kind", ["dense", "float32", "norm", "images"])
@given(st.integers(0, 10_000))
@settings(max_examples=3, deadline=None)
def test_no_input_within_its_radius_gets_another_class(kind, seed):
    draw = drawn(seed)
    if kind == "images":
        model, X = images(draw), draw(4, 1, 4, 4)
    else:
        dtype = torch.float32 if kind == "float32" else F64
        act = (nn.Tanh, nn.ReLU, nn.SiLU)[seed % 3] if seed % 3 < 2 else nn.Softplus
        model, X = Around(draw, act, dtype, norm=kind == "norm"), draw(6, 3).to(dtype)
    found = eq.certified_radius(model, X)
    assert int(found.certified.sum()) >= len(X) - 2
    model = model.double()
    with torch.no_grad():
        assert torch.equal(model(X.double()).argmax(dim=1), found.prediction)
    far = found.radius * (1 - 1e-6)
    for moved in pushed(model, X.double(), found.prediction, far):
        assert bool(((moved - X).flatten(1).norm(dim=1) < found.radius).all())
        with torch.no_grad():
            assert torch.equal(model(moved).argmax(dim=1), found.prediction)


@given(st.integers(0, 10_000))
@settings(max_examples=4, deadline=None)
def test_outputs_move_no_faster_than_their_constants_and_are_as_near_as_they_say(seed):
    draw = drawn(seed)
    model, X = Around(draw, nn.Softsign), draw(6, 3)
    whole, pair = eq.lipschitz_bound(model, X), pairwise_lipschitz(model, X)
    for x in X[:3]:
        J = torch.autograd.functional.jacobian(lambda t: model(t[None])[0], x)
        assert torch.linalg.matrix_norm(J, 2) <= whole * (1 + 1e-6)
        assert float((J[0] - J[1]).norm()) <= float(pair[0, 1]) * (1 + 1e-6)
    assert bool((pair <= whole * math.sqrt(2) * (1 + 1e-9)).all())
    said, error = certified_outputs(model, X)
    z = truth(model.layer.cell, longs(F.relu(model.encode(X))))  # the encoder errs by some 1e-16
    exact = z @ longs(model.head.weight).T + longs(model.head.bias)
    off = np.abs(longs(said) - exact).max(axis=1).astype(float)
    assert bool((off <= error.numpy() + 1e-14).all())
    assert float(error.max()) < 1e-9


@pytest.mark.parametrize("make", ["cell", "images", "monotone"])
def test_outputs_over_a_box_lie_within_their_ranges(make):
    draw = drawn(3)
    if make == "monotone":
        model, X = (
            eq.Monotone(3, 8, outputs=3, bias=True, generator=torch.Generator().manual_seed(0)),
            draw(4, 3),
        )
    else:
        model, X = (Around(draw), draw(4, 3)) if make == "cell" else (images(draw), draw(4, 1, 4, 4))
    half = 0.05 * draw(*X.shape).abs()
    low, high = output_ranges(model, X - half, X + half)
    model = model.double()
    for _ in range(50):
        corner = X + half * draw(*X.shape).sign()
        with torch.no_grad():
            y = model(corner)
        assert bool(((low <= y) & (y <= high)).all())
    point = output_ranges(model, X, X)
    assert float((point[1] - point[0]).max()) < 1e-8
    assert bool(((low <= point[0]) & (point[1] <= high)).all())
    with pytest.raises(ValueError, match="low ≤ high"):
        output_ranges(model, X + half, X - half)
    with pytest.raises(ValueError, match="one shape"):
        output_ranges(model, X, X[:2])


def test_a_layer_alone_is_its_own_readout():
    layer, x = eq.Equilibrium(Cell(drawn(0)), state=(5,)), drawn(1)(4, 3)
    whole = eq.lipschitz_bound(layer, x)
    assert whole == pytest.approx(eq.certify(layer, x).constants["lipschitz"], rel=1e-12)
    assert float(pairwise_lipschitz(layer, x)[0, 1]) == pytest.approx(math.sqrt(2) * whole, rel=1e-9)
    assert bool(eq.certified_radius(layer, x).certified.all())


class Ends(nn.Module):
    """What a test makes of an equilibrium and some layers."""

    def __init__(self, make, **more):
        super().__init__()
        self.layer = eq.Equilibrium(Cell(drawn(0)), state=(5,))
        self.head, self.make = nn.Linear(5, 4, dtype=F64), make
        for name, part in more.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.make(self, x)


REFUSED = {
    "mean of the batch": (lambda c, x: c.head(c.layer(x - x.mean(0))), "mean", {}),
    "batch norm": (
        lambda c, x: c.head(c.bn(c.layer(x))),
        "bn (BatchNorm1d)",
        {"bn": nn.BatchNorm1d(5).eval()},
    ),
    "random": (lambda c, x: c.head(c.drop(c.layer(x))), "drop (Dropout)", {"drop": nn.Dropout()}),
    "keyword": (lambda c, x: c.head(c.layer(x, start=None)), "with these arguments", {}),
    "branch": (lambda c, x: c.head(c.layer(x)) if x.sum() > 0 else c.head(x), "cannot be recorded", {}),
    "images out": (lambda c, x: c.layer(x)[:, :, None], "getitem", {}),
    "in place": (lambda c, x: c.head(F.relu(c.layer(x)).add_(1)), "add_", {}),
    "draws": (lambda c, x: c.head(c.layer(x)) + torch.rand(1, dtype=F64), "another answer", {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_modules_with_parts_that_are_not_known_are_refused_in_words(name):
    make, named, more = REFUSED[name]
    model, x = Ends(make, **more), drawn(1)(4, 3)
    assert eq.lipschitz_bound(model, x) == math.inf
    found = eq.certified_radius(model, x)
    assert not bool(found.certified.any())
    assert all(named in why for why in found.uncertified.values())
    with pytest.raises(ValueError, match="outputs are certified where"):
        certified_outputs(model, x)


def test_what_has_no_constant_or_no_contraction_is_refused_in_words():
    x = drawn(1)(4, 3)
    steep = nn.Sequential(eq.Equilibrium(Cell(drawn(0), norm=1.5), state=(5,)), nn.Linear(5, 2, dtype=F64))
    assert "not proved to contract" in eq.certified_radius(steep, x).uncertified[0]
    tokens = nn.Sequential(nn.Embedding(7, 3, dtype=F64), eq.Equilibrium(Cell(drawn(0)), state=(5,)))
    X = torch.tensor([1, 2, 6])
    assert "acts on the inputs" in eq.certified_radius(tokens, X).uncertified[0]
    broken = Ends(lambda c, x: c.head(c.layer(x)))
    with torch.no_grad():
        broken.head.weight[0, 0] = math.nan
    assert "head.weight holds NaN" in eq.certified_radius(broken, x).uncertified[0]
    hooked = Ends(lambda c, x: c.head(c.layer(x)))
    hooked.head.register_forward_hook(lambda module, given, out: 3 * out)
    assert "hook" in eq.certified_radius(hooked, x).uncertified[0]
    with pytest.raises(TypeError, match=r"lipschitz_bound\(model, X\)"):
        eq.lipschitz_bound(eq.Equilibrium(Cell(drawn(0)), state=(5,)))


# -- export --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [nn.Tanh, nn.ReLU, nn.Softplus])
def test_an_unrolled_cell_is_proved_from_its_parts(act):
    draw = drawn(2)
    layer = eq.Equilibrium(Cell(draw, act=act), state=(5,), stop=eq.Stop(rtol=1e-12))
    plain = eq.unroll(layer, error=1e-4, radius=2.0, sample=draw(1, 3))
    assert plain.proved
    assert "activation" in repr(plain)
    X = F.normalize(draw(200, 3)) * 2.0
    with torch.no_grad():
        far = (plain(X) - layer(X)).norm(dim=1).max()
        fewer = plain.body(X, plain.steps // 4)
        assert float(far) <= 1e-4 < float((fewer - layer(X)).norm(dim=1).max())


def test_an_unrolled_cell_of_unknown_parts_is_refused_in_words():
    X = drawn(0)(2, 5)

    class Other(nn.Module):
        def forward(self, z, x):
            return 0.1 * z * z + x

    with pytest.raises(ValueError, match=r"contraction is not proved: .* mul"):
        eq.unroll(eq.Equilibrium(Other()), error=1e-3, radius=1.0, sample=X)
    steep = eq.Equilibrium(Cell(drawn(0), norm=1.5), state=(5,))
    with pytest.raises(ValueError, match="factor below 1 is required"):
        eq.unroll(steep, error=1e-3, radius=1.0, sample=drawn(0)(2, 3))

    class Normed(Cell):
        def __init__(self):
            super().__init__(drawn(0))
            self.norm = nn.Softmax(-1)

        def forward(self, z, x):
            return super().forward(z, self.norm(x))

    with pytest.raises(ValueError, match="how the cell follows x is not proved"):
        eq.unroll(eq.Equilibrium(Normed(), state=(5,)), error=1e-3, radius=1.0, sample=drawn(0)(2, 3))
