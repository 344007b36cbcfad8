"""Gradient flow is θ' = −∇L: against tiny steps of Euler, dense Jacobians, and what the papers promise."""

from __future__ import annotations

import copy
import functools
import json

import numpy as np
import pytest
import torch

import equipoise as eq
from certifiable import FAMILIES, data, instance, network
from equipoise.theory.hieu2022 import certified_start
from equipoise.train import gradient_flow
from equipoise.train.flow_field import FlowField
from equipoise.train.stiff import GaussNewtonBDF, flatten

F64 = torch.float64
TIGHT = eq.Stop(rtol=1e-13, max_steps=5000)


def delm(m, N, gamma, k=1, seed=0):
    """Fig. 2 of [kawaguchi2021]: y = −x + .1 noise, of k coordinates."""
    generator = torch.Generator().manual_seed(seed)
    model = eq.LinearEquilibrium(m, k, gamma, dtype=F64, generator=generator)
    X = torch.randn(N, m, dtype=F64, generator=generator)
    return model, X, -X[:, :k] + 0.1 * torch.randn(N, k, dtype=F64, generator=generator)


def vector(weights):
    return flatten({n: w.detach() for n, w in weights.items()})


def weights_of(model):
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def euler(model, X, y, time, steps, loss=None):
    """θ(time) by so many steps of Euler's method."""
    end = copy.deepcopy(model)
    eq.gradient_descent(end, X, y, steps, time / steps, stop=TIGHT, loss=loss, measure=0)
    return vector(weights_of(end))


@pytest.mark.parametrize(("family", "seed"), list(zip(FAMILIES, (0, 2, 5, 0), strict=True)))
def test_the_flow_is_the_limit_of_eulers_method(family, seed):
    """Euler's error is halved with its step; extrapolated to step 0 it is the flow. No kink is met."""
    model, X, y = instance(family, N=4, width=6, seed=seed)
    time, before = 0.01, masks(model, X)
    one, two = (euler(model, X, y, time, steps) for steps in (100, 200))
    gradient_flow(model, X, y, time, rtol=1e-9)
    assert torch.equal(masks(model, X), before)
    end = vector(weights_of(model))
    assert float((two - end).norm() / (one - end).norm()) == pytest.approx(0.5, abs=0.03)
    assert float((2 * two - one - end).norm()) < 0.02 * float((two - end).norm())


def masks(model, X):
    return model.masks(model.equilibrium(X, stop=TIGHT).detach(), X)


@functools.cache
def tiny_steps(*steps):
    """Where so many steps each lead the network of the next test."""
    return [euler(*delm(4, 12, 0.5), 0.05, number) for number in steps]


@pytest.mark.parametrize("method", ["BDF", "Radau", "LSODA", "RK45", "DOP853"])
def test_delm_at_one_half_agrees_with_tiny_steps(method):
    model, X, y = delm(4, 12, 0.5)
    one, two = tiny_steps(800, 1600)
    history = gradient_flow(model, X, y, 0.05, method=method, rtol=1e-9)
    assert history.method == method
    assert float((2 * two - one - vector(weights_of(model))).abs().max()) < 1e-6
    assert history.loss[-1] < 0.6 * history.loss[0]


@pytest.mark.slow
def test_delm_at_one_half_agrees_with_tiny_steps_alone():
    """Without extrapolation."""
    model, X, y = delm(4, 12, 0.5)
    expected = euler(model, X, y, 0.005, 25_000)
    gradient_flow(model, X, y, 0.005, rtol=1e-10)
    assert float((expected - vector(weights_of(model))).abs().max()) < 1e-6


