"""∫σ: the potential of an activation, against quadrature."""

import math

import pytest
import torch
from scipy.integrate import quad

from equipoise.models.proximal.activations import KNOWN, potential
from equipoise.solve import Activation


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_the_potential_is_the_integral_of_the_activation(name):
    sigma = KNOWN[name]
    t = torch.linspace(-9, 9, 37, dtype=torch.float64)
    got = potential(sigma, t)
    kinks = [-1.0, -0.5, 0.0, 0.5, 1.0, 6.0]
    for x, value in zip(t.tolist(), got.tolist(), strict=True):
        f = lambda s: float(sigma(torch.tensor([s], dtype=torch.float64)))
        low, high = min(0.0, x), max(0.0, x)
        points = [k for k in kinks if low < k < high] or None
        want = math.copysign(1, x) * quad(f, low, high, points=points, epsabs=1e-12, epsrel=1e-12)[0]
        assert value == pytest.approx(want, abs=1e-9)


def test_the_potential_of_a_users_activation_is_found_by_quadrature():
    sigma = Activation("arctan", torch.arctan, lambda p: 1 / (1 + p * p))
    t = torch.linspace(-20, 20, 41, dtype=torch.float64)
    want = t * torch.arctan(t) - torch.log1p(t * t) / 2
    torch.testing.assert_close(potential(sigma, t), want, rtol=1e-11, atol=1e-11)
    assert potential(sigma, t[:0]).shape == (0,)
