"""What the course of one row's residuals is called, at and beside every limit."""

import dataclasses
import math

import pytest
import torch

import equipoise as eq
from equipoise.solve import PeacemanRachford, Status, Stop
from equipoise.solve.problem import make_map
from equipoise.solve.progress import Progress

STOP = Stop(max_steps=100, patience=10, growth=1e3)
ON_ITS_WAY = -1
ABOVE = 1 + 1e-9


def judged(course, at, tolerance=1.0, stop=STOP, state=0.0, ahead=False, rate=1.0):
    """The status after residuals at these steps, the last of them `at`; the tolerances are one or as many."""
    one = torch.ones(1, dtype=torch.float64)
    infinite, zero = math.inf * one, torch.zeros(1, dtype=torch.int64)
    progress = Progress(one, infinite, infinite.clone(), infinite.clone(), zero, zero.bool(), rate=rate)
    z = state * torch.ones(1, 2, dtype=torch.float64)
    tolerances = tolerance if isinstance(tolerance, tuple) else (tolerance,) * len(course)
    for k, residual, limit in zip((*range(len(course) - 1), at), course, tolerances, strict=True):
        status = progress.judge(k, z, z, residual * one, limit * one, stop, ahead and k == at)
    return ON_ITS_WAY if status is None else int(status[0])


@pytest.mark.parametrize(
    ("course", "at", "said"),
    [
        ([1.0], 0, Status.converged),
        ([ABOVE], 0, ON_ITS_WAY),
        ([8.0, 1.0], 1, Status.converged),
        ([8.0, ABOVE], 1, ON_ITS_WAY),
        # a fall of 1 % counts as progress, less does not, and patience ends after ten steps without any
        ([8.0, 8.0], 9, ON_ITS_WAY),
        ([8.0, 8.0], 10, Status.stalled),
        ([8.0, 7.93], 10, Status.stalled),
        ([8.0, 7.91], 10, ON_ITS_WAY),
        ([8.0, 1.0], 10, Status.converged),
        # at the last step
        ([8.0, 4.0], 99, ON_ITS_WAY),
        ([8.0, 4.0], 100, Status.max_steps),
        ([8.0, 80.0], 5, ON_ITS_WAY),
        ([8.0, 80.0], 100, Status.stalled),
        ([8.0, 81.0], 5, ON_ITS_WAY),
        ([8.0, 81.0], 10, Status.diverged),
        # at once, where the residual is 1000 times the first
        ([8.0, 8000.0], 5, ON_ITS_WAY),
        ([8.0, 8000.0 * ABOVE], 5, Status.diverged),
        # the first counts as no less than the tolerance
        ([1e-9, 9.0], 10, Status.stalled),
        ([1e-9, 11.0], 10, Status.diverged),
    ],
)
def test_a_course_has_its_name_at_every_limit(course, at, said):
    assert judged(course, at) == said


def test_a_residual_as_large_as_ever_under_a_tolerance_that_grew_is_no_answer():
    for residual, limit, said in (
        (4.1, 4.2, Status.diverged),
        (4.0, 4.2, Status.converged),  # half of the first
        (4.1, 4.1, Status.diverged),
        (2.0, 2.0, Status.converged),
    ):
        assert judged([8.0, residual], 1, (1.0, limit)) == said
    assert judged([8.0, 4.1], 1, (2.1, 4.2)) == Status.converged  # a tolerance that was twice this large


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_what_is_not_a_number_never_converged(bad):
    assert judged([bad], 0) == Status.nonfinite
    assert judged([8.0, bad], 1) == Status.diverged  # its numbers are finite, their norm is not
    assert judged([8.0, bad], 1, state=bad) == Status.nonfinite
    assert judged([8.0, 1.0], 1, (1.0, math.inf)) == Status.diverged


def test_the_next_step_is_foreseen_by_a_rate_that_falls_and_by_no_other():
    assert judged([2.0], 0, ahead=True, rate=0.5) == Status.converged
    assert judged([2.0 * ABOVE], 0, ahead=True, rate=0.5) == ON_ITS_WAY
    assert judged([2.0], 0, rate=0.5) == ON_ITS_WAY
    assert judged([1.0], 0, ahead=True, rate=2.0) == Status.converged


