import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from contracts.solver import SolverContract
from equipoise.solve import (
    SAM,
    Regulariser,
    decorrelation,
    half_squared_distance,
    half_squared_norm,
    inverse_norm,
)

TARGET = torch.linspace(-1, 1, 6, dtype=torch.float64)
ENERGIES = [  # R of one row, for autograd
    (half_squared_norm(), lambda z: 0.5 * z @ z),
    (half_squared_distance(TARGET), lambda z: 0.5 * (z - TARGET) @ (z - TARGET)),
    (inverse_norm(0.5), lambda z: 1 / (z @ z + 0.5)),
    (decorrelation(2, eps=0.1), lambda z: _decorrelation(z, 2, 0.1)),
    (decorrelation(3, eps=2.0), lambda z: _decorrelation(z, 3, 2.0)),
]


def _decorrelation(z, channels, eps):
    rows = z.reshape(channels, -1)
    y = rows / (rows.square().sum(dim=1, keepdim=True) + eps).sqrt()
    return 0.5 * (y @ y.T - torch.eye(channels, dtype=z.dtype)).square().sum()


class TestSAM(SolverContract):
    solver = SAM()
    stop = eq.Stop(rtol=0.05, max_steps=4000, patience=4000)
    geometric = False


class TestFasterSAM(SolverContract):
    solver = SAM(rho=0.8, c=0.09)
    stop = eq.Stop(rtol=5e-3, max_steps=4000, patience=4000)
    geometric = False


# -- its purpose ------------------------------------------------------------------------------------------


def continuum():
    """T, nonexpansive, whose fixed points are the line A z = b in ℝ³; and the projection on that line."""
    a = torch.tensor([[1.0, 1.0, 1.0], [1.0, -1.0, 0.5]], dtype=torch.float64)
    b = torch.tensor([3.0, 1.0], dtype=torch.float64)
    inverse = torch.linalg.pinv(a)
    project = lambda z: z - (z @ a.T - b) @ inverse.T
    return lambda z: 0.7 * z + 0.3 * project(z), project


@pytest.mark.parametrize(
    ("regulariser", "preferred"),
    [
        (half_squared_norm(), torch.zeros(3)),
        (half_squared_distance(torch.tensor([1.0, 2.0, 3.0])), torch.tensor([1.0, 2.0, 3.0])),
    ],
    ids=["norm", "distance"],
)
@pytest.mark.parametrize(("rho", "c"), [(0.34, 0.32), (0.6, 0.19)])
def test_it_finds_the_fixed_point_that_r_prefers_at_the_rate_of_its_sequences(regulariser, preferred, rho, c):
    # β_k keeps the iterate off the fixed points, and λ_k draws it to 0 along them, which ½‖z‖² does anyway.
    order = rho if regulariser.name == "half_squared_norm" else min(rho, c)
    f, project = continuum()
    goal = project(preferred.double()[None])  # the nearest fixed point to the centre of R
    z0 = torch.tensor([[5.0, -4.0, 9.0], [-2.0, 0.0, 30.0]], dtype=torch.float64)
    solution = eq.fixed_point(
        f,
        z0,
        solver=SAM(regulariser, rho=rho, c=c),
        stop=eq.Stop(rtol=1e-12, max_steps=4000, patience=4000),
        trace=True,
    )
    for row in range(2):
        errors = (solution.trace.iterates(row) - goal).norm(dim=1)
        slope = math.log(errors[4000] / errors[400]) / math.log(10)
        assert slope == pytest.approx(-order, rel=0.08)
        assert errors[20] > 0.05 * goal.norm()  # 20 steps shrink, they do not select
        assert errors[4000] < 0.1 * goal.norm()
    plain = eq.fixed_point(f, z0, solver=eq.Picard(), stop=eq.Stop(rtol=1e-12))
    assert ((plain.value - goal).norm(dim=1) > 3).all()  # where plain iteration ends is an accident