@pytest.mark.parametrize(("m", "N", "k"), [(10, 100, 1), (8, 60, 3), (40, 20, 1)])
def test_stiff_delm_reaches_the_least_loss_under_its_bound(m, N, k):
    """γ = .99: [kawaguchi2021, Theorem 1] holds along the flow, the loss falls, column sums of A stay."""
    model, X, y = delm(m, N, 0.99, k)
    certificate = eq.certify(model, X, y, theorem="kawaguchi2021")
    sums = model.A.detach().sum(dim=0)
    history = gradient_flow(model, X, y, 30.0, certificate=certificate)
    assert history.method == "BDF"
    assert not history.stopped
    assert history.violations() == []
    assert history.promised[-1] < history.promised[0] == 1
    expected = float((X @ torch.linalg.lstsq(X, y, driver="gelsd").solution - y).square().sum())
    assert history.least_loss == pytest.approx(expected, rel=1e-9, abs=1e-18)
    assert history.relative_loss[-1] < 1e-9
    assert np.diff(history.loss).max() <= 1e-12 * history.loss[0]
    torch.testing.assert_close(model.A.detach().sum(dim=0), sums, rtol=0, atol=1e-12)
    assert history.evaluations < 1500  # an explicit method would need about 1e6


def test_the_flow_of_delm_is_as_stiff_as_one_over_one_minus_gamma_squared():
    fastest = []
    for gamma in (0.99, 0.999):
        field = FlowField(*delm(20, 50, gamma), eq.losses.as_loss("square"), TIGHT)
        fastest.append(field.curvature(0.0, field.start).fastest)
    assert fastest[1] / fastest[0] == pytest.approx(100, rel=0.05)


def test_the_logistic_flow_keeps_its_promise():
    model, X, y = delm(4, 12, 0.8)
    y = (y > 0).to(F64)
    certificate = eq.certify(model, X, y, theorem="kawaguchi2021", loss="logistic", tau=0.1)
    assert certificate.proved
    history = gradient_flow(model, X, y, 40.0, certificate=certificate, points=50)
    assert history.loss_name == "logistic"
    assert history.violations() == []
    M = model.predictor().detach().clone().requires_grad_()
    optimiser = torch.optim.LBFGS([M], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-16)
    loss = eq.losses.Logistic(tau=0.1)

    def closure():
        optimiser.zero_grad()
        value = loss(X @ M.T, y)
        value.backward()
        return value

    optimiser.step(closure)
    assert history.least_loss == pytest.approx(float(loss(X @ M.T, y).detach()), rel=1e-10)
    assert -1e-12 < history.relative_loss[-1] < 0.1  # a difference of two losses that are nearly equal
    with pytest.raises(ValueError, match="about the loss"):
        gradient_flow(delm(4, 12, 0.8)[0], X, y, 1.0, certificate=certificate, loss="square")


def test_a_least_loss_at_the_rim_of_the_radius_is_refused():
    model, X, y = delm(4, 12, 0.8)
    y = (y > 0).to(F64)
    radius = 1.01 * float(model.B.detach().abs().sum(dim=0).max()) / 0.2
    certificate = eq.certify(model, X, y, theorem="kawaguchi2021", loss="logistic", radius=radius)
    assert certificate.proved
    with pytest.raises(ValueError, match="at the rim"):
        gradient_flow(model, X, y, 1.0, certificate=certificate)


def gao():
    generator = torch.Generator().manual_seed(0)
    X = torch.linalg.qr(torch.randn(8, 3, dtype=F64, generator=generator)).Q.T.contiguous()
    y = torch.randn(3, dtype=F64, generator=generator)
    model = eq.ScaledReLU(8, 40, init="section5.1", beta=100.0, dtype=F64, generator=generator)
    return model, X, y, "gao2022.flow", {}


def hieu():
    generator = torch.Generator().manual_seed(0)
    X = torch.linalg.qr(torch.randn(3, 2, dtype=F64, generator=generator)).Q.T.contiguous()
    y = torch.randn(2, dtype=F64, generator=generator)
    model = eq.Monotone(3, 12, margin=1.0, dtype=F64, generator=generator)
    with torch.no_grad():
        model.A.mul_(0.3)
        model.B.mul_(0.3)
    return model, X, y, "hieu2022.flow", {"radii": certified_start(model, X, y)}


