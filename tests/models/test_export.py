"""Unrolled networks keep the error they promise, and leave for torch.export and ONNX unchanged."""

from __future__ import annotations

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
