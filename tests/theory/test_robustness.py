"""Certified radii are never violated by an attack, and Lipschitz bounds never by two inputs."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

import equipoise as eq
from equipoise.theory.robustness import certified_radius, lipschitz_bound, pairwise_lipschitz

D, WIDTH = 4, 12
TIGHT = eq.Stop(rtol=1e-12, max_steps=5000)


def build(family: str, outputs: int, seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    more = {"outputs": outputs, "dtype": torch.float64, "generator": g}
    if family == "scaled":
        model = eq.ScaledReLU(inputs=D, width=WIDTH, gamma=0.5, **more)
        with torch.no_grad():
            model.A.copy_(0.4 * torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=g) / WIDTH**0.5)
            model.b.copy_(torch.randn(model.b.shape, dtype=torch.float64, generator=g))
        return model
    if family == "gaussian":
        return eq.GaussianReLU(inputs=D, width=WIDTH, **more)
    if family == "monotone":
        return eq.Monotone(inputs=D, width=WIDTH, margin=0.5, **more)
    return eq.LinearEquilibrium(features=D, gamma=0.7, **more)


FAMILIES = ["scaled", "gaussian", "monotone", "linear"]


def inputs(n: int, seed: int = 1):
    return torch.randn(n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scores(model, X):
    return model.readout(model.equilibrium(X, stop=TIGHT)).reshape(len(X), -1)


def attack(model, X, prediction, radius, steps=25):
    """Projected gradient descent on the margin, from several starts; the least margin found in each ball."""
    k, least = model.outputs, torch.full((len(X),), math.inf, dtype=torch.float64)
    g = torch.Generator().manual_seed(5)
    rivals = range(k) if k > 1 else [0]
    for rival in rivals:
        start = torch.randn(X.shape, dtype=X.dtype, generator=g)
        shift = 0.5 * radius[:, None] * start / start.norm(dim=1, keepdim=True)
        for _ in range(steps):
            shift = shift.detach().requires_grad_(True)
            y = scores(model, X + shift)
            if k > 1:
                gap = y.gather(1, prediction[:, None])[:, 0] - y[:, rival]
                seen = torch.where(prediction == rival, math.inf, gap.detach())
            else:
                gap = y[:, 0] * prediction
                seen = gap.detach()
            least = torch.minimum(least, seen)
            (slope,) = torch.autograd.grad(gap.sum(), shift)
            size = slope.norm(dim=1, keepdim=True).clamp_min(1e-300)
            move = shift.detach() - 0.5 * radius[:, None] * slope / size
            shift = move * (radius / move.norm(dim=1).clamp_min(1e-300)).clamp(max=1.0)[:, None]
    return least


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_attack_within_the_radius_flips_a_prediction(family, outputs, local):
    model, X = build(family, outputs), inputs(20)
    found = certified_radius(model, X, local=local)
    assert bool(found.certified.all()), str(found)
    assert not found.uncertified
    assert bool((attack(model, X, found.prediction, 0.999 * found.radius) > 0).all())


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_radius_of_the_linear_model_is_exact(outputs):
    """An attack that goes 1 % further flips every row: the bound has no slack at all."""
    model, X = build("linear", outputs), inputs(20)
    found = certified_radius(model, X)
    assert bool((attack(model, X, found.prediction, 1.01 * found.radius) < 0).all())
    if outputs == 1:
        with torch.no_grad():
            share = found.radius * lipschitz_bound(model) / scores(model, X)[:, 0].abs()
        assert bool(((share <= 1) & (share > 1 - 1e-10)).all())


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_two_inputs_beat_the_lipschitz_bound(family, outputs):
    model = build(family, outputs)
    bound, pairs = lipschitz_bound(model), pairwise_lipschitz(model)
    X = 3 * inputs(300, 2)
    step = 10.0 ** torch.linspace(-4, 1, 300, dtype=torch.float64)[:, None]
    other = X + step * inputs(300, 3)
    with torch.no_grad():
        change = scores(model, other) - scores(model, X)
    distance = (other - X).norm(dim=1)
    rate = change.norm(dim=1) / distance
    assert bool((rate <= bound).all())
    assert rate.max() > bound / 30  # and it is no idle number
    for p in range(outputs):
        for q in range(p):
            assert bool(((change[:, p] - change[:, q]).abs() / distance <= pairs[p, q]).all())
            assert pairs[p, q] <= 2**0.5 * bound * (1 + 1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_at_points_do_not_beat_the_lipschitz_bound(family):
    model, X = build(family, 2), inputs(30).requires_grad_(True)
    y = scores(model, X)
    rows = torch.stack([torch.autograd.grad(y[:, p].sum(), X, retain_graph=True)[0] for p in range(2)], dim=1)
    assert bool((torch.linalg.matrix_norm(rows, ord=2) <= lipschitz_bound(model)).all())
    assert bool(((rows[:, 0] - rows[:, 1]).norm(dim=1) <= pairwise_lipschitz(model)[0, 1]).all())


@pytest.mark.parametrize("family", ["scaled", "gaussian", "monotone"])
def test_the_local_form_is_never_smaller_and_sometimes_larger(family):
    model, X = build(family, 3), inputs(20)
    plain, local = certified_radius(model, X), certified_radius(model, X, local=True)
    assert bool((local.radius >= plain.radius).all())
    assert bool((local.radius > 1.05 * plain.radius).any())


def test_the_resolvent_by_the_symmetric_part_beats_the_norm():
    model = build("gaussian", 1).requires_grad_(False)
    q = float(torch.linalg.matrix_norm(model.W, 2))
    naive = float(model.a.norm()) * float(torch.linalg.matrix_norm(model.U, 2)) / (1 - q)
    assert lipschitz_bound(model) < 0.9 * naive


def test_labels_and_ties_are_named_by_row():
    model, X = build("gaussian", 3), inputs(6)
    labels = certified_radius(model, X).prediction.clone()
    labels[4] = (labels[4] + 1) % 3
    found = certified_radius(model, X, labels)
    assert list(found.uncertified) == [4]
    assert found.radius[4] == 0
    assert "row 4: predicted" in str(found)
    assert found.share(0.0) == pytest.approx(5 / 6)
    X[2] = 0.0  # z = 0: every output is 0
    assert "closer than the error" in certified_radius(model, X).uncertified[2]


def test_nothing_is_certified_without_uniqueness():
    model, X = build("gaussian", 2), inputs(3)
    with torch.no_grad():
        model.W.mul_(10)
    assert lipschitz_bound(model) == math.inf
    found = certified_radius(model, X)
    assert float(found.radius.max()) == 0
    assert "not proved" in found.uncertified[0]
    with torch.no_grad():
        model.W[0, 0] = math.nan
    assert lipschitz_bound(model) == math.inf
    assert "NaN" in certified_radius(model, X).uncertified[2]


def test_an_error_of_the_equilibrium_shrinks_the_radius():
    """A margin below the rounding of the scores is no margin: outputs that agree to 1e-15 certify nothing."""
    model, X = build("gaussian", 2), inputs(5)
    with torch.no_grad():
        model.a[:, 1] = model.a[:, 0] * (1 + 2**-51)
    assert len(certified_radius(model, X).uncertified) == 5


def test_float32_weights_are_certified_as_they_are_stored():
    model = build("gaussian", 3).float()
    found = certified_radius(model, inputs(5).float())
    assert found.radius.dtype == torch.float64
    assert bool(found.certified.all())


def test_what_cannot_be_bounded_is_refused():
    with pytest.raises(ValueError, match="feature_map"):
        lipschitz_bound(eq.LinearEquilibrium(features=3, feature_map=torch.sin))
    model, X = build("gaussian", 3), inputs(4)
    with pytest.raises(ValueError, match="row 1"):
        certified_radius(model, X, torch.tensor([0, 3, 1, 2]))
    with pytest.raises(ValueError, match="−1 or 1"):
        certified_radius(build("gaussian", 1), X, torch.tensor([0, 1, 1, 1]))
    with pytest.raises(TypeError, match="affine famil"):
        lipschitz_bound(torch.nn.Linear(3, 1))


@pytest.mark.parametrize("w", [-0.5, 0.0, 0.6])
def test_one_unit_attains_its_bound(w):
    """z = relu(w z + u x) = relu(u x)/(1 − w): the constant is |a u|/(1 − w), for every family."""
    gaussian = eq.GaussianReLU(inputs=1, width=1, dtype=torch.float64)
    scaled = eq.ScaledReLU(inputs=1, width=1, gamma=0.5, dtype=torch.float64)
    monotone = eq.Monotone(inputs=1, width=1, margin=0.25, dtype=torch.float64)
    with torch.no_grad():
        gaussian.W.fill_(w), gaussian.U.fill_(2.0), gaussian.a.fill_(-3.0)
        scaled.A.fill_(2 * w), scaled.W.fill_(2.0), scaled.b.fill_(-3.0)
        monotone.A.fill_(math.sqrt(0.75 - w)), monotone.U.fill_(2.0), monotone.u.fill_(-3.0)
    for model in (gaussian, scaled, monotone):
        bound = lipschitz_bound(model)
        assert 6 / (1 - w) * (1 - 1e-15) <= bound <= 6 / (1 - w) * (1 + 1e-12)


def test_the_local_form_keeps_units_that_can_switch_on():
    """ŷ = x₁ − relu(10x₂ − x₁/10): the second unit is off at (1, 0), and flips the sign at x₂ = .11."""
    model = eq.GaussianReLU(inputs=2, width=2, dtype=torch.float64)
    with torch.no_grad():
        model.W.zero_()
        model.U.copy_(torch.tensor([[1.0, 0.0], [-0.1, 10.0]]))
        model.a.copy_(torch.tensor([1.0, -1.0]))
    X = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    found = certified_radius(model, X, local=True)
    with torch.no_grad():
        assert float(model(torch.tensor([[1.0, 0.1101]], dtype=torch.float64))) < 0
    assert 0.05 < float(found.radius) <= 0.11
    with torch.no_grad():
        model.U[1] *= 0.02  # now it is far from switching on, and the radius is that of x₁ alone
        model.U[1, 0] = -5.0
    assert float(certified_radius(model, X, local=True).radius) > 1.2 * float(
        certified_radius(model, X).radius
    )


@pytest.mark.parametrize("kind", ["affine", "opteq"])
@pytest.mark.parametrize("size", [1e-300, 1e-170, 1.0, 1e170])
def test_no_row_is_certified_for_a_class_that_exact_arithmetic_does_not_predict(kind, size):
    """Two readout columns that rounding alone tells apart, of sizes whose squares are no floats."""
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=g)
    if kind == "affine":
        model = eq.GaussianReLU(inputs=D, width=WIDTH, outputs=2, dtype=torch.float64, generator=g)
    else:
        model = eq.OptEq(D, WIDTH, WIDTH, outputs=2, dtype=torch.float64, generator=g)
    readout = model.a if kind == "affine" else model.V
    with torch.no_grad():
        model.W.zero_()
        if kind == "opteq":  # z = Wᵀ relu(Wz + Ux + b) with W = I/2: relu(Ux)/4 is summed exactly enough
            model.W.copy_(torch.eye(WIDTH, dtype=torch.float64) / 2)
            model.b.zero_()
        a = draw(WIDTH)
        order = torch.randperm(WIDTH // 2, generator=g)
        readout[:, 0] = a * size
        readout[:, 1] = torch.cat([a[: WIDTH // 2][order], a[WIDTH // 2 :]]) * size
        model.U[: WIDTH // 2] = model.U[0]  # equal units: both columns read the same sum in another order
        readout[0, 1] *= 1 + 2.0**-52
        readout[1, 0] *= 1 + 2.0**-52
    X = draw(200, D)
    found = certified_radius(model, X)
    # z is a multiple of relu(Ux), and ŷ₀ − ŷ₁ of the sum of differences of the columns.
    U, columns = model.U.tolist(), readout.tolist()
    differences = [Fraction(p) - Fraction(q) for p, q in columns]
    for row in torch.nonzero(found.certified).flatten().tolist():
        x = [Fraction(v) for v in X[row].tolist()]
        z = [max(sum(Fraction(w) * v for w, v in zip(unit, x, strict=True)), Fraction(0)) for unit in U]
        lead = sum(d * v for d, v in zip(differences, z, strict=True))
        assert lead != 0
        assert found.prediction[row] == (0 if lead > 0 else 1)


def test_scores_that_overflow_certify_nothing():
    model = build("gaussian", 3)
    with torch.no_grad():
        model.a.mul_(1e150)
    found = certified_radius(model, inputs(5) * 1e200)
    assert not found.certified.any()
    assert (found.margin == 0).all()


@pytest.mark.parametrize("size", [1e-170, 1.0])
def test_units_that_switch_on_are_seen_whatever_the_size_of_the_weights(size):
    """ŷ = x₁ − relu(10x₂ − x₁/10) in small units: the second may not be taken for one that stays off."""
    model = eq.GaussianReLU(inputs=2, width=2, dtype=torch.float64)
    with torch.no_grad():
        model.W.zero_()
        model.U.copy_(torch.tensor([[1.0, 0.0], [-0.1, 10.0]], dtype=torch.float64) * size)
        model.a.copy_(torch.tensor([1.0, -1.0]))
    found = certified_radius(model, torch.tensor([[1.0, 0.0]], dtype=torch.float64), local=True)
    assert 0.05 < float(found.radius) <= 0.11
