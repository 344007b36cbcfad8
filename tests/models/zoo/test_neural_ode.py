"""h' = f(h, t): the baseline against a fine Euler scheme, its gradients, and what it appends."""

import math

import pytest
import torch

pytest.importorskip("torchdiffeq")

from equipoise.models.zoo import NeuralODE
from equipoise.models.zoo.neural_ode import METHODS
from memory import stored_bytes


def build(seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return NeuralODE((1, 6, 6), 3, 4, 2, dtype=torch.float64, generator=generator, **options)


X = torch.randn(4, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_it_is_the_solution_of_its_equation():
    model = build(rtol=1e-7, atol=1e-7)
    h, steps = model.extractor(X), 1000
    with torch.no_grad():
        for k in range(steps):
            h = h + model.field(torch.tensor(k / steps), h) / steps
        torch.testing.assert_close(model.state(X), h, rtol=0, atol=5e-3)
        fixed = build(method="rk4", steps=20)
        torch.testing.assert_close(fixed.state(X), model.state(X), rtol=0, atol=1e-4)


def test_the_adjoint_gives_the_gradients_of_the_solver():
    gradients = []
    for adjoint in (True, False):
        model = build(method="rk4", steps=40, adjoint=adjoint)
        model(X).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        assert (a - b).norm() < 5e-3 * a.norm()  # kinks of relu limit the order


def test_the_memory_of_the_adjoint_does_not_grow_with_the_steps():
    def kept(steps, adjoint):
        model = build(method="rk4", steps=steps, adjoint=adjoint)
        return stored_bytes(lambda: model(X))

    assert kept(20, adjoint=True) == kept(2, adjoint=True) < kept(2, adjoint=False)
    assert kept(20, adjoint=False) > 5 * kept(2, adjoint=False)


def test_only_adaptive_steps_make_an_image_depend_on_those_beside_it():
    with torch.no_grad():
        for method in METHODS:
            model = build(method=method)
            gap = (model.state(X)[:1] - model.state(X[:1])).abs().max()
            assert 1e-6 < gap < 1e-2 if method == "dopri5" else gap < 1e-12


def test_augmentation_appends_channels_of_zeros_that_the_flow_fills():
    model = build(augment=2, rtol=1e-6, atol=1e-6)
    state = model.state(X)
    assert state.shape == (4, 5, 6, 6)
    assert state[:, 3:].abs().max() > 0
    assert model.field.evaluations > 0


def test_evaluations_are_those_of_the_forward_solve():
    for adjoint in (True, False):
        for steps in (5, 49):  # 1/(1/49) is not 49
            model = build(method="rk4", steps=steps, adjoint=adjoint)
            y = model(X)
            assert model.field.evaluations == 4 * steps
            y.sum().backward()
            assert model.field.evaluations == 4 * steps


def test_files_and_words(tmp_path):
    model = build(augment=1, method="midpoint", steps=5)
    model.save(tmp_path / "ode.safetensors")
    assert torch.equal(NeuralODE.load(tmp_path / "ode.safetensors")(X), model(X))
    with pytest.raises(ValueError, match="method must be one of"):
        build(method="leapfrog")
    with pytest.raises(ValueError, match="augment must be"):
        build(augment=-1)
    for tolerances in ({"rtol": -1.0}, {"atol": 0.0}, {"rtol": math.nan}, {"atol": math.inf}):
        with pytest.raises(ValueError, match="rtol must be ≥ 0 and atol > 0, both finite"):
            build(**tolerances)
    build(rtol=0.0)


@pytest.mark.parametrize("method", METHODS)
def test_images_that_cannot_be_solved_for_are_named(method):
    model = build(method=method, augment=1)
    assert model(X[:0]).shape == (0, 2)
    assert model.state(X[:0]).shape == (0, 4, 6, 6)
    with pytest.raises(ValueError, match=r"x must be finite. Got NaN or infinity in row 2\."):
        model(X.index_fill(0, torch.tensor([2]), math.nan))
    with pytest.raises(ValueError, match=r"x must be \(N, 1, 6, 6\)\. Got shape \(4, 1, 7, 6\)"):
        model(torch.zeros(4, 1, 7, 6, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"x must be torch\.float64 .* Got torch\.uint8"):
        model(torch.zeros(4, 1, 6, 6, dtype=torch.uint8))


def test_a_field_too_steep_for_the_tolerance_is_said_in_words():
    model = build()
    with torch.no_grad():
        for p in model.field.parameters():
            p *= 1e12
    with pytest.raises(ArithmeticError, match=r"the field is too steep for rtol=0\.001 and atol=0\.001"):
        model(X)
