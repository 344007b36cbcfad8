import pytest
import torch

import equipoise as eq
from contracts.solver import SolverContract
from problems import contraction


class TestAnderson(SolverContract):
    solver = eq.Anderson()
    row_tolerance = 1e-6


class TestDampedAnderson(SolverContract):
    solver = eq.Anderson(memory=3, damping=0.7, regularisation=1e-12)
    row_tolerance = 1e-6


def test_anderson_on_a_linear_map_ends_in_as_many_steps_as_dimensions():
    weight, bias = contraction(1, 5, 0.99, seed=0)
    solution = eq.fixed_point(
        eq.AffineMap(weight, bias, "identity"),
        solver=eq.Anderson(memory=5, regularisation=0.0),
        stop=eq.Stop(rtol=1e-9),
    )
    assert int(solution.steps[0]) <= 8
    picard = eq.fixed_point(
        eq.AffineMap(weight, bias, "identity"), solver=eq.Picard(), stop=eq.Stop(rtol=1e-9, max_steps=5000)
    )
    assert int(picard.steps[0]) > 20


def test_a_singular_least_squares_problem_takes_a_counted_plain_step():
    # In one dimension the second difference is parallel to the first: with no regularisation it is singular.
    problem = eq.AffineMap(
        torch.tensor([[0.5]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64), "identity"
    )
    solution = eq.fixed_point(
        lambda z: torch.sin(z) * 0.9 + 1,
        torch.zeros(2, 1, dtype=torch.float64),
        solver=eq.Anderson(memory=5, regularisation=0.0),
    )
    assert solution.counts.fallbacks > 0
    assert solution.converged.all()
    assert eq.fixed_point(problem, solver=eq.Anderson()).converged.all()


@pytest.mark.parametrize(
    ("option", "value"), [("memory", 0), ("memory", 2.5), ("damping", 0.0), ("regularisation", -1.0)]
)
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(ValueError, match=f"{option} must"):
        eq.Anderson(**{option: value})