@pytest.mark.parametrize("method", ["auto", "BDF"])
@pytest.mark.parametrize("build", [gao, hieu])
def test_the_bounds_of_relu_flows_hold_along_it(build, method):
    model, X, y, theorem, constants = build()
    certificate = eq.certify(model, X, y, theorem=theorem, **constants)
    assert certificate.proved, certificate.explain()
    history = gradient_flow(
        model, X, y, 5 * certificate.efold, certificate=certificate, method=method, measure=1
    )
    assert not history.stopped
    assert history.violations() == []
    assert history.promised[-1] == pytest.approx(np.exp(-5))
    assert history.loss[-1] < 1e-2 * history.loss[0]
    assert np.diff(history.loss).max() <= 1e-9 * history.loss[0]
    assert min(history.sigma_min.values()) >= history.sigma_min[0] / 2  # the theorems' own invariant
    assert max(history.movement.values()) <= certificate.movement


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_newton_steps_through_the_kernel_are_those_of_the_dense_matrix(family, outputs):
    model, X, y = instance(family, N=5, width=7, outputs=outputs)
    loss = eq.losses.as_loss("square")
    field = FlowField(model, X, y, loss, TIGHT)
    curvature = field.curvature(0.0, field.start)
    J = jacobian(model, X)
    expected = -2 * J.T @ J
    np.testing.assert_allclose(curvature.dense(), expected.numpy(), atol=1e-8 * float(expected.abs().max()))
    assert curvature.fastest == pytest.approx(float(torch.linalg.eigvalsh(-expected)[-1]), rel=1e-8)
    b = torch.randn(len(field.start), dtype=F64, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(curvature.push(b).flatten(), J @ b, rtol=1e-8, atol=1e-8)
    c = np.float64(0.3)  # as scipy's solver has it
    found = (1.0 - c * curvature).solve(b.numpy())
    matrix = torch.eye(len(b), dtype=F64) - 0.3 * expected
    torch.testing.assert_close(torch.from_numpy(found), torch.linalg.solve(matrix, b), rtol=1e-7, atol=1e-8)
    with torch.no_grad():  # the solver keeps the operator while the weights go on
        for p in field.model.parameters():
            p.mul_(0.5)
    np.testing.assert_allclose(curvature.dense(), expected.numpy(), atol=1e-8 * float(expected.abs().max()))


def jacobian(model, X):
    """∂ŷ/∂θ (Nk × parameters) by autograd."""
    rows = []
    for i in range(model(X).numel()):
        yhat = model(X, stop=TIGHT).flatten()
        rows.append(flatten(dict(enumerate(torch.autograd.grad(yhat[i], list(model.parameters()))))))
    return torch.stack(rows)


def test_the_solver_through_the_kernel_is_scipys_own_with_a_dense_matrix():
    from scipy.integrate import BDF

    model, X, y = delm(5, 20, 0.95)
    ends = []
    for kind in (GaussNewtonBDF, BDF):
        field = FlowField(model, X, y, eq.losses.as_loss("square"), TIGHT)
        options = {"rtol": 1e-6, "atol": 1e-9}
        if kind is BDF:
            options["jac"] = lambda t, theta, field=field: field.curvature(t, theta).dense()
        else:
            options["curvature"] = field.curvature
        solver = kind(field, 0.0, field.start, 1.0, **options)
        while solver.status == "running":
            solver.step()
        ends.append((solver.y, solver.njev, solver.nlu))
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=1e-8)
    assert ends[0][1:] == ends[1][1:]


@functools.cache
def flowed(time):
    """The network of the next test at a time, and its history."""
    model, X, y = delm(4, 12, 0.8)
    return model, gradient_flow(model, X, y, time, rtol=1e-10)


