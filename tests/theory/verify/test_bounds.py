"""(V1) against exact arithmetic, and numbers that are chosen to break it."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verified_networks import exact, exact_units, inputs, network

import equipoise as eq
from equipoise.linalg import gamma
from equipoise.theory.register import facts
from equipoise.theory.verify.bounds import Functionals, Problem, both_bounds, lower_bounds
from equipoise.theory.verify.network import UnitNetwork
from equipoise.theory.verify.outputs import Wanted
from equipoise.theory.verify.sets import InputSets


def exactly(net, low, high, w, kappa, t, nu, lower, upper):
    """The right side of (V1) in fractions, with W as it is stored in the network."""
    n, d = net.inputs.shape
    W, U, u = exact(net.weight), exact(net.inputs), exact(net.offset)
    total = t
    for i in range(n):
        g = w[i] + sum(W[j][i] * nu[j] for j in range(n))
        lam = nu[i] - kappa[i]
        ends = [p for p in (low[i], high[i], Fraction(0)) if low[i] <= p <= high[i]]
        total += min(g * max(p, Fraction(0)) - lam * p for p in ends) + nu[i] * u[i]
    for j in range(d):
        a = sum(nu[i] * U[i][j] for i in range(n))
        total += min(a * lower[j], a * upper[j])
    return total


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([1e-300, 1e-9, 1.0, 1e6]))
def test_an_evaluation_is_below_the_exact_value_and_near_it(seed, size):
    g = torch.Generator().manual_seed(seed)
    net = facts(network("monotone", seed=seed % 7)).unit_network()
    n, d = net.inputs.shape
    X = inputs(d, 1, seed)
    sets = InputSets.of_box(X - 0.1, X + 0.2)
    problem, at = Problem.of(net, sets), torch.zeros(1, dtype=torch.long)
    low = torch.randn(1, n, dtype=torch.float64, generator=g)
    high = low + torch.rand(1, n, dtype=torch.float64, generator=g)
    nu = size * torch.randn(1, n, dtype=torch.float64, generator=g)
    w = torch.randn(1, n, dtype=torch.float64, generator=g)
    zero = torch.zeros(1, dtype=torch.float64)
    box = [exact(t[0]) for t in (sets.lower, sets.upper)]
    bounds = exact(low[0]), exact(high[0])
    value = lower_bounds(problem, at, low, high, Functionals(w, zero, 0 * w, zero), nu)
    none = [Fraction(0)] * n
    want = exactly(net, *bounds, exact(w[0]), none, Fraction(0), exact(nu[0]), *box)
    assert Fraction(float(value)) <= want
    assert float(value) >= float(want) - 1e-10 * (1 + abs(float(want)) + size)

    unit = torch.tensor([seed % n])
    below, above = both_bounds(problem, at, low, high, Functionals.of_units(unit, n), nu)
    kappa = [Fraction(int(i == seed % n)) for i in range(n)]
    want = exactly(net, *bounds, none, kappa, Fraction(0), exact(nu[0]), *box)
    assert Fraction(float(below)) <= want
    minus = [-v for v in exact(nu[0])]
    want = exactly(net, *bounds, none, [-v for v in kappa], Fraction(0), minus, *box)
    assert Fraction(float(above)) >= -want


def test_every_rounding_of_a_sum_over_many_units_counts():
    """Σ h_i of n units with h_i = 1: n − 1 additions, in whatever order they are made."""
    n = 256
    one, zero = torch.ones(1, n, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    net = UnitNetwork(
        weight=torch.zeros(n, n, dtype=torch.float64),
        weight_error=0.0,
        inputs=torch.zeros(n, 1, dtype=torch.float64),
        offset=0 * one[0],
        readout=one,
        readout_error=0.0,
        shift=zero,
        resolvent=1.0,
    )
    problem, at = Problem.of(net, InputSets.of_box(zero[None], zero[None])), torch.zeros(1, dtype=torch.long)
    value = lower_bounds(problem, at, one, one, Functionals(one, zero, 0 * one, zero), 0 * one)
    assert n * (1 - Fraction(gamma(2 * n))) <= Fraction(float(value)) <= n * (1 - Fraction(gamma(n - 1)))


def test_what_is_wanted_is_off_by_the_rounding_of_its_constant():
    net = replace(facts(network("monotone")).unit_network(), shift=torch.tensor([1e9, 2e9, 4e9]).double())
    X = inputs(3, 1)
    problem, at = Problem.of(net, InputSets.of_box(X, X)), torch.zeros(1, dtype=torch.long)
    Q, q = torch.ones(1, 3, dtype=torch.float64), torch.full((1,), 1e9, dtype=torch.float64)
    found = Wanted(1, matrix=Q, constant=q).functionals(problem, at, at)
    assert float(found.t_error) >= gamma(4) * 8e9  # three products, and their sum with q


def test_a_multiplier_that_is_no_number_bounds_nothing():
    net = facts(network("gaussian")).unit_network()
    X = inputs(3, 1)
    problem, at = Problem.of(net, InputSets.of_box(X, X + 0.1)), torch.zeros(1, dtype=torch.long)
    what = Functionals.of_units(torch.tensor([0]), 4)
    low, high = torch.full((1, 4), -1.0).double(), torch.full((1, 4), 1.0).double()
    for bad in (torch.nan, torch.inf, -torch.inf, 1e308):
        nu = torch.full((1, 4), bad, dtype=torch.float64)
        assert lower_bounds(problem, at, low, high, what, nu).item() == -torch.inf
    assert lower_bounds(problem, at, -torch.inf + low, high, what, 0 * low).item() == -torch.inf


def test_the_fall_over_a_ball_within_a_box_is_that_of_many_points_and_near_it():
    g = torch.Generator().manual_seed(0)
    X = torch.tensor([[0.0, 0.5, 1.0, 0.3], [0.2, 0.9, 0.0, 0.0]], dtype=torch.float64)
    sets = InputSets.around(X, 0.4, "l2", torch.tensor(0.0).double(), torch.tensor(1.0).double())
    a = torch.randn(2, 4, dtype=torch.float64, generator=g)
    fall, rise = sets.fall(a, torch.arange(2), both=True)
    points = sets.centre[:, None] + 0.8 * (torch.rand(2, 200_000, 4, dtype=torch.float64, generator=g) - 0.5)
    points = points.clamp(0.0, 1.0)
    inside = (points - X[:, None]).norm(dim=2) <= 0.4
    moved = ((points - X[:, None]) * a[:, None]).sum(dim=2).masked_fill(~inside, 0.0)
    assert bool((-moved.amin(dim=1) <= fall).all())
    assert bool((moved.amax(dim=1) <= rise).all())
    assert bool((-moved.amin(dim=1) >= 0.85 * fall).all())
    assert bool((sets.contains(sets.centre + sets.step_to(a, torch.arange(2)) * (1 - 1e-9))).all())


def test_the_fall_over_a_ball_is_not_lost_where_its_square_is():
    X, wide = torch.zeros(1, 3, dtype=torch.float64), torch.tensor(math.inf).double()
    a = torch.tensor([[1.0, -2.0, 2.0]], dtype=torch.float64)
    for size in (2.0**-560, 2.0**-300, 1.0, 2.0**300):
        sets = InputSets.around(X, size, "l2", -wide, wide)
        (fall,), (rise,) = sets.fall(a, torch.zeros(1, dtype=torch.long), both=True)
        assert 3 * size <= float(fall) <= 3.001 * size
        assert 3 * size <= float(rise) <= 3.001 * size


def test_what_products_lose_is_in_the_fall_over_a_wide_box():
    """ν U underflows to 0, and is worth 1e-40 over inputs of 1e300."""
    net = replace(facts(network("monotone")).unit_network(), inputs=torch.full((4, 3), 1e-170).double())
    X = torch.zeros(1, 3, dtype=torch.float64)
    problem = Problem.of(net, InputSets.of_box(X - 1e300, X + 1e300))
    zero, at = torch.zeros(1, 4, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    what = Functionals(zero, zero[:, 0], zero, zero[:, 0])
    nu, low = torch.full((1, 4), 1e-170).double(), torch.full((1, 4), -1.0).double()
    value = float(lower_bounds(problem, at, low, -low, what, nu))
    none = [Fraction(0)] * 4
    box = [exact(t[0]) for t in (problem.sets.lower, problem.sets.upper)]
    bounds = exact(low[0]), exact(-low[0])
    assert Fraction(value) <= exactly(net, *bounds, none, none, Fraction(0), exact(nu[0]), *box)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("size", [2.0**-600, 2.0**-560, 1.0, 2.0**560])
def test_the_first_bounds_hold_whatever_the_size_of_the_weights(size, norm):
    """U and u of any size: the pre-activations of inputs of the set lie between the first bounds."""
    net = facts(network("gaussian", n=6, seed=4)).unit_network()
    sized = replace(net, inputs=size * net.inputs, offset=size * net.offset)
    X, wide = inputs(3, 4), torch.tensor(math.inf).double()
    sets = InputSets.around(X, 0.25, norm, -wide, wide)
    low, high, _ = sized.first_bounds(Problem.of(sized, sets))
    ends = torch.tensor(list(itertools.product([-0.25, 0.25], repeat=3)), dtype=torch.float64)
    for end in ends if norm == "linf" else ends / math.sqrt(3) * (1 - 1e-12):
        b, _ = net.injection(X + end)
        p = size * torch.addmm(b, net.equilibria(b), net.weight.T)
        assert bool(((low <= p) & (p <= high)).all())
    assert bool((high - low <= size * 100).all())


SIZES = [0.0, 5e-324, 1e-310, 1e-160, 1e-16, 1.0, 1.0 + 2**-52, 3.0, 1e16, 1e150, 1e300]
strange = st.builds(lambda s, m: s * m, st.sampled_from([-1.0, 1.0]), st.sampled_from(SIZES))
usual = st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 1.5, 3.0])
number = st.one_of(usual, usual, usual, usual, usual, strange)


@settings(max_examples=20, deadline=None)
@given(st.lists(number, min_size=18, max_size=18), st.sampled_from([0.0, 1e-300, 0.1, 1e10]))
def test_strange_floats_never_give_a_false_proof(values, epsilon):
    """Every corner and the centre of a proved box, in fractions, get the class that was proved."""
    model = eq.Monotone(1, 2, margin=0.5, outputs=2, bias=True, output_bias=True, dtype=torch.float64)
    v = torch.tensor(values, dtype=torch.float64)
    with torch.no_grad():
        for p, (start, stop) in zip(
            (model.A, model.B, model.U, model.u, model.bias, model.c),
            ((0, 4), (4, 8), (8, 10), (10, 14), (14, 16), (16, 18)),
            strict=True,
        ):
            p.copy_(v[start:stop].reshape(p.shape))
    X = torch.tensor([[0.25], [1.0]], dtype=torch.float64)
    for label in (0, 1):
        y = torch.full((2,), label)
        if not bool(torch.isfinite(model.weight()).all()):
            with pytest.raises(ValueError, match="nothing can be verified"):
                eq.verify_predictions(model, X, y, epsilon=epsilon)
            return
        found = eq.verify_predictions(model, X, y, epsilon=epsilon, nodes=8, attack=(0, 1))
        A, B, U, C, bias, c = (
            exact(p.detach()) for p in (model.A, model.B, model.U, model.u, model.bias, model.c)
        )
        W = [
            [
                Fraction(i == j) / 2 - sum(A[m][i] * A[m][j] for m in (0, 1)) + B[i][j] - B[j][i]
                for j in (0, 1)
            ]
            for i in (0, 1)
        ]
        for row in torch.nonzero(found.proved | found.refuted).flatten().tolist():
            at = Fraction(float(X[row]))
            points = [at, at - Fraction(epsilon), at + Fraction(epsilon)]
            if bool(found.refuted[row]):
                points = [Fraction(float(found.counterexample[row]))]
                assert abs(points[0] - at) <= Fraction(epsilon)
            for x in points:
                h = exact_units(W, [U[i][0] * x + bias[i] for i in (0, 1)])
                score = [h[0] * C[0][k] + h[1] * C[1][k] + c[k] for k in (0, 1)]
                ahead = score[label] - score[1 - label]
                assert ahead > 0 if bool(found.proved[row]) else ahead < 0


def test_a_network_whose_readout_cancels_is_not_believed():
    """Two huge equal contributions: the margin that floats see is rounding, and proves nothing."""
    model = eq.Monotone(1, 2, margin=1.0, outputs=2, output_bias=True, dtype=torch.float64)
    with torch.no_grad():
        for p in (model.A, model.B):
            p.zero_()
        model.U.copy_(torch.tensor([[1.0], [1.0]]))
        model.u.copy_(torch.tensor([[1e17, 0.0], [-1e17, 0.0]]))
        model.c.copy_(torch.tensor([1.0, 0.0]))
    X = torch.ones(1, 1, dtype=torch.float64)
    found = eq.verify_predictions(model, X, torch.tensor([0]), epsilon=0.1, nodes=4)
    assert bool(found.unknown)


def test_the_functionals_of_classes_are_differences_of_readouts():
    net = facts(network("monotone")).unit_network()
    box = torch.zeros(2, net.dimension, dtype=torch.float64)
    problem = Problem.of(net, InputSets.of_box(box, box + 1))
    wanted = Wanted(3, labels=torch.tensor([2, 0]))
    what = wanted.functionals(problem, torch.tensor([0, 1]), torch.tensor([1, 2]))
    assert torch.allclose(
        what.w, torch.stack([net.readout[2] - net.readout[1], net.readout[0] - net.readout[2]])
    )
    assert torch.allclose(what.t, torch.stack([net.shift[2] - net.shift[1], net.shift[0] - net.shift[2]]))


@pytest.mark.parametrize("epsilon", [0.1, 1e-17, 0.0])
def test_the_outer_box_holds_the_set_and_the_inner_one_lies_in_it(epsilon):
    X = torch.tensor([[0.1, 1.0 / 3, 1.0, 1e-300]], dtype=torch.float64)
    low, high = torch.tensor(0.0).double(), torch.tensor(1.0).double()
    sets = InputSets.around(X, epsilon, "linf", low, high)
    for j, x in enumerate(exact(X[0])):
        lower, upper = max(x - Fraction(epsilon), 0), min(x + Fraction(epsilon), 1)
        ends = [
            Fraction(float(t[0, j])) for t in (sets.lower, sets.inner_lower, sets.inner_upper, sets.upper)
        ]
        assert ends[0] <= lower <= ends[1] <= x <= ends[2] <= upper <= ends[3]
        assert abs(Fraction(float(sets.centre[0, j])) - lower) <= Fraction(float(sets.reach[0, j]))
