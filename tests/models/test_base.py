"""One base: every model takes the same keywords, records, refuses unknown ones, and holds one Method."""

import pytest
import torch

import equipoise as eq
from equipoise.models.base import EquilibriumModel

F64 = torch.float64


def seeded():
    return torch.Generator().manual_seed(0)


class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.W = torch.nn.Parameter(0.5 * torch.eye(3, dtype=F64))

    def forward(self, z, x):
        return torch.tanh(z @ self.W.T + x)


IMAGE = {"outputs": 2, "features": 3, "dtype": F64}
MODELS = {
    "Equilibrium": lambda **how: eq.Equilibrium(Cell(), **how),
    "LinearEquilibrium": lambda **how: eq.LinearEquilibrium(3, generator=seeded(), dtype=F64),
    "ScaledReLU": lambda **how: eq.ScaledReLU(3, 5, 0.5, generator=seeded(), dtype=F64),
    "GaussianReLU": lambda **how: eq.GaussianReLU(3, 5, generator=seeded(), dtype=F64),
    "Monotone": lambda **how: eq.Monotone(3, 5, generator=seeded(), dtype=F64),
    "OptEq": lambda **how: eq.OptEq(3, 5, 6, generator=seeded(), dtype=F64, **how),
    "DeepOptEq": lambda **how: eq.DeepOptEq(3, 5, [6, 4], generator=seeded(), dtype=F64, **how),
    "ConvOptEq": lambda **how: eq.ConvOptEq((1, 6, 6), 3, [3], generator=seeded(), **IMAGE, **how),
    "ConvMonotone": lambda **how: eq.ConvMonotone((1, 6, 6), 3, generator=seeded(), **IMAGE, **how),
}


def inputs(model):
    shape = (4, *model.inputs) if isinstance(getattr(model, "inputs", 3), tuple) else (4, 3)
    return torch.randn(*shape, dtype=F64, generator=seeded())


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_every_model_takes_the_keywords_of_a_method_at_a_call(build):
    model = build()
    assert isinstance(model, EquilibriumModel)
    x, stop = inputs(model), eq.Stop(rtol=1e-10)
    found = model.solve(x, stop=stop, solver=eq.Anderson(), precision="mixed")
    assert found.converged.all()
    z = model.equilibrium(x, start=found, stop=stop, solver=eq.Anderson(), precision="mixed")
    torch.testing.assert_close(z, found.value, rtol=1e-8, atol=1e-8)
    y = model(x, start=found, stop=stop, on_failure="warn")
    torch.testing.assert_close(model.readout(z), y, rtol=1e-7, atol=1e-7)
    assert model.stop == eq.Stop()  # of that call alone
    for call in (model, model.equilibrium, model.solve):
        with pytest.raises(TypeError, match="tolerance"):
            call(x, tolerance=1e-3)


@pytest.mark.parametrize("build", [MODELS["GaussianReLU"], MODELS["OptEq"], MODELS["ConvOptEq"]])
def test_recorded_steps_have_the_gradient_of_the_equilibrium_in_every_family(build):
    model = build()
    x, stop = inputs(model), eq.Stop(rtol=1e-12)
    weights = [p for p in model.parameters() if p.requires_grad]
    exact = torch.autograd.grad(model(x, stop=stop).sum(), weights)
    accept = {"on_failure": "accept", "stop": stop}
    for how in (eq.Unrolled(300), eq.Implicit()):
        found = torch.autograd.grad(model(x, gradient=how, **accept).sum(), weights)
        for a, b in zip(found, exact, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("build", [MODELS["Equilibrium"], MODELS["OptEq"], MODELS["ConvMonotone"]])
def test_settings_of_the_method_are_attributes_that_do_what_they_say(build):
    model, stop = build(stop=eq.Stop(rtol=1e-6), on_failure="warn"), eq.Stop(rtol=1e-5)
    assert model.method.stop == eq.Stop(rtol=1e-6)
    assert model.on_failure == eq.OnFailure("warn")
    model.stop, model.solver, model.gradient, model.on_failure = stop, eq.Picard(), 7, "accept"
    assert model.method.stop == stop
    assert model.method.solver == eq.Picard()
    assert model.method.gradient == eq.Unrolled(7)
    assert model.method.on_failure == eq.OnFailure("accept")
    with pytest.raises(TypeError, match="stop must be a Stop"):
        model.stop = 1e-3
    with pytest.raises(TypeError, match="Got speed= instead"):
        build(speed=3)


def test_failed_rows_of_an_affine_family_can_be_masked():
    model = MODELS["GaussianReLU"]()
    x = inputs(model).requires_grad_()
    start = model.solve(x.detach(), stop=eq.Stop(rtol=1e-13)).value
    start[2] += 1.0  # one row begins far away, and one step does not lead it there
    few, mask = eq.Stop(rtol=1e-9, max_steps=1), eq.OnFailure("mask", share=0.5)
    z = model.equilibrium(x, start=start, stop=few, on_failure=mask, gradient=eq.Implicit(stop=eq.Stop()))
    assert model.last.forward.converged.tolist() == [True, True, False, True]
    z.sum().backward()
    assert x.grad[2].abs().sum() == 0
    assert (x.grad[[0, 1, 3]].abs().sum(dim=1) > 0).all()
