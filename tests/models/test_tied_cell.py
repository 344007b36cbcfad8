"""Cells that hold one weight in several places: gradients are the sum, and parameters stay parameters."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import equipoise as eq
from equipoise.kernels import tangent_kernel

DTYPE = torch.float64
STOP = eq.Stop(rtol=1e-12)


class Tied(nn.Module):
    """z = 0.4 tanh(a(z) + b(tanh(z))) + x, with a and b tied as `tie` says."""

    def __init__(self, tie):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4, dtype=DTYPE), nn.Linear(4, 4, dtype=DTYPE)
        tie(self)

    def forward(self, z, x):
        return 0.4 * torch.tanh(self.a(z) + self.b(torch.tanh(z))) + x


def one_module(cell):
    cell.b = cell.a


def one_parameter(cell):
    cell.b.weight = cell.a.weight


def nested(cell):
    cell.a = nn.Sequential(cell.a, nn.Tanh())
    cell.b = nn.ModuleList([cell.a, nn.Sequential(cell.a[0])])
    cell.b.forward = lambda z: cell.b[0](z) + cell.b[1](z)


def parametrised(cell):
    parametrizations.weight_norm(cell.a)
    cell.b = cell.a


def shared_original(cell):
    for part in (cell.a, cell.b):
        parametrize.register_parametrization(part, "weight", nn.Softplus())
    cell.b.parametrizations.weight.original = cell.a.parametrizations.weight.original


def two_names_in_one_module(cell):
    cell.a.register_parameter("again", cell.a.weight)
    cell.b.forward = lambda z: z @ cell.a.again.T


def parameter_and_buffer(cell):
    cell.b.register_buffer("shared", cell.a.weight)
    cell.b.forward = lambda z: z @ cell.b.shared.T


def one_buffer(cell):
    cell.a.register_buffer("scale", torch.full((4,), 0.7, dtype=DTYPE))
    cell.b = cell.a
    cell.a.forward = lambda z: nn.functional.linear(z, cell.a.weight, cell.a.bias) * cell.a.scale


def unregistered(cell):
    cell.hidden = [nn.Linear(4, 4, dtype=DTYPE)]
    cell.hidden[0].weight = cell.a.weight
    cell.b.forward = lambda z: cell.hidden[0](z)


TIES = [
    one_module,
    one_parameter,
    nested,
    parametrised,
    shared_original,
    two_names_in_one_module,
    parameter_and_buffer,
    one_buffer,
    unregistered,
]


def inputs(n=3, m=4):
    return torch.randn(n, m, dtype=DTYPE, generator=torch.Generator().manual_seed(2))


def unrolled(cell, x, steps=150):
    z = torch.zeros_like(x)
    for _ in range(steps):
        z = cell(z, x)
    return z


@pytest.mark.parametrize(
    "gradient", [eq.Implicit(), eq.Unrolled(150), eq.Phantom(150)], ids=lambda g: type(g).__name__
)
@pytest.mark.parametrize("tie", TIES)
def test_tied_weights_get_the_sum_of_their_gradients_at_every_backward_pass(tie, gradient):
    cell, x = Tied(tie), inputs()
    parameters = dict(cell.named_parameters(remove_duplicate=False))
    want = torch.autograd.grad(unrolled(cell, x).sum(), list(cell.parameters()), allow_unused=True)
    layer = eq.Equilibrium(cell, stop=STOP, gradient=gradient)
    for _ in range(2):  # a second pass meets what the first has left behind
        layer.zero_grad()
        layer(x).sum().backward()
        now = dict(cell.named_parameters(remove_duplicate=False))
        assert all(now[name] is p and isinstance(p, nn.Parameter) for name, p in parameters.items())
        for p, h in zip(cell.parameters(), want, strict=True):
            g = torch.zeros_like(p) if p.grad is None else p.grad
            torch.testing.assert_close(g, torch.zeros_like(p) if h is None else h, rtol=1e-7, atol=1e-9)


def test_a_weight_shared_with_a_module_outside_the_cell_gets_both_gradients():
    cell, x = Tied(one_module), inputs()
    head = nn.Linear(4, 4, dtype=DTYPE)
    head.weight = cell.a.weight
    want = torch.autograd.grad(head(unrolled(cell, x)).sum(), cell.a.weight)[0]
    model = nn.Sequential(eq.Equilibrium(cell, stop=STOP), head)
    model(x).sum().backward()
    assert model[1].weight is model[0].cell.a.weight
    torch.testing.assert_close(cell.a.weight.grad, want, rtol=1e-8, atol=1e-10)


def test_a_cell_of_one_module_under_two_names_trains():
    cell, x = Tied(one_module), inputs()
    layer = eq.Equilibrium(cell, stop=STOP)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(5):
        optimiser.zero_grad()
        loss = layer(x).square().sum()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_second_derivatives_and_transforms_leave_the_parameters_in_place():
    cell = Tied(one_module)
    layer, x = eq.Equilibrium(cell, stop=STOP), inputs(1)
    before = dict(cell.named_parameters(remove_duplicate=False))
    torch.func.hessian(lambda x: layer(x).sum())(x)
    (first,) = torch.autograd.grad(layer(x).sum(), cell.a.weight, create_graph=True)
    first.square().sum().backward()
    tangent_kernel(layer, x)
    assert all(p is before[name] for name, p in cell.named_parameters(remove_duplicate=False))


def test_the_tangent_kernel_of_a_network_with_a_module_under_two_names_leaves_it_whole():
    net = nn.Sequential(nn.Linear(4, 4, dtype=DTYPE), nn.Tanh())
    net.append(net[0])
    before, twin, x = net[0].weight, copy.deepcopy(net), inputs()
    H = tangent_kernel(net, x).blocks["0.weight"]
    assert net[0].weight is before
    J = torch.autograd.functional.jacobian(
        lambda w: nn.functional.linear(torch.tanh(nn.functional.linear(x, w, twin[0].bias)), w, twin[0].bias),
        twin[0].weight.detach(),
    ).flatten(2)
    torch.testing.assert_close(H, torch.einsum("ikp,jlp->ikjl", J, J))
