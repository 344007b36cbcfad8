"""The one loop: statuses told apart, chains, compaction, starts and refusals, whatever the solver."""

from __future__ import annotations

import pytest
import torch

import equipoise as eq
from equipoise.solve import Status
from problems import contraction, exact_affine


@pytest.mark.parametrize("solver", [eq.Picard(), eq.Anderson(), eq.Broyden(), eq.Newton()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_state_that_runs_away_has_not_converged(solver, dtype):
    # z = z + 1 has no solution, yet ‖f(z) − z‖/‖z‖ falls without end as z grows.
    solution = eq.fixed_point(
        lambda z: z + 1, torch.zeros(2, 3, dtype=dtype), solver=solver, stop=eq.Stop(max_steps=20000)
    )
    assert not solution.converged.any()


def test_a_start_near_the_solution_may_improve_by_little():
    weight, bias = contraction(4, 6, 0.9, seed=0)
    problem = eq.AffineMap(weight, bias)
    good = eq.fixed_point(problem, stop=eq.Stop(rtol=1.2e-8), solver=eq.Picard())
    assert eq.fixed_point(problem, good, stop=eq.Stop(rtol=1e-8), solver=eq.Picard()).converged.all()


def test_growth_cycles_and_slowness_are_told_apart():
    rates = torch.tensor([[2.0], [-1.0], [0.999], [0.5]], dtype=torch.float64)
    solution = eq.fixed_point(
        lambda z, r: r * z + 1,
        torch.zeros(4, 1, dtype=torch.float64),
        args=(rates,),
        solver=eq.Picard(),
        stop=eq.Stop(rtol=1e-10, max_steps=400),
    )
    expected = [Status.diverged, Status.stalled, Status.max_steps, Status.converged]
    assert solution.status.tolist() == expected
    message = solution.explain_failure()
    for row, status in enumerate(expected[:3]):
        assert f"row {row}: {status.name}" in message
        assert status.remedy_after("Picard") in message


def test_a_chain_hands_on_only_the_rows_that_failed():
    # Rows 0 and 2 contract; row 1 is −3.5, on which Picard cycles and Newton ends at once.
    rates = torch.tensor([[0.5], [-3.5], [0.25]], dtype=torch.float64)
    f = lambda z, r: torch.relu(r * z + 1)
    chain = [eq.Picard(), eq.Newton()]
    solution = eq.fixed_point(f, torch.zeros(3, 1, dtype=torch.float64), args=(rates,), solver=chain)
    solution.raise_if_failed()
    torch.testing.assert_close(solution.value, 1 / (1 - rates), rtol=1e-7, atol=0)
    assert solution.counts.retried == 1
    assert solution.solver == "Picard → Newton"
    closure = eq.fixed_point(lambda z: f(z, rates), torch.zeros(3, 1, dtype=torch.float64), solver=chain)
    torch.testing.assert_close(closure.value, solution.value, rtol=1e-7, atol=0)


def test_finished_rows_are_dropped_where_that_is_possible_and_only_there():
    weight, bias = contraction(50, 8, 0.9, seed=1)
    bias[25:] *= 0  # half of the rows are solved at the start
    seen = []

    def f(z, b):
        seen.append(len(z))
        return torch.relu(z @ weight.T + b)

    solution = eq.fixed_point(f, torch.zeros_like(bias), args=(bias,), solver=eq.Picard())
    assert seen[0] == 50
    assert seen[1] == 25
    torch.testing.assert_close(solution.value, exact_affine(weight, bias), rtol=1e-6, atol=1e-6)
    assert solution.counts.row_evaluations == sum(seen)
    seen.clear()
    eq.fixed_point(lambda z: f(z, bias), torch.zeros_like(bias), solver=eq.Picard())
    assert set(seen) == {50}  # a closure holds the whole batch


def test_extrapolation_follows_a_straight_path_exactly():
    z, before = torch.tensor([[2.0]]), torch.tensor([[1.5]])
    assert eq.extrapolate(z, before).item() == 2.5
    assert eq.extrapolate(z, None) is z


def test_verify_judges_without_moving():
    weight, bias = contraction(3, 4, 0.5, seed=2)
    problem = eq.AffineMap(weight, bias)
    z = exact_affine(weight, bias)
    z[1] += 1
    judged = eq.verify(problem, z)
    assert judged.status.tolist() == [Status.converged, Status.max_steps, Status.converged]
    assert torch.equal(judged.value, z)
    assert judged.counts.evaluations == 1
    ones = eq.verify(torch.ones_like, torch.tensor([[float("nan")], [1.0]]))  # f(z) is finite, and z is not
    assert ones.status.tolist() == [Status.nonfinite, Status.converged]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"stop": eq.Stop(rtol=1e-9)},
            r"rtol must be at least 9.5e-07, what torch.float32 arithmetic can reach",
        ),
        ({"precision": "mixed"}, "z0 must be float64"),
        ({"precision": "double"}, "precision must be"),
        ({"solver": eq.Picard}, r"Picard\(\)"),
        ({"solver": []}, "at least one"),
        ({"solver": "anderson"}, "solver must be a Solver"),
        ({"args": (torch.ones(4, 1),)}, r"args\[0\] must have 2 rows"),
    ],
)
def test_bad_use_is_refused_in_words(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        eq.fixed_point(lambda z, *a: 0.5 * z, torch.ones(2, 3), **options)


@pytest.mark.parametrize(
    ("f", "z0", "message"),
    [
        (lambda z: z[:, :1], torch.ones(2, 3), r"shape \(2, 3\). Got \(2, 1\)"),
        (lambda z: z.double(), torch.ones(2, 3), "must return torch.float32"),
        (lambda z: (z, z), torch.ones(2, 3), "one tensor. Got tuple"),
        (lambda z: z, torch.ones(2, 0), "must not be empty"),
        (lambda z: z, torch.tensor(1.0), "batch-first"),
        (lambda z: z, torch.ones(2, 3, dtype=torch.int64), "floating dtype"),
        (lambda z: z, None, "z0 is required"),
        (3, torch.ones(2, 3), "f must be callable"),
        (lambda z: z, (torch.ones(2, 3), torch.ones(3, 3)), "share their batch size"),
    ],
)
def test_a_problem_that_does_not_fit_is_refused(f, z0, message):
    with pytest.raises((ValueError, TypeError), match=message):
        eq.fixed_point(f, z0)


@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": 0},
        {"max_steps": 1.5},
        {"rtol": -1.0},
        {"rtol": 0.0, "atol": 0.0},
        {"growth": 1.0},
        {"patience": 0},
    ],
)
def test_a_stop_that_makes_no_sense_is_refused(options):
    with pytest.raises(ValueError, match="|".join(options)):
        eq.Stop(**options)
    with pytest.raises(TypeError):
        eq.Stop(tolerance=1e-3)