def test_a_solver_after_it_ends_at_a_true_fixed_point_no_farther_off():
    f, project = continuum()
    goal = project(torch.zeros(1, 3, dtype=torch.float64))
    z0 = torch.tensor([[5.0, -4.0, 9.0]], dtype=torch.float64)
    stop = eq.Stop(rtol=1e-10, max_steps=500, patience=500)
    chosen = eq.fixed_point(f, z0, solver=SAM(), stop=stop)
    assert not chosen.converged.any()
    ended = eq.fixed_point(f, z0, solver=[SAM(), eq.Picard()], stop=stop).raise_if_failed()
    assert (ended.value - goal).norm() <= (chosen.value - goal).norm()
    assert (ended.value - goal).norm() < 1e-6  # along the line, selection is fast: exp(−Σ β_k γ)


def test_the_step_is_the_printed_one():
    quartic = Regulariser("quartic", lambda z: z**3, lipschitz=0.3, convex=True)
    f = lambda z: torch.cos(z)
    z0 = torch.tensor([[0.3, 0.8]], dtype=torch.float64)
    solution = eq.fixed_point(
        f, z0, solver=SAM(quartic, rho=0.5, c=0.2), stop=eq.Stop(max_steps=3), trace=True
    )
    z, eta, gamma = z0, min(math.sqrt(0.6), 0.5, 0.15), 1 / 0.6
    for k in (1, 2, 3):
        beta, lam = eta / k**0.5, eta / k**0.2
        z = beta * ((1 - gamma * lam) * z - gamma * z**3) + (1 - beta) * f(z)
        torch.testing.assert_close(solution.trace.points[k].value, z, rtol=1e-14, atol=1e-15)


# -- regularisers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("regulariser", "energy"), ENERGIES, ids=[r.name for r, _ in ENERGIES])
@given(seed=st.integers(0, 2**31), size=st.floats(0.0, 4.0))
@settings(max_examples=15)
def test_gradients_and_their_lipschitz_constants(regulariser, energy, seed, size):
    z = size * torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    z[2] *= 1e-3
    want = torch.stack([torch.func.grad(energy)(row) for row in z])
    torch.testing.assert_close(regulariser.gradient(z), want, rtol=1e-10, atol=1e-12)
    for row in z:
        hessian = torch.autograd.functional.hessian(energy, row)
        values = torch.linalg.eigvalsh(hessian)
        assert values.abs().max() <= regulariser.lipschitz * (1 + 1e-10)
        if regulariser.convex:
            assert values.min() >= 0


def test_the_constants_of_simple_regularisers_are_attained():
    zero = torch.zeros(6, dtype=torch.float64)
    for regulariser, energy in ENERGIES[:3]:
        hessian = torch.autograd.functional.hessian(energy, zero)
        assert torch.linalg.matrix_norm(hessian, ord=2) == pytest.approx(regulariser.lipschitz, rel=1e-12)


def test_a_target_follows_the_precision_of_the_state():
    gradient = half_squared_distance(TARGET).gradient(torch.ones(2, 6))
    assert gradient.dtype == torch.float32
    torch.testing.assert_close(gradient[0], 1 - TARGET.float())


def test_convexity_is_labelled():
    assert [r.convex for r, _ in ENERGIES] == [True, True, False, False, False]


def test_decorrelation_wants_whole_channels():
    with pytest.raises(ValueError, match="Got 7 entries"):
        eq.fixed_point(lambda z: 0.5 * z + 1, torch.ones(2, 7), solver=SAM(decorrelation(2)))


@pytest.mark.parametrize(("rho", "c"), [(0.0, 0.1), (0.5, 0.25), (0.5, 0.0), (float("nan"), 0.1)])
def test_exponents_out_of_range_are_refused(rho, c):
    with pytest.raises(ValueError, match="rho"):
        SAM(rho=rho, c=c)


@pytest.mark.parametrize(
    "make", [lambda: inverse_norm(0.0), lambda: decorrelation(0), lambda: decorrelation(2, 0.0)]
)
def test_parameters_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match="Got"):
        make()


def test_a_bare_function_is_not_a_regulariser():
    with pytest.raises(TypeError, match="half_squared_norm"):
        SAM(lambda z: z)
    with pytest.raises(ValueError, match="lipschitz must be"):
        Regulariser("flat", torch.zeros_like, 0.0, convex=True)
