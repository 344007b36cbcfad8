"""h' = f(h, t): the baseline against a fine Euler scheme, its gradients, and what it appends."""

import pytest
import torch

pytest.importorskip("torchdiffeq")

from equipoise.models.neural_ode import NeuralODE


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


def test_augmentation_appends_channels_of_zeros_that_the_flow_fills():
    model = build(augment=2, rtol=1e-6, atol=1e-6)
    state = model.state(X)
    assert state.shape == (4, 5, 6, 6)
    assert state[:, 3:].abs().max() > 0
    assert model.field.evaluations > 0


def test_evaluations_are_those_of_the_forward_solve():
    for adjoint in (True, False):
        model = build(method="rk4", steps=5, adjoint=adjoint)
        y = model(X)
        assert model.field.evaluations == 4 * 5
        y.sum().backward()
        assert model.field.evaluations == 4 * 5


def test_files_and_words(tmp_path):
    model = build(augment=1, method="midpoint", steps=5)
    model.save(tmp_path / "ode.safetensors")
    assert torch.equal(NeuralODE.load(tmp_path / "ode.safetensors")(X), model(X))
    with pytest.raises(ValueError, match="method must be one of"):
        build(method="leapfrog")
    with pytest.raises(ValueError, match="augment must be"):
        build(augment=-1)
