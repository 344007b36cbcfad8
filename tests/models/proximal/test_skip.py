"""α: it changes the iteration, and how near an equilibrium is must not depend on it."""

import pytest
import torch

import equipoise as eq
from equipoise.models.proximal.properties import L1

TIGHT = eq.Stop(rtol=1e-13, max_steps=20000)
ALPHAS = (0.8, 0.1, 0.01, 1e-3, 1e-6, 1e-9)


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def build(kind, alpha, dtype=torch.float64, **options):
    hidden = 16 if issubclass(kind, eq.OptEq) else [6, 5, 7]
    g = torch.Generator().manual_seed(3)
    return kind(3, 8, hidden, alpha=alpha, dtype=dtype, generator=g, **options)


def off(a, b):
    return float((a.detach() - b.detach()).norm() / b.detach().norm())


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-3), (torch.float64, 1e-7)])
def test_an_equilibrium_is_as_near_and_as_soon_whatever_alpha_is(alpha, dtype, rtol):
    X = drawn(5, 3, dtype=dtype)
    model, plain = build(eq.OptEq, alpha, dtype), build(eq.OptEq, 1.0)
    plain.load_state_dict(model.state_dict())
    z, want = model.equilibrium(X), plain.equilibrium(X.double(), stop=TIGHT)
    assert off(z, want) < rtol
    steps = int(model.last.forward.steps.max())
    plain.to(dtype).equilibrium(X)
    assert steps <= int(plain.last.forward.steps.max()) + 1
    grads = [
        torch.autograd.grad(m.equilibrium(x, stop=stop).square().sum(), m.W)[0]
        for m, x, stop in ((model, X, None), (plain.double(), X.double(), TIGHT))
    ]
    assert off(*grads) < 5 * rtol


@pytest.mark.parametrize("alpha", [0.8, 0.1, 0.01])
def test_what_is_solved_has_the_equilibria_of_the_composed_layers(alpha):
    """Plain iteration of T itself, long enough, gets there too; and gradients are those of T."""
    model, X = build(eq.DeepOptEq, alpha), drawn(4, 3)
    Z = model.equilibrium(X, stop=TIGHT)
    c, W = model.injections(X), model.weights()
    torch.testing.assert_close(model.T(Z, c, W), Z, rtol=0, atol=1e-12)
    torch.testing.assert_close(model.whole_step(Z, c, W), Z, rtol=0, atol=1e-12)
    z = torch.zeros_like(Z)
    for _ in range(int(40 / alpha)):
        z = model.T(z, c, W)
    torch.testing.assert_close(z, Z, rtol=0, atol=1e-10)
    V = drawn(4, 8, seed=5)
    hidden = list(model.layers.parameters())
    ours, unrolled = (torch.autograd.grad((V * a).sum(), hidden) for a in (Z, z))
    for a, b in zip(ours, unrolled, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)


@pytest.mark.parametrize("alpha", [1.0, 0.7, 0.3, 0.01, 1e-6])
def test_a_whole_step_is_nonexpansive_and_tends_to_the_wide_form(alpha):
    model, X = build(eq.DeepOptEq, alpha).project_(1.0), drawn(50, 3)
    with torch.no_grad():
        for layer in model.layers:
            layer.W.mul_(1 / torch.linalg.matrix_norm(layer.W, ord=2))
        c, W = model.injections(X), model.weights()
        for seed in range(10):
            a, b = (3 * drawn(50, 8, seed=s) for s in (seed, seed + 99))
            moved = (model.whole_step(a, c, W) - model.whole_step(b, c, W)).norm(dim=1)
            assert (moved <= (a - b).norm(dim=1) * (1 + 1e-12)).all()
            if alpha == 1e-6:
                wide = model.wide()
                at = wide.T(a, wide.injections(X), wide.weights())
                torch.testing.assert_close(model.whole_step(a, c, W), at, rtol=0, atol=1e-4)
            if alpha == 1:
                assert torch.equal(model.whole_step(a, c, W), model.T(a, c, W))


