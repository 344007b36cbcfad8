"""How far images may move: never further than the equilibria of a ConvOptEq were proved to bear."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import equipoise as eq
from conv_networks import CASES, IMAGE, TIGHT, build, drawn
from equipoise.models.proximal.properties import GradientStep
from equipoise.solve import inverse_norm
from equipoise.theory import certified_radius, facts, lipschitz_bound, pairwise_lipschitz
from equipoise.theory.conv_robustness import (
    ConvNetwork,
)

# How far above the steepest slope that 4 images show the bound may stand.
LOOSE = {"normalised": 4000}  # by 1/√ε = 316: of images whose means are all equal


def moved(model, X, Y):
    with torch.no_grad():
        return (model(Y, stop=TIGHT) - model(X, stop=TIGHT)).flatten(1)


def jacobian(model, x):
    J = torch.autograd.functional.jacobian(lambda t: model(t[None], stop=TIGHT)[0].flatten(), x)
    return J.reshape(len(J), -1)


def climbed(model, X, size, steps=4):
    """Images at a distance of `size` from X that gradient ascent moves the outputs furthest by."""
    way = drawn(*X.shape, seed=3)
    y = model(X, stop=TIGHT).detach()
    for _ in range(steps):
        way = (size * way / way.flatten(1).norm(dim=1)[:, None, None, None]).requires_grad_()
        gain = (model(X + way, stop=TIGHT) - y).flatten(1).norm(dim=1).sum()
        (way,) = torch.autograd.grad(gain, way)
    return X + size * way / way.flatten(1).norm(dim=1)[:, None, None, None].clamp_min(1e-30)


# -- Lipschitz bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*CASES, "pixels", "pixels, resized"])
def test_no_slope_exceeds_the_bound(case):
    pixels = {"task": "segmentation", "extractor": (2,) if "resized" in case else (1,)}
    model, X = build(**CASES.get(case, pixels)), drawn(4, *IMAGE, seed=9)
    bound, pairs = lipschitz_bound(model), pairwise_lipschitz(model)
    samples = [X + step * drawn(*X.shape, seed=17) for step in (1e-4, 0.3, 5.0)]
    for Y in (*samples, climbed(model, X, 0.05), climbed(model, X, 1.0)):
        change, size = moved(model, X, Y), (Y - X).flatten(1).norm(dim=1)
        assert (change.norm(dim=1) <= bound * size + 1e-9).all()
        change = change.reshape(4, 3, -1)
        between = (change[:, :, None] - change[:, None, :]).norm(dim=3)
        assert (between <= pairs * size[:, None, None] + 1e-9).all()
    slopes = [float(torch.linalg.matrix_norm(jacobian(model, x), ord=2)) for x in X]
    assert max(slopes) <= bound < LOOSE.get(case, 60) * max(slopes)


@pytest.mark.parametrize("size", [(1, 9), (3, 3), (4, 7), (8, 5)])
def test_the_bound_is_of_the_size_given(size):
    model = build(inputs=(2, *size), extractor=(2, 1), strides=(1, 2))
    slopes = [float(torch.linalg.matrix_norm(jacobian(model, x), ord=2)) for x in drawn(4, 2, *size)]
    assert max(slopes) <= lipschitz_bound(model) < 200 * max(slopes)
    network = ConvNetwork(model)
    grown = size
    for layer, norm in zip(
        [m for m in model.extractor if isinstance(m, nn.Conv2d)], network.extractor_norms, strict=True
    ):
        eye = torch.eye(layer.in_channels * math.prod(grown), dtype=torch.float64)
        images = F.conv2d(eye.unflatten(1, (-1, *grown)), layer.weight, None, layer.stride, layer.padding)
        truth = float(torch.linalg.matrix_norm(images.detach().flatten(1), ord=2))
        assert truth <= norm.hi < 2.5 * truth  # of tiny images, most of which is edge
        grown = tuple(images.shape[2:])


def test_a_norm_is_of_all_frequencies_that_the_size_has():
    model = build(inputs=(1, 1, 16), features=1)
    with torch.no_grad():
        model.extractor[0].weight.zero_()
        model.extractor[0].weight[0, 0, 1] = torch.tensor([1.0, 0.0, -1.0])
    (norm,) = ConvNetwork(model).extractor_norms
    assert 2 * math.cos(math.pi / 17) <= norm.hi <= 2 + 1e-9  # of 16 pixels, and of endlessly many


def linear(layers, **options):
    """With single positive taps and no relu switched off ŷ is linear in x."""
    single = {"activation": "identity", "kernel": 1, "features": 1, "extractor": (1, 1)}
    model = build((1,) * layers, inputs=(1, 4, 4), **single | options)
    with torch.no_grad():
        for i, layer in enumerate(model.layers):
            layer.W.zero_()
            layer.W[0, 0], layer.U[:] = 0.8 - 0.1 * i, 0.5 + i
        for conv in list(model.extractor)[::2]:
            conv.weight.zero_()
            conv.weight[0, 0, 1, 1], conv.bias[:] = 3.0, 50.0
    return model


@pytest.mark.parametrize("alpha", [1.0, 0.3])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_bound_is_attained_where_it_can_be(alpha, layers):
    model = linear(layers, alpha=alpha)
    J = jacobian(model, drawn(1, 4, 4))
    exact = float(torch.linalg.matrix_norm(J, ord=2))
    assert exact * (1 - 1e-10) <= lipschitz_bound(model) <= exact * (1 + 1e-9)
    pairs = (J[:, None] - J).norm(dim=2)
    torch.testing.assert_close(pairwise_lipschitz(model), pairs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("strides", [(1,), (2,), (2, 2)])
def test_the_bound_of_pixels_is_attained_too(strides):
    model = linear(2, task="segmentation", extractor=strides)
    with torch.no_grad():
        model.head.conv.weight[:, 1:] = 0  # of channels of the state that are zero
    exact = float(torch.linalg.matrix_norm(jacobian(model, drawn(1, 4, 4)), ord=2))
    assert exact * (1 - 1e-10) <= lipschitz_bound(model) <= exact * (1 + 1e-9)


def test_a_float32_model_is_bounded_as_the_numbers_it_holds():
    model, X = build().float(), drawn(6, *IMAGE, seed=9).float()
    exact = copy.deepcopy(model).double()
    assert lipschitz_bound(model) == lipschitz_bound(exact)
    Y = climbed(exact, X.double(), 0.5).float()
    size = (Y - X).double().flatten(1).norm(dim=1)
    with torch.no_grad():
        change = (model(Y) - model(X)).double().norm(dim=1)
    assert (change <= lipschitz_bound(model) * size + 1e-3).all()
    assert (moved(exact, X.double(), Y.double()).norm(dim=1) <= lipschitz_bound(model) * size).all()


# -- certified radii -----------------------------------------------------------------------------------------


def attacked(model, X, prediction, size, steps=8):
    """Images within `size` of X that projected gradients bring nearest to another prediction."""
    way = 1e-3 * size[:, None, None, None] * drawn(*X.shape, seed=4)
    for _ in range(steps):
        way = way.requires_grad_()
        y = model(X + way, stop=TIGHT)
        if y.shape[1] == 1:
            margin = prediction * y[:, 0]
        else:
            own = F.one_hot(prediction, y.shape[1]).bool()
            margin = y[own] - y.masked_fill(own, -math.inf).amax(dim=1)
        (down,) = torch.autograd.grad(-margin.sum(), way)
        way = way.detach() + size[:, None, None, None] * _unit(down) / 3
        shrink = (size / way.flatten(1).norm(dim=1)).clamp_max(1.0)
        way = way * shrink[:, None, None, None]
    return X + size[:, None, None, None] * _unit(way)


def _unit(way):
    return way / way.flatten(1).norm(dim=1).clamp_min(1e-30)[:, None, None, None]


def decided(model, X):
    y = model(X, stop=TIGHT).detach()
    return y.argmax(dim=1) if y.shape[1] > 1 else torch.where(y[:, 0] < 0, -1, 1)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("outputs", "dtype"), [(3, torch.float64), (1, torch.float32)])
def test_no_attack_within_the_radius_changes_a_class(case, outputs, dtype):
    stored, X = build(outputs=outputs, **CASES[case]).to(dtype), drawn(10, *IMAGE, seed=5).to(dtype)
    found = certified_radius(stored, X)
    model, X = copy.deepcopy(stored).double(), X.double()
    assert found.certified.double().mean() > 0.8
    assert torch.equal(found.prediction, decided(model, X))
    within = 0.999 * found.radius
    for Y in (
        attacked(model, X, found.prediction, within),
        X + within[:, None, None, None] * _unit(drawn(*X.shape)),
    ):
        assert torch.equal(decided(model, Y), found.prediction)
    beyond = attacked(model, X, found.prediction, 100 * found.radius)  # the attack is one
    assert not torch.equal(decided(model, beyond), found.prediction)


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_normalised_are_judged_before_they_are_divided(outputs):
    model, X = build(outputs=outputs, normalise=True), drawn(12, *IMAGE, seed=5)
    found = certified_radius(model, X)
    y = model(X, stop=TIGHT).detach()
    margin = y.abs()[:, 0] if outputs == 1 else (lambda t: t[:, 0] - t[:, 1])(y.topk(2).values)
    torch.testing.assert_close(found.margin, margin, rtol=1e-6, atol=1e-8)
    assert (found.margin <= margin + 1e-10).all()
    steepest = pairwise_lipschitz(model).max() if outputs > 1 else lipschitz_bound(model)
    assert (found.radius > 3 * margin / steepest).all()


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_what_decides_moves_by_less_than_its_bounds(outputs, weight):
    """sŷ = Vc + sv, with V and without, where the biases alone decide and s moves."""
    model, X = linear(1, outputs=outputs, normalise=True, pool=4), drawn(12, 1, 4, 4, seed=5)
    with torch.no_grad():
        model.head.linear.weight.mul_(weight)
    network = facts(model).bounds()
    bounds = network.score_bounds()
    here, error, scale = network.scores(X)
    assert error < 1e-7
    torch.testing.assert_close(here / scale[:, None], model(X, stop=TIGHT).detach(), rtol=1e-6, atol=1e-6)
    steepest = torch.zeros_like(bounds)
    for Y in (*(X + step * drawn(*X.shape, seed=8) for step in (1e-3, 0.5, 5.0)), 1.01 * X):
        change = network.scores(Y)[0] - here
        size = (Y - X).flatten(1).norm(dim=1)[:, None, None]
        between = (change[:, :, None] - change[:, None, :]).abs() if outputs > 1 else change[:, :, None].abs()
        assert (between <= bounds * size + 1e-9).all()
        steepest = torch.maximum(steepest, (between / size).amax(dim=0))
    assert (bounds <= 5 * steepest).all()


@pytest.mark.parametrize("normalise", [False, True])
def test_equilibria_that_are_far_off_are_charged_for(normalise, monkeypatch):
    model, X = build(normalise=normalise), drawn(8, *IMAGE, seed=5)
    network, near = facts(model).bounds(), certified_radius(model, X)
    truth = network.scores(X)[0]
    monkeypatch.setattr("equipoise.theory.conv_robustness.tightest", lambda _: eq.Stop(rtol=0.05))
    found, error, _ = network.scores(X)
    off = (lambda d: (d[:, :, None] - d[:, None, :]).abs().max())(found - truth)
    assert 1e-6 < off <= error
    assert (certified_radius(model, X).radius < near.radius).all()


def test_labels_and_what_is_not_proved():
    model, X = build(), drawn(6, *IMAGE)
    labels = certified_radius(model, X).prediction.clone()
    labels[2] = (labels[2] + 1) % 3
    found = certified_radius(model, X, labels)
    assert found.radius[2] == 0
    assert "labelled" in found.uncertified[2]
    with torch.no_grad():
        for layer in model.layers:
            layer.W.mul_(2)
    assert lipschitz_bound(model) == math.inf
    assert eq.equilibrium_error(model, X, drawn(6, *model.state)) == math.inf
    found = certified_radius(model, X)
    assert not found.certified.any()
    assert "uniqueness of the equilibrium is not proved" in found.uncertified[0]
    assert "project_()" in found.uncertified[0]
    concave = build(regulariser=GradientStep(inverse_norm()))
    assert lipschitz_bound(concave) == math.inf
    assert "not known to be nonexpansive" in certified_radius(concave, X).uncertified[0]
    broken = build()
    with torch.no_grad():
        broken.layers[0].b[0] = math.nan
    assert lipschitz_bound(broken) == math.inf
    assert "layers.0.b" in certified_radius(broken, X).uncertified[0]


@pytest.mark.parametrize(
    "options", [{"gradient": 3, "on_failure": "accept"}, {"gradient": 3, "solver": eq.SAM()}]
)
def test_what_is_said_is_of_equilibria(options):
    """A model that returns something else is judged by its equilibria, and the hypotheses say so."""
    X = drawn(6, *IMAGE)
    plain, other = certified_radius(build(), X), certified_radius(build(**options), X)
    assert torch.equal(plain.radius, other.radius)
    assert any("the model itself returns" in h for h in other.hypotheses)
    assert not any("the model itself returns" in h for h in plain.hypotheses)
    assert lipschitz_bound(build(**options)) == lipschitz_bound(build())
    returned = build(**options)(X).detach()
    assert not torch.allclose(returned, build()(X).detach(), rtol=1e-3)