def test_a_check_waits_as_long_as_the_measured_rate_says():
    one = torch.ones(1, dtype=torch.float64)
    progress = Progress(one, one, one, one, torch.zeros(1, dtype=torch.int64), one.bool() & False)
    for rate, excess, floor, ceil in (
        (0.5, 9.0, 3, 4), (0.5, 2.0, 1, 1), (0.9, 1e9, 8, 8), (1.0, 9.0, 1, 1), (0.0, 9.0, 1, 1),
        (0.5, math.inf, 1, 1), (0.5, 1.0, 1, 1), (0.5, 0.5, 1, 1),
    ):  # fmt: skip
        progress.rate, progress.excess = rate, excess
        assert (progress.wait(eq.Picard()), progress.wait(PeacemanRachford())) == (floor, ceil)


def test_a_solver_of_no_steady_rate_is_checked_when_its_first_row_could_pass():
    one = torch.ones(1, dtype=torch.float64)
    progress = Progress(one, one, one, one, torch.zeros(1, dtype=torch.int64), one.bool() & False)
    for least, fall, steps in (
        (101.0, 0.5, 2), (99.0, 0.5, 1), (1e20, 0.5, 2),  # a hundredfold in a step
        (1.1e6, math.log(1e3), 2), (0.9e6, math.log(1e3), 1), (1e12, math.inf, 1),  # as it fell in two
        (0.5, 0.5, 1), (math.nan, 0.5, 1), (math.inf, 0.5, 1),
    ):  # fmt: skip
        progress.least, progress.fall = least, fall
        assert progress.wait(eq.Anderson()) == steps
        assert progress.wait(eq.Newton()) == 1


@pytest.mark.parametrize("rtol", [1e-4, 1e-8, 1e-13])
def test_a_row_takes_hardly_more_steps_where_checks_wait(rtol, monkeypatch):
    """Also where Anderson ends a solve at once, as in one dimension: z = q z + 1."""

    def solve(q):
        how = {"solver": eq.Anderson(), "stop": eq.Stop(rtol=rtol)}
        found = eq.fixed_point(lambda z, q: q * z + 1, torch.zeros_like(q), (q,), **how)
        return found.raise_if_failed()

    one = torch.tensor([[0.9], [0.5], [0.0]], dtype=torch.float64)
    many = 0.8 * torch.rand(3, 20, dtype=torch.float64, generator=torch.manual_seed(0))
    waiting = solve(one), solve(many)
    for q, found in zip((one, many), waiting, strict=True):
        torch.testing.assert_close(found.value, 1 / (1 - q), rtol=20 * rtol, atol=0)
    monkeypatch.setattr(eq.Anderson, "steepest", math.inf)
    for q, found in zip((one, many), waiting, strict=True):
        assert bool((found.steps <= solve(q).steps + 1).all())


def test_rows_that_are_taken_keep_their_own_records():
    rows, one = torch.tensor([2, 0]), torch.arange(1.0, 4.0, dtype=torch.float64)
    made = Progress(one, 2 * one, 3 * one, 4 * one, one.long(), one > 1, rate=0.5)
    made.start = 5 * one
    taken = made.take(rows)
    for name in (f.name for f in dataclasses.fields(made)):
        before, after = getattr(made, name), getattr(taken, name)
        same = torch.equal(after, before[rows]) if isinstance(before, torch.Tensor) else after == before
        assert same, name


@pytest.mark.parametrize("start", [0.0, 3.0])
def test_a_tolerance_falls_with_the_state_as_far_as_a_share_of_the_problems_own_size(start):
    """‖f(0)‖ = 2: below 1e-4 of it, ‖f(z)‖ does not count, wherever the solve began."""
    z = torch.full((1, 1), start, dtype=torch.float64)
    one, stop = torch.ones(1, dtype=torch.float64), Stop(rtol=1e-6).resolve(torch.float64)
    f = make_map(lambda z: 2 + 0 * z, z, (), ())
    progress = Progress.begin(f, z, 1.0)
    assert progress.tolerance(0, f, z, 2 * one, 2 * one, stop).item() == pytest.approx(2e-6, rel=1e-12)
    near = progress.tolerance(
        1, f, z, 2e-10 * one, 1e-9 * one, stop
    )  # so small a residual is held against f(0)
    assert near.item() == pytest.approx(1e-6 * 1e-4 * 2, rel=1e-12)
