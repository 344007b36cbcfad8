"""The convex problem has no size of its own: data from 1e-8 to 1e8 have the same answers, if they fit."""

import math

import pytest
import torch

import equipoise as eq
from equipoise.models.proximal import DeepOptEq, OptEq, Phi, QuadraticProgramme
from equipoise.models.proximal.activations import KNOWN, potential
from equipoise.solve import clamp

SCALES = [1e-8, 1e-4, 1.0, 1e4, 1e8]
HOMOGENEOUS = ["relu", "leaky_relu", "identity"]  # σ(s t) = s σ(t)
STOP = eq.Stop(rtol=1e-13, atol=0.0, max_steps=20000)


def draw(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scaled(s, activation="relu", kind=OptEq, rows=12, **options):
    """A model with U and b in units of s."""
    hidden = 6 if kind is OptEq else [5, 4]
    generator = torch.Generator().manual_seed(0)
    model = kind(3, 3, hidden, activation=activation, dtype=torch.float64, generator=generator, **options)
    with torch.no_grad():
        for l, block in enumerate(model.blocks):
            block.b.copy_(draw(l, len(block.b)))
            block.U.mul_(s)
            block.b.mul_(s)
    return model, draw(9, rows, 3)


def relative(found, want):
    """The largest error of a row, relative to that row."""
    found, want = (t if t.ndim == 2 else t[:, None] for t in (found, want))
    error, size = (found - want).norm(dim=1), want.norm(dim=1)
    return float(torch.where(size > 0, error / size.clamp_min(1e-300), error).max())


@pytest.mark.parametrize("s", [1e-100, *SCALES, 1e6, 1e100])
@pytest.mark.parametrize("alpha", [0.4, 1.0])
@pytest.mark.parametrize("kind", [OptEq, DeepOptEq])
def test_the_minimum_of_relu_has_the_value_of_its_minimiser(kind, alpha, s):
    model, X = scaled(s, kind=kind, alpha=alpha, rows=40)
    found = model.minimise(X)
    assert relative(model.objective(found.z, X), found.value) < 1e-10
    one, _ = scaled(1.0, kind=kind, alpha=alpha)
    assert relative(found.value / s / s, one.minimise(X).value) < 1e-12
    assert relative(found.z / s, one.minimise(X).z) < 1e-11


@pytest.mark.parametrize("s", SCALES)
@pytest.mark.parametrize("activation", HOMOGENEOUS)
def test_phi_is_homogeneous_of_degree_two_where_the_activation_is_of_one(activation, s):
    model, X = scaled(1.0, activation)
    (phi,), (large,) = model.potentials(X), scaled(s, activation)[0].potentials(X)
    y = draw(5, 12, 3)
    z = torch.cat([phi.map(y)[:9], y[9:]])  # the last rows are outside the cone of relu, or not
    value = phi.value(z)
    finite = torch.isfinite(value)
    assert torch.equal(torch.isfinite(large.value(s * z)), finite)
    assert relative(large.value(s * z)[finite], s * s * value[finite]) < 1e-9
    for t in (0.1, 0.8):
        assert relative(large.prox(t, s * y), s * phi.prox(t, y)) < 1e-12
        assert relative(large.envelope(t, s * y), s * s * phi.envelope(t, y)) < 1e-10
    k = 1e4  # another symmetry: W, μ, z ↦ kW, k²μ, z/k leaves W z alone
    other = Phi(k * phi.W, phi.c, k * k * phi.mu, phi.activation)
    assert relative(other.value(z / k)[finite], value[finite] / k**2) < 1e-9
    assert torch.equal(torch.isfinite(other.value(z / k)), finite)


@pytest.mark.parametrize("s", [1e-30, *SCALES])
def test_what_lies_outside_of_the_cone_does_so_at_every_size(s):
    plane = OptEq(3, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        plane.b.copy_(s * draw(1, 3))
    (phi,) = plane.potentials(torch.zeros(5, 3, dtype=torch.float64))
    inside = draw(6, 5, 3).abs() @ phi.W
    assert torch.isfinite(phi.value(s * inside)).all()
    off = torch.linalg.svd(phi.W).Vh[-1]  # W off = 0
    assert (phi.value(s * (inside + 1e-6 * off)) == math.inf).all()  # not in the range of Wᵀ
    assert (phi.value(-s * inside) == math.inf).all()  # v ≤ 0
    bounded = Phi(torch.tensor([[0.9]]).double(), torch.tensor([[s]]).double(), 1.0, KNOWN["tanh"])
    assert bounded.value(torch.tensor([[0.95]]).double()) == math.inf  # whatever c is


@pytest.mark.parametrize("s", SCALES)
@pytest.mark.parametrize("activation", ["tanh", "softplus", "leaky_relu", "hardtanh", "softshrink", "relu6"])
def test_the_equilibrium_of_other_activations_is_the_minimiser(activation, s):
    model, X = scaled(s, activation, rows=4)
    found = model.minimise(X)
    Z = model.equilibrium(X, stop=STOP).detach()
    assert relative(found.z, Z) < 1e-11
    assert relative(model.objective(found.z, X), found.value) < 1e-9


@pytest.mark.parametrize(("activation", "s"), [("tanh", 1e-8), ("leaky_relu", 1e-30), ("leaky_relu", 1e30)])
def test_so_is_that_of_two_layers(activation, s):
    model, X = scaled(s, activation, DeepOptEq, rows=3, alpha=0.4)
    assert relative(model.minimise(X).z, model.equilibrium(X, stop=STOP).detach()) < 1e-11


def test_small_and_large_data_of_tanh_have_known_limits():
    """tanh is the identity near 0; far from it, it is the sign, and so is hardtanh."""
    (small,), (linear,) = (scaled(1e-8, name)[0].potentials(draw(9, 12, 3)) for name in ("tanh", "identity"))
    z = 1e-8 * draw(5, 12, 3)
    assert relative(small.value(z), linear.value(z)) < 1e-9
    for activation in (KNOWN["tanh"], clamp(-1.0, 1.0)):
        t = torch.tensor([1e-9, -3e-9, 1e9], dtype=torch.float64)
        rest = math.log(2) if activation.name == "tanh" else 0.5
        want = torch.tensor([0.5e-18, 4.5e-18, 1e9 - rest], dtype=torch.float64)
        torch.testing.assert_close(potential(activation, t), want, rtol=1e-15, atol=0)


@pytest.mark.parametrize("signed", [2, 4])
@pytest.mark.parametrize("s", [1e-100, *SCALES, 1e100])
def test_a_quadratic_programme_is_solved_in_units_of_its_data(s, signed):
    H = draw(1, 4, 4)
    programme = QuadraticProgramme(H @ H.T + torch.eye(4, dtype=torch.float64), s * draw(2, 10, 4), signed)
    v = programme.solve()
    slope = (v @ programme.H - programme.g) / s  # the KKT conditions
    assert slope[:, signed:].abs().max() < 1e-13 if signed < 4 else True
    assert slope[:, :signed].min() > -1e-13
    assert v[:, :signed].min() >= 0
    assert (v[:, :signed] / s * slope[:, :signed]).abs().max() < 1e-13
    assert (v[:, :signed] == 0).any()
    still = QuadraticProgramme(programme.H, 0 * programme.g, signed)
    assert (still.solve() == 0).all()


# -- states that fit the data --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (OptEq, "objective"),
        (OptEq, "optimality_gap"),
        (DeepOptEq, "objective"),
        (DeepOptEq, "optimality_gap"),
        (DeepOptEq, "inclusion_residual"),
    ],
)
def test_a_state_for_every_row_is_asked_for(kind, method):
    model, X = scaled(1.0, kind=kind, alpha=0.5)
    Z, call = draw(3, 12, 3), getattr(model, method)
    with pytest.raises(ValueError, match=r"X must be \(N, 3\).* Got shape \(12, 4\)"):
        call(Z, draw(3, 12, 4))
    for wrong in (Z[:1], Z[:11], Z[:, :2], Z[0], Z[None], Z.new_zeros(0, 3), torch.tensor(1.0)):
        shape = ", ".join(map(str, wrong.shape))
        with pytest.raises(ValueError, match=rf"Z must be \(12, 3\), .* X\. Got shape \({shape},?\) instead"):
            call(wrong, X)
    for integer in (Z.long(), Z > 0, Z.to(torch.complex128)):
        with pytest.raises(ValueError, match=rf"Z must be floating point, on cpu .* Got {integer.dtype}"):
            call(integer, X)
    with pytest.raises(ValueError, match=r"on cpu like X\. Got torch\.float64 on meta instead"):
        call(Z.to("meta"), X)
    for hole in (math.nan, math.inf):
        broken = Z.clone()
        broken[4, 1] = hole
        with pytest.raises(ValueError, match=r"Z must be finite\. Got NaN or infinity in row 4\."):
            call(broken, X)
    with pytest.raises(TypeError, match=r"Z must be a tensor, \(N, 3\)\. Got ndarray"):
        call(Z.numpy(), X)
    torch.testing.assert_close(call(Z.float(), X), call(Z.float().double(), X), rtol=0, atol=0)