@pytest.mark.parametrize("method", ["BDF", "Radau", "LSODA", "DOP853", "RK45"])
def test_weights_and_loss_at_any_time(method):
    model, X, y = delm(4, 12, 0.8)
    history = gradient_flow(model, X, y, 0.3, method=method, rtol=1e-8, dense=True)
    assert history.loss_at(0.0) == pytest.approx(history.loss[0], rel=1e-12)
    assert history.loss_at(0.3) == pytest.approx(history.loss[-1], rel=1e-9)
    for name, w in history.weights(0.3).items():
        torch.testing.assert_close(w, model.get_parameter(name).detach(), rtol=1e-10, atol=1e-12)
    for t in (0.01, 0.1234):
        there, end = flowed(t)
        assert history.loss_at(t) == pytest.approx(end.loss[-1], rel=1e-5)
        torch.testing.assert_close(history.weights(t)["A"], there.A.detach(), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"t must lie in \[0, 0.3\]"):
        history.weights(0.31)
    with pytest.raises(ValueError, match="dense=True"):
        gradient_flow(model, X, y, 0.1).weights(0.0)


def test_points_are_recorded_where_they_are_asked_for():
    model, X, y = instance("ling2023", N=5, width=12)
    begin = copy.deepcopy(model)
    X_test, y_test = data(model, N=3, seed=7)
    seen = []
    history = gradient_flow(
        model, X, y, 0.1, points=4, measure=3, X_test=X_test, y_test=y_test,
        progress=lambda t, value: seen.append((t, value)),
    )  # fmt: skip
    np.testing.assert_allclose(history.times, [0, 0.025, 0.05, 0.075, 0.1])
    assert sorted(history.sigma_min) == sorted(history.test_loss) == [0, 3, 4]
    assert seen == list(zip(history.times[1:], history.loss[1:], strict=True))
    Z = model.equilibrium(X, stop=TIGHT).detach()
    assert history.sigma_min[4] == pytest.approx(float(torch.linalg.svdvals(Z)[-1]), rel=1e-7)
    assert history.test_loss[4] == pytest.approx(
        float(0.5 * (model(X_test) - y_test).square().sum().detach()), rel=1e-6
    )
    assert history.norms["W"][4] == pytest.approx(float(model.W.detach().norm()), rel=1e-9)
    named = gradient_flow(copy.deepcopy(begin), X, y, 0.1, points=[0.0, 0.03])
    np.testing.assert_allclose(named.times, [0, 0.03, 0.1])
    assert named.loss[2] == pytest.approx(history.loss[4], rel=1e-5)
    own = gradient_flow(copy.deepcopy(begin), X, y, 0.1, measure=0)
    assert own.times[0] == 0
    assert own.times[-1] == 0.1
    assert not own.sigma_min
    plain = own.to_dict()
    assert plain["times"] == own.times.tolist()
    assert "path" not in plain or plain["path"] is None
    json.dumps(plain)


def test_a_single_precision_network_follows_the_same_flow():
    model, X, y = instance("hieu2022", N=4, width=8)
    narrow = copy.deepcopy(model).float()
    wide = gradient_flow(model, X, y, 0.05)
    history = gradient_flow(narrow, X.float(), y.float(), 0.05)
    assert narrow.A.dtype == torch.float32
    np.testing.assert_allclose(history.loss[-1], wide.loss[-1], rtol=1e-4)
    torch.testing.assert_close(narrow.A.detach().double(), model.A.detach(), rtol=0, atol=1e-5)


