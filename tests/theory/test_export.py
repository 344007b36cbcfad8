"""Unrolled networks keep the error they promise, and leave for torch.export and ONNX unchanged."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import equipoise as eq

TIGHT = eq.Stop(rtol=1e-13, max_steps=5000)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


FAMILIES = {
    "gaussian": lambda k: eq.GaussianReLU(5, 12, outputs=k, dtype=torch.float64, generator=rng()),
    "scaled": lambda k: eq.ScaledReLU(
        5, 12, outputs=k, init="section5.2", dtype=torch.float64, generator=rng()
    ),
    "monotone": lambda k: eq.Monotone(5, 12, margin=0.8, outputs=k, dtype=torch.float64, generator=rng()),
    "linear": lambda k: eq.LinearEquilibrium(5, outputs=k, gamma=0.6, dtype=torch.float64, generator=rng()),
}


def inside(radius, n=200, seed=1):
    """Points on and inside the sphere of that radius."""
    x = torch.randn(n, 5, dtype=torch.float64, generator=rng(seed))
    lengths = torch.rand(n, 1, dtype=torch.float64, generator=rng(seed + 1))
    lengths[: n // 2] = 1.0
    return radius * lengths * x / x.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("error", [1e-1, 1e-4])
def test_the_promised_error_is_kept_for_every_input_in_the_ball(name, outputs, error):
    model = FAMILIES[name](outputs)
    plain = eq.unroll(model, error=error, radius=3.0)
    assert plain.proved
    X = inside(3.0)
    gap = (plain(X) - model(X, stop=TIGHT)).detach().reshape(len(X), -1).norm(dim=1)
    assert float(gap.max()) <= error
    assert f"{plain.steps} steps" in repr(plain)


def test_a_smaller_error_needs_more_steps_and_the_count_is_the_least_that_proves_it():
    model = FAMILIES["gaussian"](1)
    steps = [eq.unroll(model, error=e, radius=3.0).steps for e in (1e-1, 1e-3, 1e-5)]
    assert steps == sorted(set(steps))
    q = float(torch.linalg.matrix_norm(model.W.detach(), ord=2))
    whole = float(model.a.detach().norm() * torch.linalg.matrix_norm(model.U.detach(), ord=2)) * 3.0 / (1 - q)
    for count, e in zip(steps, (1e-1, 1e-3, 1e-5), strict=True):
        assert whole * q**count <= e < whole * q ** (count - 1)


def test_a_map_without_a_proved_contraction_is_refused():
    model = FAMILIES["gaussian"](1)
    with torch.no_grad():
        model.W.mul_(3 / torch.linalg.matrix_norm(model.W, ord=2))
    with pytest.raises(ValueError, match="contraction factor below 1"):
        eq.unroll(model, error=0.1, radius=1.0)


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.W = nn.Parameter(
            0.5 * torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=rng()))[0]
        )
        self.U = nn.Parameter(torch.randn(6, 5, dtype=torch.float64, generator=rng(1)))

    def forward(self, z, x):
        return torch.tanh(z @ self.W.T + x @ self.U.T)


def test_a_users_cell_needs_a_proof_or_asks_for_an_estimate():
    layer = eq.Equilibrium(Cell(), state=(6,), stop=TIGHT)
    with pytest.raises(ValueError, match="numbers you have a proof of"):
        eq.unroll(layer, error=1e-3, radius=2.0)
    proved = eq.unroll(layer, error=1e-3, radius=2.0, contraction=0.5, offset=6**0.5)  # |tanh| ≤ 1
    assert proved.proved
    X = inside(2.0)
    assert float((proved(X) - layer(X)).detach().norm(dim=1).max()) <= 1e-3
    with pytest.raises(ValueError, match="give sample="):
        eq.unroll(layer, error=1e-3, radius=2.0, contraction="estimate", offset="estimate")
    guessed = eq.unroll(
        layer, error=1e-3, radius=2.0, contraction="estimate", offset="estimate", sample=X[:20]
    )
    assert not guessed.proved
    assert "ESTIMATED" in repr(guessed)
    assert float((guessed(X) - layer(X)).detach().norm(dim=1).max()) <= 1e-3


@pytest.mark.parametrize(("option", "value"), [("error", 0.0), ("radius", -1.0), ("error", float("nan"))])
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(ValueError, match=option):
        eq.unroll(FAMILIES["gaussian"](1), **{"error": 0.1, "radius": 1.0, option: value})


def test_other_models_are_refused():
    with pytest.raises(TypeError, match="affine family or an Equilibrium"):
        eq.unroll(nn.Linear(2, 2), error=0.1, radius=1.0)


@pytest.mark.parametrize("name", FAMILIES)
def test_torch_export_gives_the_same_network(name):
    plain = eq.unroll(FAMILIES[name](2), error=1.0, radius=2.0).eval()  # few steps: each is traced
    assert plain.steps > 1
    X = inside(2.0, n=6)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(plain, (X,), dynamic_shapes=({0: batch},))
    for n in (6, 17):
        x = inside(2.0, n=n, seed=n)
        torch.testing.assert_close(program.module()(x), plain(x), rtol=1e-12, atol=1e-12)


def test_onnx_gives_the_same_network(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    plain = eq.unroll(FAMILIES["gaussian"](2).float(), error=1e-2, radius=2.0).eval()
    X = inside(2.0, n=6).float()
    file = tmp_path / "network.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        torch.onnx.export(
            plain,
            (X,),
            str(file),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    for n in (6, 9):
        x = inside(2.0, n=n, seed=n).float()
        (found,) = session.run(None, {name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), plain(x).detach(), rtol=1e-4, atol=1e-5)


# -- what is promised is kept, or nothing is promised --------------------------------------------------------


@pytest.mark.parametrize("state", [lambda x: 1e6 + 0 * x, lambda x: torch.full_like(x, -3e5)])
def test_a_start_that_a_function_gives_does_not_break_the_promise(state):
    layer = eq.Equilibrium(lambda z, x: 0.5 * z + x, state=state)
    found = eq.unroll(layer, 1e-3, 1.0, contraction=0.5, offset=1.0)
    x = torch.eye(3, dtype=torch.float64)
    assert found.proved
    assert (found(x) - 2 * x).norm(dim=1).max() <= 1e-3


def test_estimates_are_of_the_same_start():
    layer = eq.Equilibrium(lambda z, x: 0.5 * z + x, state=lambda x: 1e6 + 0 * x)
    x = torch.eye(3, dtype=torch.float64)
    found = eq.unroll(layer, 1e-3, 1.0, contraction="estimate", offset="estimate", sample=x)
    assert not found.proved
    assert found.steps < 20


@pytest.mark.parametrize("family", [eq.GaussianReLU, eq.ScaledReLU, eq.Monotone, eq.LinearEquilibrium])
@pytest.mark.parametrize("method", ["injection", "forward", "readout", "equilibrium", "weight"])
def test_a_subclass_with_a_method_of_its_own_is_not_unrolled(family, method):
    def other(self, *args, **options):
        return 1000 * getattr(family, method)(self, *args, **options)

    model = type("Mine", (family,), {method: other})(3, *(() if family is eq.LinearEquilibrium else (4,)))
    with pytest.raises(ValueError, match=f"Mine changes {method}"):
        eq.unroll(model, 1e-3, 1.0)


def test_hooks_and_layers_of_ones_own_are_not_unrolled():
    model = eq.GaussianReLU(3, 4)
    hook = model.register_forward_hook(lambda module, args, y: 1000 * y)
    with pytest.raises(ValueError, match="a hook around forward"):
        eq.unroll(model, 1e-3, 1.0)
    hook.remove()
    assert eq.unroll(model, 1e-3, 1.0).proved

    class StepFromShift(eq.Equilibrium):
        def forward(self, x):
            return super().forward(x) + 1

    given = {"contraction": 0.5, "offset": 1.0}
    with pytest.raises(ValueError, match="StepFromShift changes forward of Equilibrium"):
        eq.unroll(StepFromShift(lambda z, x: 0.5 * z + x), 1e-3, 1.0, **given)
    layer = eq.Equilibrium(lambda z, x: 0.5 * z + x)
    layer.register_forward_hook(lambda module, args, z: 2 * z)
    with pytest.raises(ValueError, match="a hook around forward"):
        eq.unroll(layer, 1e-3, 1.0, **given)


class Lowered(eq.models.AffineFamily):
    """Z = σ(s Z Q + X c + d),  ŷ = Z a, with an orthogonal Q: a family that a user wrote."""

    readout_name = "a"
    names = ("Q", "c", "d", "a")

    def __init__(self, scale=0.5, dtype=torch.float64):
        super().__init__(5, 7, 1)
        draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=rng(len(shape)))
        values = (scale * torch.linalg.qr(draw(7, 7)).Q, draw(5, 7), draw(7), draw(7))
        for name, value in zip(self.names, values, strict=True):
            self.register_parameter(name, nn.Parameter(value.to(dtype)))

    def weight(self):
        return self.Q

    def injection(self, X):
        return X @ self.c + self.d

    def pullback(self, V, R, Z, X):
        raise NotImplementedError

    gram = check_wellposed = pullback


def test_a_family_of_a_users_own_is_unrolled_by_the_facts_it_registers(registered):
    with pytest.raises(TypeError, match=r"how u\(x; θ\) follows x must be known.* with input_map\(\)"):
        eq.unroll(Lowered(), 1e-3, 1.0)

    @eq.theory.facts_of(Lowered)
    class LoweredFacts(eq.theory.families.GenericFacts):
        def input_map(self):
            return self.model.c.T

    for activation in (eq.solve.RELU, eq.solve.clamp(0.5, 2.0)):  # the second moves 0, where it begins
        for dtype in (torch.float64, torch.float32):
            model = type("Its", (Lowered,), {"activation": activation})(dtype=dtype)
            plain = eq.unroll(model, error=1e-3, radius=3.0)
            assert plain.proved
            assert plain.hypotheses[-1].startswith("the facts LoweredFacts, which are registered for Its")
            assert "taken to be exactly what Its computes" in repr(plain)
            X = inside(3.0)
            exact = copy.deepcopy(model).double().requires_grad_(False)
            gap = plain.double()(X) - exact(X, stop=TIGHT)
            assert 0 < float(gap.abs().max()) <= 1e-3
    with pytest.raises(ValueError, match="contraction factor below 1"):
        eq.unroll(Lowered(scale=1.0), 1e-3, 1.0)
    with pytest.raises(ValueError, match="Read changes readout of AffineFamily"):
        eq.unroll(type("Read", (Lowered,), {"readout": lambda self, z: 2 * z})(), 1e-3, 1.0)


@pytest.mark.parametrize("size", [1e3, 1e6, 3e7, 1e12])
@pytest.mark.parametrize("seed", range(3))
def test_a_large_symmetric_part_of_B_is_proved_rightly_or_not_at_all(size, seed):
    generator = torch.Generator().manual_seed(seed)
    model = eq.Monotone(3, 6, margin=0.5, generator=generator)
    with torch.no_grad():
        S = torch.randn(6, 6, generator=generator)
        model.B.add_(size * (S + S.T))  # B − Bᵀ cancels it, but for the rounding of B itself
    x = torch.nn.functional.normalize(torch.randn(5, 3, generator=generator, dtype=torch.float64))
    try:
        found = eq.unroll(model, 1e-3, 1.0)
    except ValueError as error:
        refused = str(error)
        assert "contraction" in refused or "more than the error" in refused
        return
    assert found.proved
    exact = copy.deepcopy(model).double()
    wanted = exact(x, stop=eq.Stop(rtol=1e-13, max_steps=20000))
    assert (found.double()(x) - wanted).abs().max() <= 1e-3 + 1e-6
