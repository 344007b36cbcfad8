"""Networks of images as units: products agree, bounds hold of every image, proofs withstand attacks."""

import math
from fractions import Fraction

import pytest
import torch

import equipoise as eq
from equipoise.linalg import gamma
from equipoise.theory.register import facts
from equipoise.theory.verify import images
from equipoise.theory.verify.attack import attacked
from equipoise.theory.verify.bounds import Functionals, Problem, both_bounds
from equipoise.theory.verify.outputs import Wanted
from equipoise.theory.verify.sets import InputSets

KINDS = ("monotone", "opteq", "deep")
LOW, HIGH = torch.tensor(0.0).double(), torch.tensor(1.0).double()


def conv_network(kind, normalise=False, seed=0):
    g = torch.Generator().manual_seed(seed)
    at = {"outputs": 3, "normalise": normalise, "pool": 2, "dtype": torch.float64, "generator": g}
    make = {
        "monotone": lambda: eq.ConvMonotone((1, 5, 5), 2, features=2, norm=1.5, extractor=(1, 2), **at),
        "opteq": lambda: eq.ConvOptEq((1, 5, 5), 2, [3], features=2, extractor=(2,), **at),
        "deep": lambda: eq.ConvOptEq((1, 5, 5), 2, [2, 2], alpha=0.6, strides=(1, 2), extractor=(), **at),
    }
    model = make[kind]()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(0.2 * torch.randn(p.shape, dtype=torch.float64, generator=g))
    return model