def test_frozen_features_stay_as_they_are():
    features = torch.nn.Linear(3, 5, dtype=F64).requires_grad_(False)
    before = features.weight.clone()
    model = eq.LinearEquilibrium(5, gamma=0.9, feature_map=features, dtype=F64)
    X = torch.randn(9, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    history = gradient_flow(copy.deepcopy(model), X, X[:, :1], 5.0, method="BDF")
    assert history.loss[-1] < history.loss[0]
    steps = eq.gradient_descent(model, X, X[:, :1], 5, 1e-4)
    assert steps.loss[-1] < steps.loss[0]
    assert torch.equal(features.weight, before)


@pytest.mark.parametrize("method", ["auto", "BDF", "LSODA"])
def test_a_flow_that_loses_its_equilibria_ends_at_the_last_good_weights(method):
    """Targets far above what the network gives drive ‖W‖ to 1."""
    model, X, _ = instance("ling2023", N=10, width=12)
    y = torch.full((10,), 1e4, dtype=F64)
    history = gradient_flow(model, X, y, 10.0, method=method, rtol=1e-4, stop=eq.Stop(max_steps=100))
    assert "no equilibrium" in history.stopped
    assert "smaller targets" in history.advice
    assert history.times[-1] < 10.0
    value = float(0.5 * (model(X, stop=eq.Stop(max_steps=5000)) - y).square().sum().detach())
    assert value == pytest.approx(history.loss[-1], rel=1e-5)


def test_a_flow_that_slides_along_a_kink_is_not_waited_for():
    model, X, y = instance("gao2022", N=4, width=6)
    history = gradient_flow(model, X, y, 0.02, method="BDF", max_evaluations=200)
    assert "200 evaluations" in history.stopped
    assert "slides along a kink" in history.advice
    assert 0.002 < history.times[-1] < 0.02
    assert history.loss[-1] < history.loss[0]


def test_what_is_wrong_is_named():
    model, X, y = delm(4, 12, 0.8)
    for bad in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="time must be"):
            gradient_flow(model, X, y, bad)
    for options, words in (
        ({"method": "RK23"}, "method must be one of 'auto', 'BDF'"),
        ({"rtol": -1.0}, "rtol must be"),
        ({"atol": 0.0}, "atol must be"),
        ({"points": 0}, "points must be"),
        ({"points": [0.5, 0.2]}, "points must be increasing"),
        ({"points": [2.0]}, r"in \[0, 1\]"),
        ({"measure": -1}, "measure must be"),
        ({"max_evaluations": 0}, "max_evaluations must be"),
        ({"X_test": X}, "go together"),
    ):
        with pytest.raises(ValueError, match=words):
            gradient_flow(model, X, y, 1.0, **options)
    with pytest.raises(ValueError, match=r"y must be \(12, 1\)"):
        gradient_flow(model, X, y[:, 0], 1.0)
    with pytest.raises(TypeError, match=r"gradient_flow needs an affine family.* Got OptEq instead"):
        gradient_flow(eq.OptEq(4, 6, 9), torch.ones(2, 4), torch.ones(2), 1.0)
    wide = network("ling2023", width=100)
    with pytest.raises(ValueError, match="dense Jacobian, for at most 6000 parameters"):
        gradient_flow(wide, *data(wide), 1.0, method="LSODA")


def test_a_certificate_of_something_else_is_refused():
    model, X, y = delm(4, 12, 0.8)
    certificate = eq.certify(model, X, y, theorem="kawaguchi2021")
    with pytest.raises(ValueError, match="about other y"):
        gradient_flow(model, X, -y, 1.0, certificate=certificate)
    descent = eq.certify(model, X, y, theorem="two_timescale")
    assert descent.proved
    with pytest.raises(ValueError, match="not about gradient flow"):
        gradient_flow(model, X, y, 1.0, certificate=descent)


def test_the_first_step_reads_no_unset_memory(monkeypatch):
    """scipy's BDF subtracts a row of its table of differences before anything was written there."""
    monkeypatch.setattr(np, "empty", lambda shape, *args, **kwargs: np.full(shape, np.inf, *args, **kwargs))
    solver = GaussNewtonBDF(lambda t, y: -y, 0.0, np.ones(3), 1.0, lambda t, y: None)
    assert np.isfinite(solver.D).all()
