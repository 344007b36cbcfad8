"""Full-batch descent is θ ← θ − η∇L, whatever makes it fast, and keeps its promises."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.train import train_many

FAMILIES = {
    "gaussian": lambda g, k: eq.GaussianReLU(12, 30, outputs=k, dtype=torch.float64, generator=g),
    "scaled": lambda g, k: eq.ScaledReLU(
        12, 30, outputs=k, init="section5.2", dtype=torch.float64, generator=g
    ),
    "monotone": lambda g, k: eq.Monotone(12, 30, outputs=k, dtype=torch.float64, generator=g),
    "linear": lambda g, k: eq.LinearEquilibrium(12, outputs=k, dtype=torch.float64, generator=g),
}
TIGHT = eq.Stop(rtol=1e-12, max_steps=5000)


def build(name, outputs=1, seed=0):
    return FAMILIES[name](torch.Generator().manual_seed(seed), outputs)


def data(model, n=8, seed=1):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 12, dtype=torch.float64, generator=generator)
    return X, torch.randn(model(X).shape, dtype=torch.float64, generator=generator)


def by_hand(model, X, y, steps, rate):
    """The same dynamics by autograd alone, every equilibrium solved afresh."""
    losses = []
    factor = 1.0 if isinstance(model, eq.LinearEquilibrium) else 0.5
    for _ in range(steps + 1):
        loss = factor * (model(X, stop=TIGHT) - y).square().sum()
        losses.append(float(loss.detach()))
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for (name, p), g in zip(model.named_parameters(), grads, strict=True):
                p -= (rate[name] if isinstance(rate, dict) else rate) * g
    return np.array(losses)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_descent_equals_the_same_steps_by_autograd(name, outputs):
    model = build(name, outputs)
    X, y = data(model)
    expected = by_hand(copy.deepcopy(model), X, y, 12, 2e-3)
    history = eq.gradient_descent(model, X, y, steps=12, step_size=2e-3, stop=TIGHT)
    np.testing.assert_allclose(history.loss, expected, rtol=1e-8)
    assert history.loss[12] < history.loss[0]
    assert history.steps == 12


@pytest.mark.parametrize("name", ["gaussian", "linear"])
def test_step_sizes_by_block_and_by_parameter(name):
    model = build(name)
    X, y = data(model)
    readout = model.readout_name
    rates = {n: 1e-3 if n == readout else 1e-4 for n, _ in model.named_parameters()}
    expected = by_hand(copy.deepcopy(model), X, y, 5, rates)
    for sizes in ({"readout": 1e-3, "hidden": 1e-4}, rates):
        history = eq.gradient_descent(copy.deepcopy(model), X, y, 5, sizes, stop=TIGHT)
        np.testing.assert_allclose(history.loss, expected, rtol=1e-9)
    for bad in ({"readout": 1.0}, {"hidden": 1.0, "x": 1.0}, -1.0, float("nan")):
        with pytest.raises(ValueError, match="step"):
            eq.gradient_descent(model, X, y, 1, bad)


def test_mixed_precision_follows_the_same_path():
    model = build("gaussian")
    X, y = data(model)
    plain = eq.gradient_descent(copy.deepcopy(model), X, y, 20, 2e-3, stop=TIGHT)
    mixed = eq.gradient_descent(model, X, y, 20, 2e-3, stop=TIGHT, precision="mixed")
    np.testing.assert_allclose(mixed.loss, plain.loss, rtol=1e-9)
    assert (mixed.residual <= 3e-12).all()


def test_what_is_recorded_is_true():
    model = build("gaussian")
    X, y = data(model)
    X_test, y_test = data(model, n=5, seed=9)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    Z0 = model.equilibrium(X, stop=TIGHT).detach()
    seen = []
    history = eq.gradient_descent(
        model,
        X,
        y,
        10,
        1e-3,
        X_test=X_test,
        y_test=y_test,
        measure=4,
        stop=TIGHT,
        progress=lambda k, v: seen.append((k, v)),
    )
    assert sorted(history.sigma_min) == sorted(history.test_loss) == [0, 4, 8, 10]
    assert [k for k, _ in seen] == list(range(11))
    Z = model.equilibrium(X, stop=TIGHT).detach()
    assert history.sigma_min[10] == pytest.approx(float(torch.linalg.svdvals(Z)[-1]), rel=1e-8)
    assert history.movement[10] == pytest.approx(float((Z - Z0).norm() / Z0.norm()), rel=1e-6)
    assert history.movement[0] == 0
    assert history.contraction[10] == pytest.approx(
        float(torch.linalg.matrix_norm(model.W.detach(), ord=2)), rel=1e-8
    )
    assert history.norms["W"][0] == pytest.approx(float(start["W"].norm()), rel=1e-12)
    assert history.norms["a"][10] == pytest.approx(float(model.a.detach().norm()), rel=1e-12)
    assert history.test_loss[10] == pytest.approx(
        float(0.5 * (model(X_test) - y_test).square().sum().detach()), rel=1e-6
    )
    np.testing.assert_allclose(history.times, np.arange(11) * 1e-3)
    assert history.forward_steps[0] > history.forward_steps[-1]  # warm starts shorten the solves
    assert history.to_dict()["loss"] == history.loss.tolist()


@pytest.mark.parametrize("readout", ["gradient", "gauss-newton"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_certified_run_keeps_its_promise(name, readout):
    model = build(name)
    X, y = data(model)
    certificate = eq.certify(model, X, y, theorem="two_timescale", readout=readout)
    assert certificate.proved, certificate.explain()
    history = eq.gradient_descent(model, X, y, steps=60, step_size=certificate)
    assert history.violations() == []
    assert history.promised[60] < 1
    assert history.relative_loss[60] <= history.promised[60]


def test_a_certificate_of_something_else_is_refused():
    model = build("gaussian")
    X, y = data(model)
    certificate = eq.certify(model, X, y, theorem="two_timescale")
    with pytest.raises(ValueError, match="about other y"):
        eq.gradient_descent(model, X, -y, 1, certificate)
    with pytest.raises(ValueError, match="about other X"):
        eq.gradient_descent(model, 2 * X, y, 1, certificate)
    with pytest.raises(ValueError, match="loss"):
        eq.gradient_descent(model, X, y, 1, certificate, loss="square")
    eq.gradient_descent(model, X, y, 1, certificate)
    with pytest.raises(ValueError, match="about other weights"):
        eq.gradient_descent(model, X, y, 1, certificate)
    with pytest.raises(ValueError, match="must be proved"):
        eq.gradient_descent(model, X, y, 1, eq.certify(model, X, y, theorem="ling2023"))
    linear = build("linear")
    flow = eq.certify(linear, *data(linear), theorem="kawaguchi2021")
    with pytest.raises(ValueError, match="flow"):
        eq.gradient_descent(linear, *data(linear), 1, flow)


def test_divergence_stops_the_run_and_says_so():
    model = build("gaussian")
    X, y = data(model)
    history = eq.gradient_descent(model, X, y, steps=200, step_size=10.0)
    assert history.stopped
    assert history.steps < 200


def test_networks_of_other_kinds_are_sent_to_the_trainer():
    model = eq.OptEq(2, 3, 4, dtype=torch.float64)
    X, y = torch.ones(2, 2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"Got OptEq instead: Trainer"):
        eq.gradient_descent(model, X, y, 1, 0.1)
    with pytest.raises(TypeError, match=r"affine families. Got OptEq"):
        eq.suggest(model, X)


def test_wrong_shapes_are_refused():
    model = build("gaussian")
    X, y = data(model)
    with pytest.raises(ValueError, match=r"y must be \(8,\)"):
        eq.gradient_descent(model, X, y[:, None], 1, 1e-3)
    with pytest.raises(ValueError, match="go together"):
        eq.gradient_descent(model, X, y, 1, 1e-3, X_test=X)
    with pytest.raises(ValueError, match="steps must be"):
        eq.gradient_descent(model, X, y, -1, 1e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_train_on_digits_by_sgd_and_by_descent(name):
    digits = eq.data.load("digits")
    rows = slice(0, 60)
    X = torch.as_tensor(digits.x_train[rows].reshape(60, -1), dtype=torch.float64)
    X = X / X.norm(dim=1, keepdim=True)
    labels = torch.as_tensor(digits.y_train[rows] % 2, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    if name == "linear":
        build_one = lambda: eq.LinearEquilibrium(64, dtype=torch.float64, generator=generator)
        y = labels[:, None]
    else:
        kind = {"gaussian": eq.GaussianReLU, "scaled": eq.ScaledReLU, "monotone": eq.Monotone}[name]
        build_one = lambda: kind(64, 80, dtype=torch.float64, generator=generator)
        y = labels
    model, rate = build_one(), 2e-4 if name == "linear" else 5e-3
    history = eq.gradient_descent(copy.deepcopy(model), X, y, steps=20, step_size=rate)
    assert history.loss[20] < 0.7 * history.loss[0]
    again = eq.gradient_descent(copy.deepcopy(model), X, y, steps=20, step_size=rate)
    assert np.array_equal(history.loss, again.loss)  # deterministic
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        loss = (model(X) - y).square().sum() * (1.0 if name == "linear" else 0.5)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    np.testing.assert_allclose(losses, history.loss[:20], rtol=1e-4)


def test_the_layout_of_rows_does_not_reach_the_arithmetic():
    """Column-ordered data, as tables come in, trains to the same bits."""
    X = torch.randn(9, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    turned = X.T.contiguous().T
    assert not turned.is_contiguous()

    def trained(X):
        models = [
            eq.GaussianReLU(7, 33, 0.05, dtype=torch.float64, generator=torch.Generator().manual_seed(s))
            for s in range(5)
        ]
        eq.gradient_descent(models[0], X, y, 3, 1e-2)
        eq.gradient_flow(models[1], X, y, 1e-4)
        train_many(models[2:4], X, y, 3, 1e-2)
        eq.safeguarded_descent(models[4], X, y, 2)
        return [p.detach() for model in models for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(trained(X), trained(turned), strict=True))