def test_an_affine_map_of_wrong_parts_is_refused():
    good, bias = torch.eye(3) / 2, torch.ones(2, 3)
    for weight, b, message in (
        (torch.ones(2, 3), bias, "square"),
        (good, torch.ones(2, 4), r"\(N, 3\)"),
        (good.double(), bias, "share dtype"),
        (good * float("nan"), bias, r"finite. Got nan at \[0, 0\]"),
    ):
        with pytest.raises(ValueError, match=message):
            eq.AffineMap(weight, b)
    with pytest.raises(ValueError, match="activation must be one of"):
        eq.AffineMap(good, bias, "swish")
    with pytest.raises(ValueError, match="args and shared must be empty"):
        eq.fixed_point(eq.AffineMap(good, bias), args=(bias,))


def test_a_remedy_is_not_the_solver_that_failed():
    stalled = Status.stalled
    assert "Anderson()" in stalled.remedy
    assert "Picard" in stalled.remedy
    assert "Anderson()" not in stalled.remedy_after("Anderson → Picard")
    assert "Picard" not in stalled.remedy_after("Anderson → Picard")


def test_the_second_solver_of_a_chain_may_climb_before_it_arrives():
    """The residuals of this contraction rise at first, for fewer steps than the patience."""
    f = lambda z, c: torch.stack((0.9 * z[:, 0] + 50 * z[:, 1], 0.9 * z[:, 1]), dim=1) + c
    c = torch.tensor([[1.0, 0.1]], dtype=torch.float64)
    stop = eq.Stop(rtol=1e-8, patience=3, max_steps=400)
    patient = eq.Stop(rtol=1e-8, patience=20, max_steps=400)
    found = eq.fixed_point(f, torch.zeros(1, 2, dtype=torch.float64), (c,), solver=[eq.Picard()], stop=stop)
    assert not found.converged.any()
    solvers = [eq.Anderson(1, damping=1e-6), eq.Picard(0.9)]  # the first gets nowhere
    chain = eq.fixed_point(f, torch.zeros(1, 2, dtype=torch.float64), (c,), solver=solvers, stop=patient)
    assert chain.converged.all()


@pytest.mark.parametrize("solvers", [None, [eq.Anderson(), eq.Picard(0.9), eq.Picard(0.5)]])
def test_a_row_that_has_no_equilibrium_ends_every_solver_of_a_chain_by_its_patience(solvers):
    """z ↦ z + 1 is at a standstill in every solver: none may take all of its 500 steps."""
    shift = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    f = lambda z, s: torch.where(s == 0, 0.5 * z + 1, z + s)
    found = eq.fixed_point(f, torch.zeros(2, 1, dtype=torch.float64), (shift,), solver=solvers)
    assert found.converged.tolist() == [True, False]
    assert found.status[1] == Status.stalled
    assert found.counts.evaluations <= (3 if solvers else 2) * 60


def test_the_default_chain_has_max_steps_in_all():
    """A row that ran out of steps needs more of them, and no second solver."""
    f = lambda z, c: 0.999 * z + c
    c = torch.ones(3, 4, dtype=torch.float64) * torch.tensor([[1.0], [2.0], [3.0]])
    stop = eq.Stop(rtol=1e-14, max_steps=2)
    found = eq.fixed_point(f, torch.zeros(3, 4, dtype=torch.float64), (c * torch.arange(1, 5),), stop=stop)
    assert found.steps.tolist() == [2, 2, 2]
    assert found.counts.retried == 0


def test_a_later_solver_that_does_worse_leaves_what_was_found():
    """z ↦ −1.5 z: Anderson comes near and runs out of steps, plain steps run away from there."""
    weight = torch.tensor([[-1.5, 0.0], [0.3, -1.2]], dtype=torch.float64)
    f = lambda z, c: torch.tanh(z @ weight.T) * 2 + c
    c = torch.tensor([[0.1, 0.2]], dtype=torch.float64)
    start, stop = torch.zeros(1, 2, dtype=torch.float64), eq.Stop(rtol=1e-13, max_steps=6)
    near = eq.fixed_point(f, start, (c,), solver=eq.Anderson(), stop=stop)
    chain = eq.fixed_point(f, start, (c,), solver=[eq.Anderson(), eq.Picard()], stop=stop)
    assert near.status[0] == Status.max_steps
    assert torch.equal(chain.value, near.value)
    assert torch.equal(chain.residual, near.residual)
    assert int(chain.steps) == 12
