"""torch.compile of whole models: what is around a solve may be compiled, the solve runs as it is."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import equipoise as eq
from problems import Affine

D = torch.float64
IMAGE = (1, 6, 6)


def build(name):
    g = torch.Generator().manual_seed(0)
    made = {"dtype": D, "generator": g}
    return {
        "layer": lambda: eq.Equilibrium(Affine(d=4, m=4)),
        "linear": lambda: eq.LinearEquilibrium(4, **made),
        "scaled": lambda: eq.ScaledReLU(4, 20, **made),
        "gaussian": lambda: eq.GaussianReLU(4, 20, **made),
        "monotone": lambda: eq.Monotone(4, 20, **made),
        "opteq": lambda: eq.OptEq(4, 5, 8, **made),
        "deep": lambda: eq.DeepOptEq(4, 5, [6, 7], alpha=0.5, **made),
        "images": lambda: eq.ConvOptEq(IMAGE, 3, (4,), 2, **made),
    }[name]()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
@pytest.mark.parametrize(
    "name",
    [
        "layer",
        "gaussian",
        "deep",
        "images",
        # of the kinds above
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("linear", "scaled", "monotone", "opteq")),
    ],
)
def test_a_compiled_model_is_the_model(name):
    class Tripled(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = build(name)

        def forward(self, x):
            return torch.tanh(3 * self.model(torch.sin(x)))

    net = Tripled()
    like = next(net.parameters())
    shape = IMAGE if name == "images" else (4,)
    x = torch.randn(3, *shape, dtype=like.dtype, generator=torch.Generator().manual_seed(1))
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="eager")
    found, want = compiled(x), net(x)
    assert torch.equal(found, want)
    assert torch.equal(compiled(x), want)
    parameters = [p for p in net.parameters() if p.requires_grad]
    grads = [torch.autograd.grad(y.square().sum(), parameters) for y in (found, want)]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_the_compiler_is_not_imported_before_somebody_asks_for_it():
    program = """
import sys, torch, equipoise as eq
eq.OptEq(3, 4, 5)(torch.zeros(2, 3))
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


@pytest.mark.parametrize("strict", [False, True])
def test_an_export_that_cannot_be_says_what_can(strict):
    """Non-strict export raises the error itself; the compiler's frontend quotes it among words of its own."""
    net = nn.Sequential(build("layer"), nn.Linear(4, 2, dtype=D)).eval()
    with pytest.raises(Exception, match=r"cannot be exported.*eq\.unroll") as caught:
        torch.export.export(net, (torch.randn(3, 4, dtype=D),), strict=strict)
    assert strict or (caught.type is NotImplementedError and len(str(caught.value)) < 200)


def test_what_needs_no_solver_is_exported():
    model, x = build("linear"), torch.randn(3, 4, dtype=D)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_cell_is_used_as_compiled_within_a_solve():
    runs = []

    def backend(graph, inputs):
        def run(*args):
            runs.append(1)
            return graph.forward(*args)

        return run

    torch._dynamo.reset()
    cell = Affine(d=4, m=4)
    x = torch.randn(3, 4, dtype=D, generator=torch.Generator().manual_seed(1))
    plain, compiled = eq.Equilibrium(cell), eq.Equilibrium(torch.compile(cell, backend=backend))
    with torch.no_grad():
        assert torch.equal(compiled(x), plain(x))
    assert len(runs) == compiled.last.forward.counts.evaluations
    grads = [torch.autograd.grad(layer(x).square().sum(), cell.parameters()) for layer in (compiled, plain)]
    for found, want in zip(*grads, strict=True):
        torch.testing.assert_close(found, want)
