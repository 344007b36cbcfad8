"""How far equilibria and weights move: inequalities (1)-(8) of docs/theory.md on random instances."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from certifiable import FAMILIES, data, instance, network
from equipoise.linalg import Interval
from equipoise.theory import facts
from equipoise.theory.families.linear import Softmax
from equipoise.theory.families.monotone import Monotonic
from equipoise.theory.geometry import Contracting
from equipoise.theory.instance import Instance

TIGHT = eq.Stop(rtol=1e-13, max_steps=5000)
SEEDS = st.integers(0, 10_000)
norm = lambda M: float(torch.linalg.matrix_norm(M.detach(), ord=2))


def resolvent(family, model):
    """R of the weights as they are, exactly."""
    W = model.weight().detach()
    if family == "hieu2022":
        return 1 / model.margin
    if family == "kawaguchi2021":
        return norm(torch.linalg.inv(torch.eye(len(W), dtype=W.dtype) - W))
    return 1 / (1 - norm(W))


def adjoint(model, Z, X, r):
    """Λ, row by row from its definition."""
    W, a = model.weight().detach(), model.readout_weight.detach().reshape(model.width, -1)
    D, eye = model.masks(Z, X), torch.eye(model.width, dtype=Z.dtype)
    r = r.reshape(len(X), -1)
    rows = [d * torch.linalg.solve(eye - W.T * d, a @ ri) for d, ri in zip(D, r, strict=True)]
    return torch.stack(rows)


def moved(model, X, y, size):
    """The model after one hidden gradient step of ½‖r‖², with Z before and after, and r."""
    Z = model.solve(X, stop=TIGHT).value
    with torch.no_grad():
        r = model.readout(Z) - y
    V = model.adjoint(Z, X, stop=TIGHT)
    gradients = model.pullback(V, r, Z, X)
    after = copy.deepcopy(model)
    with torch.no_grad():
        for name in model.hidden_names:
            after.get_parameter(name).sub_(size * gradients[name])
    return after, Z, after.solve(X, stop=TIGHT).value, r


def coordinate(family, model):
    """c, the coordinate of the ball."""
    return {
        "ling2023": lambda: model.W,
        "gao2022": lambda: model.gamma * model.A,
        "hieu2022": lambda: model.A,
        "kawaguchi2021": lambda: model.A,
    }[family]().detach()


@given(seed=SEEDS)
@settings(max_examples=15)
@pytest.mark.parametrize("family", FAMILIES)
def test_1_the_resolvent_is_bounded_for_every_mask(family, seed):
    model = network(family, width=12, seed=seed)
    W, eye = model.weight().detach(), torch.eye(12, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    masks = [torch.ones(12, dtype=torch.float64)]
    if family != "kawaguchi2021":  # σ = id has the mask 1 alone
        masks += [torch.rand(12, dtype=torch.float64, generator=generator) for _ in range(3)]
        masks += [(torch.rand(12, generator=generator) < 0.5).double() for _ in range(3)]
    for d in masks:
        found = norm(torch.linalg.solve(eye - d[:, None] * W, torch.diag(d)))
        assert found <= resolvent(family, model) * (1 + 1e-9)


@given(seed=SEEDS, size=st.floats(1e-6, 0.05))
@settings(max_examples=15)
@pytest.mark.parametrize("family", FAMILIES)
def test_2_two_equilibria_differ_by_no_more_than_their_weights(family, seed, size):
    model, X, _ = instance(family, N=6, width=12, seed=seed)
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in model.hidden_names:
            p = other.get_parameter(name)
            p.add_(size * torch.randn(p.shape, dtype=p.dtype, generator=generator) / math.sqrt(len(p)))
    Z1, Z2 = other.solve(X, stop=TIGHT).value, model.solve(X, stop=TIGHT).value
    dW = float((other.weight() - model.weight()).detach().norm())
    du = float((other.injection(X) - model.injection(X)).detach().norm())
    bound = resolvent(family, other) * (norm(Z2) * dW + du)
    assert float((Z1 - Z2).norm()) <= bound * (1 + 1e-9) + 1e-11


@given(seed=SEEDS)
@settings(max_examples=10)
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_3_the_adjoint_is_bounded_and_gives_the_gradient(family, outputs, seed):
    model, X, y = instance(family, N=6, width=12, outputs=outputs, seed=seed)
    Z = model.solve(X, stop=TIGHT).value
    with torch.no_grad():
        r = model.readout(Z) - y
    L = adjoint(model, Z, X, r)
    a = model.readout_weight.detach().reshape(model.width, -1)
    assert float(L.norm()) <= resolvent(family, model) * norm(a) * float(r.norm()) * (1 + 1e-9)
    if family == "ling2023":  # G = ΛᵀZ is ∂L/∂W
        loss = 0.5 * (model(X, stop=TIGHT) - y).square().sum()
        (expected,) = torch.autograd.grad(loss, model.W)
        torch.testing.assert_close(L.T @ Z, expected, rtol=1e-8, atol=1e-10)


@given(seed=SEEDS, size=st.floats(1e-7, 1e-3))
@settings(max_examples=15)
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("family", [*FAMILIES, "hieu2022 with bias"])
def test_4_and_5_a_hidden_step_moves_z_and_the_ball_by_no_more_than_k_and_beta_say(
    family, outputs, seed, size
):
    family, bias = family.split()[0], "bias" in family
    model, X, y = instance(
        family, N=6, width=12, outputs=outputs, seed=seed, **({"bias": True} if bias else {})
    )
    after, Z, Z_after, r = moved(model, X, y, size)
    step = float((coordinate(family, after) - coordinate(family, model)).norm())
    a = norm(model.readout_weight.detach().reshape(model.width, -1))
    ball = facts(model).geometry(Instance(model, X, y)).ball(Interval(step), Interval(norm(Z)))
    assert ball.R.lo > 0
    assert (
        float((Z_after - Z).norm())
        <= size * ball.R.hi**2 * a * ball.K.hi * float(r.norm()) * (1 + 1e-9) + 1e-11
    )
    assert step <= size * ball.R.hi * a * ball.beta.hi * float(r.norm()) * (1 + 1e-9)


@pytest.mark.parametrize("family", ["ling2023", "gao2022"])
def test_4_and_5_are_attained_by_a_network_of_one_neuron(family):
    if family == "ling2023":
        model = eq.GaussianReLU(1, 1, dtype=torch.float64)
        start = {"W": [[0.4]], "U": [[1.5]], "a": [0.7]}
    else:
        model = eq.ScaledReLU(1, 1, gamma=0.5, dtype=torch.float64)
        start = {"W": [[1.5]], "A": [[0.8]], "b": [0.7]}
    model.load_state_dict({n: torch.tensor(v, dtype=torch.float64) for n, v in start.items()})
    X, y, size = torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64), 1e-7
    after, Z, Z_after, r = moved(model, X, y, size)
    step = float((coordinate(family, after) - coordinate(family, model)).norm())
    ball = facts(model).geometry(Instance(model, X, y)).ball(Interval(step), Interval(float(Z)))
    assert float((Z_after - Z).norm()) / (size * ball.R.hi**2 * 0.7 * ball.K.hi * float(r)) == pytest.approx(
        1, rel=1e-4
    )
    assert step / (size * ball.R.hi * 0.7 * ball.beta.hi * float(r)) == pytest.approx(1, rel=1e-4)


@given(seed=SEEDS, size=st.floats(1e-6, 1e-2))
@settings(max_examples=15)
def test_6_symmetric_and_skew_parts_of_a_monotone_step_are_orthogonal(seed, size):
    generator = torch.Generator().manual_seed(seed)
    A, G = torch.randn(2, 9, 9, dtype=torch.float64, generator=generator).unbind()
    A2, dB = A + size * A @ (G + G.T), -size * (G - G.T)
    W_step = -(A2.T @ A2 - A.T @ A) + dB - dB.T
    top = max(norm(A), norm(A2))
    assert float(W_step.norm()) <= 4 * size * max(1.0, top**2) * float(G.norm()) * (1 + 1e-12)


def test_6_is_attained_by_a_skew_gradient():
    G = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    dB = -(G - G.T)
    assert float((dB - dB.T).norm()) == pytest.approx(4 * float(G.norm()))


@given(seed=SEEDS, size=st.floats(1e-3, 30.0))
@settings(max_examples=25)
def test_7_softmax_is_half_lipschitz_and_so_is_its_gradient(seed, size):
    generator = torch.Generator().manual_seed(seed)
    A, dA, G = (size * torch.randn(3, 6, 6, dtype=torch.float64, generator=generator)).unbind()
    S, S2 = torch.softmax(A, 0), torch.softmax(A + dA, 0)
    assert float((S2 - S).norm()) <= 0.5 * float(dA.norm())
    T = S * G
    assert float((T - S * T.sum(0)).norm()) <= 0.5 * float(G.norm()) * (1 + 1e-12)


def test_7_half_is_attained_by_two_equal_entries():
    s = torch.tensor([0.5, 0.5], dtype=torch.float64)
    J = torch.diag(s) - s[:, None] * s
    assert norm(J) == pytest.approx(0.5)


@given(seed=SEEDS, size=st.floats(1e-3, 3.0))
@settings(max_examples=20)
def test_8_the_resolvent_of_the_linear_family_in_a_ball(seed, size):
    model, X, y = instance("kawaguchi2021", N=4, width=10, seed=seed)
    at = facts(model).geometry(Instance(model, X, y))
    generator = torch.Generator().manual_seed(seed)
    step = size * torch.randn(10, 10, dtype=torch.float64, generator=generator)
    R = at.ball(Interval(float(step.norm())), Interval(1.0)).R.hi
    with torch.no_grad():
        model.A += step
    assert resolvent("kawaguchi2021", model) <= R * (1 + 1e-12)
    assert R <= math.sqrt(10) / (1 - model.gamma) * (1 + 1e-12)


# -- the objects --------------------------------------------------------------------------------------------


def test_the_formulas_are_those_of_the_table():
    S, delta = 3.0, 0.25
    assert Contracting(q=0.5, g=1.0, x=2.0).ball(delta, S) == (4.0, 13.0, 3.0)
    assert Contracting(q=0.5, g=0.5, x=2.0).ball(delta, S) == (4.0, 6.25, 0.75)
    assert Monotonic(a=1.75, mu=0.5, x=2.0).ball(delta, S) == (2.0, 4 * 4 * 9 + 4, 12.0)
    assert Monotonic(a=0.25, mu=0.5, x=2.0).ball(delta, S) == (2.0, 4 * 9 + 4, 3.0)
    assert Softmax(g=0.8, sigma=0.5, worst=0.1).ball(delta, S) == pytest.approx((2.5, 0.64 * 9 / 4, 1.2))
    assert Softmax(g=0.8, sigma=0.5, worst=0.1).ball(2.0, S).R == pytest.approx(10.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_floats_to_search_with_agree_with_the_intervals(family):
    model, X, y = instance(family)
    at = facts(model).geometry(Instance(model, X, y))
    delta = min(at.room, 1.0) / 2
    exact, searched = at.ball(Interval(delta), Interval(2.0)), at.as_floats().ball(np.array([delta]), 2.0)
    for sound, guess in zip(exact, searched, strict=True):
        assert sound.hi == pytest.approx(float(np.asarray(guess).item()), rel=1e-12)
        assert sound.hi >= sound.lo > 0


def test_room_ends_where_the_map_stops_contracting():
    model, X, y = instance("ling2023")
    at = facts(model).geometry(Instance(model, X, y))
    margin = 1 - float(torch.linalg.eigvalsh((model.W + model.W.T).detach() / 2)[-1])
    assert at.room == pytest.approx(margin, rel=1e-12)
    assert 1 - norm(model.W) < at.room <= margin + 1e-12
    for family in ("hieu2022", "kawaguchi2021"):
        model = network(family)
        X, y = data(model)
        assert facts(model).geometry(Instance(model, X, y)).room == math.inf


def test_a_trained_bias_is_one_more_column_of_x():
    model, X, y = instance("hieu2022", bias=True)
    at = facts(model).geometry(Instance(model, X, y))
    wide = torch.cat([X, torch.ones(len(X), 1, dtype=X.dtype)], dim=1)
    assert at.x.hi == pytest.approx(norm(wide), rel=1e-9)
    assert at.x.hi > norm(X) * (1 + 1e-6)
