import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from contracts.solver import SolverContract
from equipoise.solve import Broyden
from problems import contraction, exact_affine, monotone_weight


class TestBroyden(SolverContract):
    solver = Broyden()


class TestBroydenOfShortMemory(SolverContract):
    solver = Broyden(memory=3, growth=10.0)


def iterates(f, z0, solver, row=0, **kwargs):
    solution = eq.fixed_point(f, z0, solver=solver, trace=True, **kwargs)
    return solution, solution.trace.iterates(row)


def test_the_iterates_are_those_of_the_dense_formula():
    weight, bias = contraction(1, 7, 0.9, seed=0)
    problem = eq.AffineMap(weight, bias, "tanh")
    solution, found = iterates(problem, 3 * bias, Broyden(memory=30), stop=eq.Stop(rtol=1e-9))
    assert solution.counts.fallbacks == 0

    def residual(z):
        return (problem(z[None]) - z[None])[0]

    z, h = 3 * bias[0], -torch.eye(7, dtype=torch.float64)
    for k in range(len(found)):
        torch.testing.assert_close(found[k], z, rtol=1e-8, atol=1e-10)
        s = -h @ residual(z)
        y = residual(z + s) - residual(z)
        h = h + torch.outer(s - h @ y, s @ h) / (s @ h @ y)
        torch.testing.assert_close(h @ y, s)
        z = z + s


def test_in_one_dimension_it_is_the_secant_method():
    def f(z):
        return torch.cos(z)

    _, found = iterates(f, torch.full((1, 1), 3.0, dtype=torch.float64), Broyden(), stop=eq.Stop(rtol=1e-12))
    z = found[:, 0]
    g = f(z) - z
    secant = z[1:-1] - g[1:-1] * (z[1:-1] - z[:-2]) / (g[1:-1] - g[:-2])
    torch.testing.assert_close(z[2:], secant, rtol=1e-9, atol=1e-9)
    assert len(z) <= 10  # superlinear: plain iteration needs 70 steps


@pytest.mark.parametrize("d", [1, 3, 8])
def test_a_linear_map_ends_in_at_most_twice_as_many_steps_as_dimensions(d):
    # [Gay 1979]: exact in 2d steps on any nonsingular linear system, here one on which plain steps diverge.
    weight = monotone_weight(d, margin=0.5, scale=1.0, seed=d)
    bias = torch.randn(4, d, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
    solution = eq.fixed_point(
        eq.AffineMap(weight, bias, "identity"), solver=Broyden(memory=2 * d + 1), stop=eq.Stop(rtol=1e-8)
    ).raise_if_failed()
    assert int(solution.steps.max()) <= 2 * d + 1
    exact = torch.linalg.solve(torch.eye(d, dtype=torch.float64) - weight, bias.T).T
    torch.testing.assert_close(solution.value, exact, rtol=1e-6, atol=1e-6)


def test_a_full_memory_starts_afresh_from_the_best_point_without_a_count():
    weight, bias = contraction(1, 20, 0.95, seed=3)
    weight = (weight + weight.T) / 2
    weight *= 0.95 / torch.linalg.matrix_norm(weight, ord=2)
    problem = eq.AffineMap(weight, bias, "identity")
    memory = 4
    solution, found = iterates(problem, 10 * bias, Broyden(memory=memory))
    assert solution.counts.fallbacks == 0
    residuals = solution.trace.residuals(0)
    period = memory + 1  # one plain step, then one step for each term
    assert len(found) > 3 * period
    for k in range(period, len(found) - 1, period):
        best = found[int(residuals[: k + 1].argmin())]
        torch.testing.assert_close(found[k + 1], problem(best[None])[0])


@given(
    m=st.integers(1, 15),
    q=st.floats(0.05, 0.9),
    far=st.floats(0.0, 1e4),
    memory=st.integers(1, 25),
    growth=st.floats(1.0, 1e3),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60)
def test_a_contraction_converges_from_any_start(m, q, far, memory, growth, seed):
    weight, bias = contraction(3, m, q, seed)
    start = far * torch.randn(3, m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    solution = eq.fixed_point(
        eq.AffineMap(weight, bias), start, solver=Broyden(memory, growth), stop=eq.Stop(max_steps=20_000)
    ).raise_if_failed()
    torch.testing.assert_close(solution.value, exact_affine(weight, bias), rtol=1e-6, atol=1e-6)


def test_a_vanishing_denominator_takes_a_counted_plain_step():
    # z + 1 below 5: y = 0, so that sᵀH y = 0 there. The plain steps lead out of it to the solution 6. The
    # second row starts there: it has ended, and is not counted.
    z0 = torch.tensor([[0.0], [6.0]], dtype=torch.float64)
    solution = eq.fixed_point(lambda z: torch.where(z < 5, z + 1, z / 2 + 3), z0, solver=Broyden())
    assert solution.converged.all()
    torch.testing.assert_close(solution.value, torch.full_like(z0, 6.0))
    assert solution.counts.fallbacks == 4  # from z = 1, 2, 3, 4


def test_a_step_that_makes_things_worse_is_undone_and_counted():
    # f(z) − z has slope −0.1, then −1.9: what is learnt of the first part overshoots into the second.
    def f(z):
        return torch.minimum(0.9 * z + 0.5, 4.1 - 0.9 * z)

    z0 = torch.full((1, 1), -20.0, dtype=torch.float64)
    free, wild = iterates(f, z0, Broyden(growth=1e3))
    guarded, tame = iterates(f, z0, Broyden(growth=1.0))
    for solution in (free, guarded):
        assert solution.converged.all()
        assert float(solution.value) == pytest.approx(4.1 / 1.9)
    g = (f(tame) - tame).abs().flatten()
    rises = torch.nonzero(g[1:] > g.cummin(dim=0).values[:-1]).flatten() + 1
    assert len(rises)
    for k in rises.tolist():
        best = tame[int(g[:k].argmin())]
        again = f(best)
        torch.testing.assert_close(tame[k + 1], again)
        slope = ((f(again) - again) - (f(best) - best)) / (again - best)  # learnt from the best point alone
        torch.testing.assert_close(tame[k + 2], again - (f(again) - again) / slope)
    assert guarded.counts.fallbacks == len(rises)
    assert free.counts.fallbacks == 0
    assert not torch.equal(wild[-2:], tame[-2:])


def test_rows_that_start_afresh_at_different_steps_do_not_mix():
    weight, bias = contraction(6, 12, 0.95, seed=5)
    weight = weight + weight.T
    weight *= 0.95 / torch.linalg.matrix_norm(weight, ord=2)  # eigenvalues of both signs make residuals rise
    problem = eq.AffineMap(weight, bias, "identity")
    start = 5 * bias.flip(1)
    together = eq.fixed_point(problem, start, solver=Broyden(growth=1.0), trace=True).raise_if_failed()
    assert together.counts.fallbacks > 2
    for row in range(6):
        only = torch.tensor([row])
        alone = eq.fixed_point(problem.take(only), start[only], solver=Broyden(growth=1.0), trace=True)
        torch.testing.assert_close(
            together.trace.iterates(row), alone.trace.iterates(0), rtol=1e-7, atol=1e-9
        )


@pytest.mark.parametrize(
    ("option", "value"),
    [("memory", 0), ("memory", 2.5), ("memory", True), ("growth", 0.9), ("growth", float("inf"))],
)
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(ValueError, match=f"{option} must"):
        Broyden(**{option: value})