@pytest.mark.parametrize("alpha", [0.3, 0.01])
def test_a_property_and_stacked_blocks_are_solved_to_the_same_nearness(alpha):
    """There T itself is solved, to a tolerance as much smaller as its steps are."""
    X = drawn(4, 3)
    sparse = build(eq.OptEq, alpha, regulariser=L1(0.02 * alpha))
    assert off(sparse.equilibrium(X), sparse.equilibrium(X, stop=eq.Stop(rtol=1e-12, max_steps=9999))) < 1e-7
    deep = build(eq.DeepOptEq, alpha)
    blocks = deep.multi_block()
    assert off(blocks.equilibrium(X), deep.equilibrium(X, stop=TIGHT)) < 1e-7
    single = build(eq.OptEq, 1e-4, torch.float32, regulariser=L1(1e-6))
    with pytest.raises(ValueError, match=r"at least 9\.5e-03 in torch\.float32 with α = 0\.0001"):
        single.equilibrium(X.float())


def test_alpha_and_mu_are_checked_whenever_they_are_set():
    model = build(eq.OptEq, 0.5)
    for wrong in (0.0, 2.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match=r"alpha must lie in \(0, 1\]"):
            model.alpha = wrong
    with pytest.raises(ValueError, match="large enough for 1 − α to differ from 1"):
        model.alpha = 1e-17
    for wrong in (0.0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="mu must be a finite number > 0"):
            model.mu = wrong
    assert (model.alpha, model.mu) == (0.5, 1.0)
    with pytest.raises(ValueError, match=r"start must be torch\.float64 .* Got torch\.float32"):
        model.equilibrium(drawn(4, 3), start=torch.zeros(4, 8))


# -- images ------------------------------------------------------------------------------------------------


def images(alpha, dtype=torch.float64, **options):
    g = torch.Generator().manual_seed(1)
    return eq.ConvOptEq((2, 6, 6), 4, (5, 3), 3, alpha=alpha, norm=0.9, dtype=dtype, generator=g, **options)


@pytest.mark.parametrize("alpha", [0.8, 0.1, 1e-3, 1e-6])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-3), (torch.float64, 1e-7)])
def test_images_have_equilibria_as_near_whatever_alpha_is(alpha, dtype, rtol):
    x, model = drawn(3, 2, 6, 6, dtype=dtype), images(alpha, dtype)
    exact = images(alpha)
    exact.load_state_dict(model.state_dict())
    z, want = model.equilibrium(x), exact.equilibrium(x.double(), stop=TIGHT)
    assert off(z, want) < rtol
    c = exact.injection(x.double())
    torch.testing.assert_close(exact.cell(want, *c, *exact.shared()), want, rtol=0, atol=1e-11)
    ours, tight = (
        torch.autograd.grad(a.square().sum(), m.layers[0].W)[0] for a, m in ((z, model), (want, exact))
    )
    assert off(ours, tight) < 10 * rtol


def test_images_with_a_property_are_as_near_too():
    x, model = drawn(3, 2, 6, 6), images(0.05, regulariser=L1(1e-3))
    assert off(model.equilibrium(x), model.equilibrium(x, stop=eq.Stop(rtol=1e-12, max_steps=9999))) < 1e-7
    with pytest.raises(ValueError, match=r"alpha must lie in \(0, 1\]"):
        model.alpha = 5.0


def test_images_run_under_autocast():
    x = drawn(3, 2, 6, 6, dtype=torch.float32)
    for alpha in (1.0, 0.4):
        model = images(alpha, torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = model.equilibrium(x)
        assert z.dtype == torch.float32
        assert off(z, model.equilibrium(x)) < 0.05


def test_a_map_of_ones_own_is_what_is_solved():
    class Halved(eq.OptEq):
        def layer_map(self, z, c, W):
            return super().layer_map(0.5 * z, c, W)

    class HalvedImages(eq.ConvOptEq):
        @property
        def cell(self):
            whole = super().cell
            return lambda z, *rest: whole(None if z is None else 0.5 * z, *rest)

    X, x = drawn(4, 3), drawn(3, 2, 6, 6)
    model = build(Halved, 0.5)
    Z = model.equilibrium(X)
    torch.testing.assert_close(model.T(Z, model.injections(X), model.weights()), Z, rtol=0, atol=1e-7)
    net = HalvedImages((2, 6, 6), 4, (5, 3), 3, alpha=0.5, dtype=torch.float64)
    z = net.equilibrium(x)
    torch.testing.assert_close(net.cell(z, *net.injection(x), *net.shared()), z, rtol=0, atol=1e-7)
