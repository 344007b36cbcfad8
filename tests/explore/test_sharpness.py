"""Lanczos on Hessian-vector products finds the largest eigenvalue of the dense Hessian."""

from __future__ import annotations

import pytest
import torch

from equipoise.explore import hessian_lambda_max
from equipoise.models import GaussianReLU, LinearEquilibrium
from equipoise.solve import Stop

TIGHT = Stop(rtol=1e-13)


def test_lambda_max_of_a_quadratic():
    H = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    H = H @ H.T
    w = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    found = hessian_lambda_max(lambda: 0.5 * w @ H @ w, [w], steps=6)
    assert found.value == pytest.approx(torch.linalg.eigvalsh(H)[-1].item(), rel=1e-10)


def test_lanczos_goes_on_until_its_residual_is_small():
    spectrum = torch.cat([torch.linspace(0, 0.97, 198), torch.tensor([0.98, 1.0])]).double()
    w = torch.zeros(200, dtype=torch.float64, requires_grad=True)
    loss = lambda: 0.5 * (spectrum * w * w).sum()
    short = hessian_lambda_max(loss, [w], steps=16, generator=torch.Generator().manual_seed(0))
    assert short.products == 16
    assert 1 - short.value > 1e-4  # not there yet, and it says so
    assert short.residual > 1e-3
    found = [
        hessian_lambda_max(loss, [w], steps=128, generator=torch.Generator().manual_seed(s)) for s in (0, 1)
    ]
    for estimate in found:
        assert estimate.value == pytest.approx(1.0, abs=1e-10)
        assert estimate.residual <= 1e-6
        assert estimate.products in (16 + 32 + 64, 16 + 32 + 64 + 128)
    again = hessian_lambda_max(loss, [w], steps=128, generator=torch.Generator().manual_seed(0))
    assert again == found[0]


@pytest.mark.parametrize("family", ["linear", "gaussian"])
def test_lambda_max_through_an_equilibrium_is_the_dense_one(family):
    generator = torch.Generator().manual_seed(0)
    if family == "linear":
        model = LinearEquilibrium(3, dtype=torch.float64, generator=generator)
    else:
        model = GaussianReLU(3, 4, dtype=torch.float64, generator=generator)
    X = torch.randn(5, 3, dtype=torch.float64, generator=generator)
    y = torch.randn(model(X).shape, dtype=torch.float64, generator=generator)
    parameters = dict(model.named_parameters())
    sizes = [p.numel() for p in parameters.values()]

    def of(flat):
        parts = dict(zip(parameters, flat.split(sizes), strict=True))
        named = {n: part.reshape(parameters[n].shape) for n, part in parts.items()}
        out = torch.func.functional_call(model, named, (X,), {"stop": TIGHT})
        return (out - y).square().sum()

    flat = torch.cat([p.detach().flatten() for p in parameters.values()])
    dense = torch.autograd.functional.hessian(of, flat)
    found = hessian_lambda_max(lambda: (model(X, stop=TIGHT) - y).square().sum(), model, steps=len(flat))
    assert found.value == pytest.approx(torch.linalg.eigvalsh(dense)[-1].item(), rel=1e-6)


def test_something_must_be_trained():
    with pytest.raises(ValueError, match="requires a gradient"):
        hessian_lambda_max(lambda: torch.zeros(()), [torch.zeros(3)])


def test_a_loss_that_is_linear_in_the_parameters_has_a_hessian_of_0():
    w, v = (torch.ones(3, requires_grad=True) for _ in range(2))
    found = hessian_lambda_max(lambda: w.sum() + 2 * v.sum(), [w, v])
    assert (found.value, found.residual) == (0.0, 0.0)
    half = hessian_lambda_max(lambda: w.sum() + v.square().sum(), [w, v], steps=6)
    assert half.value == pytest.approx(2.0, rel=1e-5)
    with pytest.raises(ValueError, match="must depend on the parameters"):
        hessian_lambda_max(lambda: torch.zeros(()), [w])
