"""After a projection weights are those of a well-posed network, for certain, and no smaller than need be."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.linalg import norm_upper
from equipoise.train import Projectable, Projection


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bound", [0.5, 0.99, 1 - 1e-6])
@pytest.mark.parametrize("kind", [eq.GaussianReLU, eq.ScaledReLU])
def test_large_weights_are_scaled_to_a_proved_bound(kind, bound, dtype):
    model = kind(5, 24, dtype=dtype, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(3 * torch.randn(p.shape, dtype=dtype, generator=torch.Generator().manual_seed(1)))
    before = copy.deepcopy(model)
    assert norm_upper(model.weight()) > 1
    assert Projection(bound)(model) == 1
    assert norm_upper(model.weight()) <= bound
    assert norm_upper(model.weight()) >= bound * (1 - 1e-2)
    name = {eq.GaussianReLU: "W", eq.ScaledReLU: "A"}[kind]
    for n, p in model.named_parameters():
        old = before.get_parameter(n)
        if n != name:
            assert torch.equal(p, old)
        else:  # the direction is kept
            torch.testing.assert_close(p / p.norm(), old / old.norm(), rtol=1e-5, atol=1e-6)
    model.check_wellposed()
    assert Projection(bound)(model) == 0


def test_weights_within_the_bound_are_left_alone():
    network = nn.Sequential(
        nn.Linear(4, 4, dtype=torch.float64),
        eq.GaussianReLU(4, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
    )
    with torch.no_grad():
        network[0].weight.mul_(100)
        network[1].W.mul_(0.5)
    before = copy.deepcopy(network.state_dict())
    assert Projection()(network) == 0
    assert all(torch.equal(before[n], t) for n, t in network.state_dict().items())


@pytest.mark.parametrize("kind", ["linear", "monotone"])
def test_what_is_well_posed_by_its_parameterisation_needs_nothing(kind):
    model = eq.LinearEquilibrium(6) if kind == "linear" else eq.Monotone(6, 8)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1e3)
    before = copy.deepcopy(model.state_dict())
    assert Projection()(model) == 0
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


class Cell(nn.Module):
    """A user's own module joins by defining `project_`."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((3,), 2.0))

    def project_(self) -> None:
        self.w.clamp_(-0.9, 0.9)


class Bounded(Cell):
    def project_(self, bound: float = 1.0) -> None:
        self.w.clamp_(-bound, bound)


def test_any_module_joins_by_the_protocol():
    network = nn.ModuleList([Cell(), nn.ModuleList([Bounded()]), nn.Linear(2, 2)])
    assert isinstance(network[0], Projectable)
    assert not isinstance(network[2], Projectable)
    assert Projection(0.8)(network) == 2
    assert network[0].w.tolist() == pytest.approx([0.9] * 3)
    assert network[1][0].w.tolist() == pytest.approx([0.8] * 3)
    assert Projection(0.8)(network) == 0


def test_a_network_of_images_takes_the_bound():
    model = eq.ConvOptEq((1, 5, 5), 3, (4,), 2, norm=0.9, generator=torch.Generator().manual_seed(0))
    assert Projection(0.5)(model) == 1
    assert 0.49 < model.norms()[0] <= 0.5
    with torch.no_grad():
        model.layers[0].W.mul_(9)
    assert Projection(0.99)(model) == 1
    assert model.norms()[0] <= model.limit == 0.95


def test_nothing_is_made_of_nan():
    model = eq.GaussianReLU(3, 5)
    with torch.no_grad():
        model.W[1, 2] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        Projection()(model)
    for bound in (0.0, 1.0, -1.0, 2.0):
        with pytest.raises(ValueError, match="bound must lie"):
            Projection(bound)