def test_so_are_both_of_a_pair():
    model, X = scaled(1.0, kind=DeepOptEq, alpha=0.5)
    Z = draw(3, 12, 3)
    assert model.objective((Z, Z), X).shape == (12,)
    with pytest.raises(ValueError, match=r"z_1 must be \(12, 3\)"):
        model.objective((Z[:1], Z), X)
    with pytest.raises(ValueError, match=r"z_0 must be finite"):
        model.objective((Z, Z / 0), X)
    with pytest.raises(ValueError, match=r"Z must be z_0, or the two of \(z_1, z_0\)\. Got a tuple of 3"):
        model.objective((Z, Z, Z), X)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("mu", [1e200, 1e-300])
def test_any_mu_has_its_minimiser(mu, activation):
    generator = torch.Generator().manual_seed(0)
    model = OptEq(4, 6, 9, mu, activation=activation, dtype=torch.float64, generator=generator)
    X = draw(1, 3, 4)
    found = model.minimise(X)
    assert relative(found.z, model.solve(X, stop=STOP).value) < 1e-12
    root = model.W.detach() / mu**0.5  # z = μ^(-½)·y, with y that of μ = 1
    one = OptEq(4, 6, 9, activation=activation, dtype=torch.float64)
    one.load_state_dict({**model.state_dict(), "W": root})
    assert relative(found.z * mu**0.5, one.minimise(X).z) < 1e-12
    assert relative(found.value * mu, one.minimise(X).value) < 1e-12
