"""φ at equilibria as they are found: on the boundary of its domain, up to the tolerance of the solve."""

import pytest
import torch

import equipoise as eq
from equipoise.models.proximal import DeepOptEq, OptEq
from equipoise.models.proximal.properties import L1

PRECISIONS = ((torch.float32, 1e-4), (torch.float64, 1e-8))


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def build(m, n, activation, dtype, seed=0, **options):
    model = OptEq(4, m, n, activation=activation, dtype=dtype, generator=seeded(seed), **options)
    with torch.no_grad():
        model.b.normal_(generator=seeded(seed + 1))
    return model, torch.randn(20, 4, dtype=dtype, generator=seeded(seed + 2))


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(
    ("m", "n", "activation"),
    [
        (16, 16, "relu"),
        (6, 3, "relu"),
        (6, 9, "relu"),
        (6, 3, "tanh"),
        (6, 4, eq.solve.activation.clamp(0, 1)),
    ],
)
def test_an_equilibrium_as_found_has_the_least_value(m, n, activation, dtype, tolerance):
    for seed in range(3):
        model, X = build(m, n, activation, dtype, seed)
        found = model.objective(model.solve(X).raise_if_failed().value, X)
        twin = build(m, n, activation, torch.float64, seed)[0]
        twin.load_state_dict(model.state_dict())
        exact = twin.solve(X.double(), stop=eq.Stop(rtol=1e-14)).raise_if_failed().value
        (phi,) = twin.potentials(X.double())
        scale = (phi.size + exact.norm(dim=1)).square()
        assert ((found - phi.at_image(exact)).abs() <= tolerance * scale).all()


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_both_forms_of_two_layers_have_it_too(dtype, tolerance):
    for seed in range(3):
        model = DeepOptEq(4, 6, [5, 7], dtype=dtype, generator=seeded(seed))
        X = torch.randn(20, 4, dtype=dtype, generator=seeded(seed + 1))
        Z = model.solve(X).raise_if_failed().value
        with torch.no_grad():
            first, last = model.block_states(Z, X)
        best = model.minimise(X).value
        scale = sum(phi.size for phi in model.potentials(X)).square()
        for found in (model.objective(Z, X), model.objective((first, last), X)):
            assert ((found - best).abs() <= tolerance * scale).all()


def test_what_is_further_off_is_outside():
    model, X = build(6, 3, "relu", torch.float32)  # Wᵀv fills three dimensions of six
    Z = model.solve(X).value
    away = torch.randn(20, 6, generator=seeded(3))
    away = away - away @ torch.linalg.pinv(model.W.detach()) @ model.W.detach()
    away = away / away.norm(dim=1, keepdim=True) * Z.norm(dim=1, keepdim=True)
    assert model.objective(Z + 1e-2 * away, X).isinf().all()
    double = build(6, 3, "relu", torch.float64)[0]
    double.load_state_dict(model.state_dict())
    assert double.objective((Z + 1e-5 * away).double(), X.double()).isinf().all()


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_what_is_near_is_within_four_times_the_tolerance(activation):
    model, X = build(6, 3, activation, torch.float64)
    (phi,), t = model.potentials(X), 1e-6
    y = torch.randn(20, 6, dtype=torch.float64, generator=seeded(3))
    p, away = phi.map(y), torch.randn(20, 6, dtype=torch.float64, generator=seeded(4))
    away = away - away @ torch.linalg.pinv(phi.W) @ phi.W  # off the image of f
    away = away / away.norm(dim=1, keepdim=True) * (p.norm(dim=1) + phi.size)[:, None]
    for off, counts in ((2.0, True), (5.0, False)):
        z = p + off * t * away
        near = (z - phi.prox(t, z)).norm(dim=1) <= 4 * t * (z.norm(dim=1) + phi.size)
        assert near.all() if counts else not near.any()
        assert torch.equal(phi.value(z, t).isfinite(), near)


def test_a_coarser_stop_of_the_model_is_the_tolerance():
    coarse = eq.Stop(rtol=1e-2)
    model, X = build(6, 3, "relu", torch.float64, stop=coarse, solver=eq.Picard())
    Z = model.solve(X).value
    assert model.objective(Z, X).isfinite().all()
    start = 1e-3 * torch.randn(20, 6, dtype=torch.float64, generator=seeded(4))
    assert model.objective(Z + start * Z.norm(dim=1, keepdim=True), X).isfinite().all()


def test_the_state_before_a_property_has_its_value():
    model, X = build(6, 9, "relu", torch.float32, regulariser=L1(0.1))
    Z = model.solve(X).value
    with torch.no_grad():
        before = model.layer_map(Z, model.injection(X), model.weight())
    assert model.objective(before, X).isfinite().all()