def pictures(N=4, seed=1):
    return torch.rand(N, 1, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def outputs(model, X):
    with torch.no_grad():
        return model(X, stop=eq.Stop(rtol=1e-12, max_steps=5000))


@pytest.mark.parametrize("kind", ["opteq", "deep"])
def test_the_resolvent_of_the_units_is_rounded_up(kind):
    """R² ≥ Σ (n_l m_l + 1)² with m_l ≥ how far z_{l−1} moves where all injections move by 1, in fractions."""
    model = conv_network(kind)
    a, norms = Fraction(model.alpha), [Fraction(n) for n in model.norms()]
    growth = [1 - a + a * n**2 for n in norms]
    once = Fraction(0)
    for g, n in zip(growth, norms, strict=True):
        once = g * once + a * n
    moved, total = once / (1 - math.prod(growth)), Fraction(0)
    for g, n in zip(growth, norms, strict=True):
        total, moved = total + (n * moved + 1) ** 2, g * moved + a * n
    found = Fraction(facts(model).unit_network().resolvent)
    assert total <= found**2 <= total * (1 + Fraction(1, 10**12))


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_units_are_those_of_the_model(kind, normalise):
    model, X = conv_network(kind, normalise), pictures()
    net = facts(model).unit_network()
    b, b_error = net.injection(X.flatten(1))
    h = net.equilibria(b)
    scores, error = net.scores(h, net.equilibrium_error(h, b, b_error))
    off = (scores - outputs(model, X)).abs()
    assert float(off.max()) < 1e-10
    assert bool((error < 1e-7).all())
    assert bool((error > 0).all())
    draw = torch.Generator().manual_seed(0)
    a, c = torch.randn(2, 3, net.width, dtype=torch.float64, generator=draw)
    x = torch.randn(3, net.dimension, dtype=torch.float64, generator=draw)
    torch.testing.assert_close((net.forth(a) * c).sum(dim=1), (a * net.back(c)).sum(dim=1))
    torch.testing.assert_close((net.into(x) * c).sum(dim=1), (x * net.onto(c)).sum(dim=1))
    rows = torch.linalg.vector_norm(net.weight, dim=1)  # of the matrices that are written out
    assert bool((rows <= net.row_norms).all())
    worse = h + 1e-3
    assert bool(((worse - h).norm(dim=1) <= net.equilibrium_error(worse, b, b_error)).all())


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_bounds_of_any_multiplier_hold_at_every_image(kind, free, monkeypatch):
    monkeypatch.setattr(images, "DENSE", 0 if free else 2048)
    net, X = facts(conv_network(kind)).unit_network(), pictures()
    assert net.dense != free
    sets = InputSets.around(X.flatten(1), 0.1, "linf", LOW, HIGH)
    problem = Problem.of(net, sets)
    low, high, _ = net.first_bounds(problem)
    draw = torch.Generator().manual_seed(3)
    sample = torch.arange(4).repeat_interleave(6)
    unit = torch.randint(net.width, (24,), generator=draw)
    nu = torch.randn(24, net.width, dtype=torch.float64, generator=draw)
    slopes = torch.rand(4, net.width, dtype=torch.float64, generator=draw)
    nu[::2] = net.multipliers(slopes).of_units(sample[::2], unit[::2])
    what = Functionals.of_units(unit, net.width)
    below, above = both_bounds(problem, sample, low[sample], high[sample], what, nu)
    for _ in range(6):
        share = torch.rand(sets.lower.shape, dtype=torch.float64, generator=draw).round()
        b, _ = net.injection(sets.lower + share * (sets.upper - sets.lower))
        p = b + net.forth(net.equilibria(b))
        assert bool(((low <= p) & (p <= high)).all())
        value = p[sample, unit]
        assert bool(((below <= value) & (value <= above)).all())


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_proved_images_withstand_attacks(kind, normalise, norm):
    model, X = conv_network(kind, normalise), pictures(5)
    y = outputs(model, X).argmax(dim=1)
    epsilon = 0.001 if norm == "linf" else 0.003
    how = {"norm": norm, "box": (0.0, 1.0), "nodes": 2, "attack": (3, 1)}
    found = eq.verify_predictions(model, X, y, epsilon=epsilon, **how)
    rows = torch.nonzero(found.proved).flatten()
    assert len(rows) >= 2
    sets = InputSets.around(X[rows].flatten(1), epsilon, norm, LOW, HIGH)
    problem = Problem.of(facts(model).unit_network(), sets)
    x = attacked(problem, Wanted(3, labels=y[rows]), steps=3, restarts=2).reshape(-1, 1, 5, 5)
    assert torch.equal(outputs(model, x).argmax(dim=1), y[rows])
    margins = outputs(model, x).gather(1, y[rows][:, None]) - outputs(model, x)
    margins = margins.scatter(1, y[rows][:, None], torch.inf).amin(dim=1)
    assert bool((found.margin[rows] <= margins).all())
    bad = found.refuted
    assert bool((outputs(model, found.counterexample[bad]).argmax(dim=1) != y[bad]).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_images_of_any_float_in_boxes_of_a_user_hold_inequalities(kind, dtype):
    model, X = conv_network(kind), pictures().to(dtype)
    low, high = X.double() - 0.001, X.double() + 0.002
    Q = torch.tensor([[1.0, -1.0, 0.0]])
    said = outputs(model, X.double()) @ Q.double().T
    q = -(said.amin(dim=0) + said.amax(dim=0)).float() / 2
    found = eq.verify_predictions(model, X, box=(low, high), inequalities=(Q, q), nodes=20)
    assert bool(found.proved.any() & found.refuted.any())
    for seed in range(10):
        g = torch.Generator().manual_seed(seed)
        share = torch.rand(X.shape, dtype=torch.float64, generator=g).round()
        margin = outputs(model, low + share * (high - low)) @ Q.double().T + q.double()
        assert bool((margin[:, 0] >= found.margin)[found.proved].all())
    x, bad = found.counterexample, found.refuted
    assert bool(((x >= low) & (x <= high))[bad].all())
    assert bool((outputs(model, x[bad]) @ Q.double().T + q.double() < 0).all())


def test_every_term_of_a_chain_of_convolutions_is_rounded():
    """Aᵀ⋆(A⋆z) adds up 2·9 products, twice."""
    net = facts(conv_network("monotone")).unit_network()
    h = torch.ones(1, net.width, dtype=torch.float64)
    sizes = net._between(h, net._sizes)  # of the absolute values of all terms
    assert bool((sizes > 0).any())
    assert bool((net.forth_error(h) >= gamma(36) * sizes).all())


@pytest.mark.parametrize("name", ["A", "head.linear.bias"])
def test_nothing_is_verified_of_weights_that_are_no_numbers(name):
    model = conv_network("monotone")
    with torch.no_grad():
        model.get_parameter(name).view(-1)[1] = torch.nan
    with pytest.raises(ValueError, match=f"{name} holds NaN or infinity"):
        facts(model).unit_network()


def test_matrices_that_are_not_written_out_prove_the_same_kind_of_thing(monkeypatch):
    model, X = conv_network("monotone", normalise=True), pictures(3)
    y = outputs(model, X).argmax(dim=1)
    monkeypatch.setattr(images, "DENSE", 0)
    assert bool(eq.verify_predictions(model, X, y, epsilon=1e-4, box=(0.0, 1.0)).proved.all())
    wrong = eq.verify_predictions(model, X, (y + 1) % 3, epsilon=1e-4, box=(0.0, 1.0))
    assert bool(wrong.refuted.all())
    assert torch.equal(wrong.counterexample, X)


@pytest.mark.parametrize("scale", [2.0**-1060, 2.0**-500, 2.0**400])
def test_extreme_kernels_never_give_a_false_proof(scale):
    model, X = conv_network("monotone"), pictures(3)
    with torch.no_grad():
        model.head.linear.bias.zero_()
        y = outputs(model, X).argmax(dim=1)  # which no scale of the readout changes
        model.head.linear.weight.mul_(scale)
    wrong = eq.verify_predictions(model, X, (y + 1) % 3, epsilon=0.01, box=(0.0, 1.0), nodes=2, attack=(0, 1))
    assert not bool(wrong.proved.any())


def test_pixels_and_other_activations_are_refused():
    with pytest.raises(ValueError, match="one for each pixel"):
        facts(eq.ConvMonotone((1, 4, 4), 2, features=2, task="segmentation")).unit_network()
    with pytest.raises(ValueError, match="relu alone"):
        facts(eq.ConvOptEq((1, 4, 4), 2, [2], features=2, activation="tanh")).unit_network()


def test_a_multiple_of_the_identity_is_bounded_in_float64():
    """Of (1 − μ)I a row has the norm 1 − μ, which float32 rounds down for every second μ."""
    for scale in torch.linspace(0.01, 3, 50, dtype=torch.float64).tolist():
        assert bool((images.Chain((), scale).row_norms(2).double() >= scale).all())
