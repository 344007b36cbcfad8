"""What the one loop promises beyond any solver: ownership, precision, statuses, and few evaluations."""

import math

import pytest
import torch

import equipoise as eq
from equipoise.solve import PeacemanRachford
from problems import contraction, monotone_weight


def test_the_answer_is_nobody_elses_memory():
    weight, bias = contraction(5, 6, 0.5, seed=0)
    problem = eq.AffineMap(weight, bias)
    z0 = eq.fixed_point(problem, solver=eq.Picard(), stop=eq.Stop(rtol=1e-12)).value
    constant = torch.ones(3, 2, dtype=torch.float64)
    for precision in ("native", "mixed"):
        before = z0.clone()
        eq.fixed_point(problem, z0, solver=eq.Picard(), precision=precision).value.zero_()
        assert torch.equal(z0, before)
    eq.fixed_point(lambda z: constant, torch.zeros_like(constant), solver=eq.Picard()).value.zero_()
    assert constant.min() == 1


def test_mixed_precision_counts_the_steps_of_both():
    weight, bias = contraction(20, 30, 0.7, seed=1)
    problem, stop = eq.AffineMap(weight, bias), eq.Stop(rtol=1e-6)
    native = eq.fixed_point(problem, solver=eq.Picard(), stop=stop)
    mixed = eq.fixed_point(problem, solver=eq.Picard(), stop=stop, precision="mixed").raise_if_failed()
    assert (mixed.steps - native.steps).abs().max() <= 1
    assert mixed.counts.evaluations <= native.counts.evaluations + 1


def test_mixed_precision_survives_what_float32_cannot_hold():
    weight, bias = contraction(4, 3, 0.5, seed=2)
    bias[1] = 1e60 * bias[1].abs()
    problem = eq.AffineMap(weight, bias)
    solution = eq.fixed_point(problem, solver=eq.Picard(), precision="mixed").raise_if_failed()
    native = eq.fixed_point(problem, solver=eq.Picard()).raise_if_failed()
    torch.testing.assert_close(solution.value, native.value, rtol=1e-7, atol=1e-9)


def test_growth_at_the_last_step_is_divergence():
    solution = eq.fixed_point(
        lambda z: 1.5 * z + 1,
        torch.ones(2, 1, dtype=torch.float64),
        solver=eq.Picard(),
        stop=eq.Stop(max_steps=8),
    )
    assert solution.status.tolist() == [eq.Status.diverged] * 2  # 1.5⁸ = 25 times the first residual


def test_a_weight_that_is_not_finite_is_named_and_a_large_one_is_not():
    weight = torch.full((2, 2), 1e308, dtype=torch.float64)  # finite, though its sum is not
    bias = torch.ones(1, 2, dtype=torch.float64)
    eq.AffineMap(weight, bias)
    for bad in (math.nan, math.inf):
        weight[1, 0] = bad
        with pytest.raises(ValueError, match=r"finite.*\[1, 0\]"):
            eq.AffineMap(weight, bias)


def test_a_solver_that_needs_no_value_is_checked_when_it_should_have_arrived():
    for seed in range(6):
        weight = monotone_weight(40, 0.5, 1.0, seed)
        bias = torch.randn(3, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        problem, stop = eq.AffineMap(weight, bias), eq.Stop(rtol=1e-9)
        every = eq.fixed_point(problem, solver=PeacemanRachford(), stop=stop, trace=True).raise_if_failed()
        some = eq.fixed_point(problem, solver=PeacemanRachford(), stop=stop).raise_if_failed()
        assert some.counts.evaluations < 0.5 * every.counts.evaluations
        assert int(some.steps.max()) <= int(every.steps.max()) + 2


def test_norms_that_overflow_at_the_start_have_not_grown_to_it():
    """What is too large from the first is no divergence, of which smaller weights would be the cure."""
    f = lambda z, c: 0.5 * z + c
    c = torch.tensor([[1.0, 2.0], [3e38, 3e38]])
    found = eq.fixed_point(f, torch.zeros(2, 2), (c,), solver=[eq.Picard(), eq.Anderson()])
    assert [eq.Status(int(s)).name for s in found.status] == ["converged", "nonfinite"]
    assert "float64, if they overflow" in found.explain_failure()
    double = eq.fixed_point(f, torch.zeros(2, 2).double(), (c.double(),), solver=eq.Picard())
    assert double.converged.all()
    stop = eq.Stop(growth=1e39)
    grown = eq.fixed_point(lambda z: 1.5 * z, torch.ones(1, 100), solver=eq.Picard(), stop=stop)
    assert eq.Status(int(grown.status[0])).name == "diverged"


def test_large_affine_problems_begin_in_single_precision_and_are_verified_in_double():
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(256, 256, dtype=torch.float64, generator=g) * (0.8 / 2 / 16)
    bias = torch.randn(96, 256, dtype=torch.float64, generator=g)
    seen = []

    def relu(p):
        seen.append(p.dtype)
        return torch.relu(p)

    problem = eq.AffineMap(weight, bias, eq.solve.Activation("relu", relu, torch.sign, lambda v, _: v))
    found = eq.fixed_point(problem, solver=eq.Picard(), stop=eq.Stop(rtol=1e-8))
    assert seen.count(torch.float32) > seen.count(torch.float64) > 0
    z = found.value
    residual = (torch.relu(z @ weight.T + bias) - z).norm(dim=1)
    assert found.converged.all()
    assert (residual <= 1.001e-8 * z.norm(dim=1)).all()
    torch.testing.assert_close(found.residual, residual, rtol=1e-3, atol=0)
    seen.clear()
    eq.fixed_point(problem, solver=eq.Picard(), stop=eq.Stop(rtol=1e-8), precision="native")
    assert torch.float32 not in seen


def test_samples_are_left_out_only_where_that_saves_more_than_it_costs():
    """Dropping rows saves evaluations of them and costs one of the whole batch: that must pay."""
    x = torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    slow = torch.full((8, 1), 0.5, dtype=torch.float64)

    def solved(speed):
        f = lambda z, x, speed: torch.tanh(speed * z) + x
        found = eq.fixed_point(f, torch.zeros_like(x), (x, speed), solver=eq.Anderson()).raise_if_failed()
        residual = (f(found.value, x, speed) - found.value).norm(dim=1)
        torch.testing.assert_close(found.residual, residual, rtol=1e-6, atol=1e-15)
        assert bool((residual <= found.tolerance).all())
        return found

    near = solved(slow)
    assert int(near.steps.min()) < int(near.steps.max())
    assert near.counts.row_evaluations <= len(x) * (int(near.steps.max()) + 1.5)
    slow[4:] = 0.505  # a step later
    later = solved(slow)
    assert later.counts.row_evaluations <= len(x) * (int(later.steps.max()) + 1.5)
    slow[1:] = 0.01
    far = solved(slow)
    assert far.counts.evaluations == int(far.steps.max()) + 2
    assert far.counts.row_evaluations < 0.6 * len(x) * far.counts.evaluations
