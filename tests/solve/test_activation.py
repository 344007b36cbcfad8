import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.solve import Activation, clamp, leaky_relu, soft_threshold
from equipoise.solve.activation import ACTIVATIONS

PARAMETRISED = [clamp(-0.5, 2.0), leaky_relu(0.3), leaky_relu(1.0), soft_threshold(0.7), soft_threshold(0.0)]
ALL = [*ACTIVATIONS.values(), *PARAMETRISED]
POINTS = torch.cat(
    [torch.linspace(-9, 9, 181, dtype=torch.float64), torch.tensor([1e-9, 1e-300, 40.0, 700.0, -700.0])]
).double()


@pytest.mark.parametrize("activation", ALL, ids=lambda a: a.name)
def test_slope_is_what_autograd_says_kinks_included(activation):
    kinks = torch.tensor([-1.0, -0.5, 0.0, 0.5, 0.7, 1.0, 2.0, 6.0], dtype=torch.float64)
    p = torch.cat([POINTS, kinks]).requires_grad_()
    (want,) = torch.autograd.grad(activation(p).sum(), p)
    torch.testing.assert_close(activation.slope(p.detach()), want, rtol=1e-12, atol=1e-15)
    assert (activation.slope(p.detach()) <= activation.lipschitz).all()


@pytest.mark.parametrize("activation", ALL, ids=lambda a: a.name)
def test_sigma_is_its_own_prox_at_one(activation):
    torch.testing.assert_close(activation.prox(POINTS, 1.0), activation(POINTS), rtol=1e-14, atol=0)


@pytest.mark.parametrize("activation", ALL, ids=lambda a: a.name)
@given(log_alpha=st.floats(-6, 6))
def test_prox_meets_its_optimality_condition(activation, log_alpha):
    # z = prox_{αφ}(v) ⟺ v − z ∈ α ∂φ(z), and u − σ(u) runs through ∂φ(σ(u)) as u runs through the reals.
    alpha = 10**log_alpha
    z = activation(POINTS)
    v = (1 - alpha) * z + alpha * POINTS
    rounding = 1e-15 * (v.abs() + (1 + alpha) * (z.abs() + POINTS.abs()))  # of v; the prox is 1-Lipschitz
    assert ((activation.prox(v, alpha) - z).abs() <= 4 * rounding + 1e-15).all()


@pytest.mark.parametrize("activation", ALL, ids=lambda a: a.name)
@pytest.mark.parametrize("alpha", [1e-3, 0.2, 1.0, 7.0])
def test_prox_is_firmly_nonexpansive_and_keeps_dtype(activation, alpha):
    generator = torch.Generator().manual_seed(0)
    v, w = 5 * torch.randn(2, 400, dtype=torch.float64, generator=generator)
    a, b = activation.prox(v, alpha), activation.prox(w, alpha)
    assert ((a - b) ** 2 <= (a - b) * (v - w) + 1e-13).all()
    single = activation.prox(v.float(), alpha)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), a, rtol=1e-5, atol=1e-5)


def test_prox_passes_nan_on():
    v = torch.tensor([1.0, torch.nan, -2.0], dtype=torch.float64)
    for activation in ALL:
        assert torch.isnan(activation.prox(v, 0.3)).tolist() == [False, True, False], activation.name


@pytest.mark.parametrize(
    ("make", "arguments"),
    [(clamp, (1.0, 1.0)), (leaky_relu, (0.0,)), (leaky_relu, (1.5,)), (soft_threshold, (-0.1,))],
)
def test_parameters_out_of_range_are_refused(make, arguments):
    with pytest.raises(ValueError, match="Got"):
        make(*arguments)


def test_an_activation_of_ones_own_needs_no_prox():
    gelu = Activation("gelu", torch.nn.functional.gelu, torch.ones_like)
    assert gelu.prox is None
    assert gelu(torch.zeros(2)).tolist() == [0, 0]
