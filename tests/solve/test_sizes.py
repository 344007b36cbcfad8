"""Problems of every size are solved alike: tolerances are relative, norms neither overflow nor underflow."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.solve import Solver
from equipoise.solve.norms import row_norms
from problems import contraction, exact_affine

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
GENERAL = (
    eq.Picard(),
    eq.Picard(damping=0.7),
    eq.Anderson(),
    eq.Anderson(damping=0.6),
    eq.Broyden(),
    eq.Newton(),
)
SPLITTING = (eq.PeacemanRachford(), eq.ForwardBackward())
STOP = eq.Stop(max_steps=2000)


def relative_error(value: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest relative error of a row, in numbers of size 1."""
    value, exact = value.double(), exact.double()
    size = exact.abs().amax(dim=1, keepdim=True)
    return float(((value / size - exact / size).norm(dim=1) / (exact / size).norm(dim=1)).max())


def relu_cell(z, x, w):
    return torch.relu(z @ w.T + x)


# -- sizes --------------------------------------------------------------------------------------------------


def solve_at(size: float, dtype: torch.dtype, solver: Solver, start: float, seed: int) -> None:
    weight, bias = (t.to(dtype) for t in contraction(4, 6, 0.8, seed))
    bias = (bias.double().abs() + 0.1).to(dtype)  # every row has an equilibrium other than zero
    tiny = (size * bias.double()).to(dtype)
    exact = exact_affine(weight.double(), bias.double()) * size
    asked = 10 * (eq.Stop().resolve(dtype).rtol + torch.finfo(dtype).eps) / (1 - 0.8)
    begin = (torch.full_like(bias, start).double() * size).to(dtype)
    found = [eq.fixed_point(eq.AffineMap(weight, tiny), begin, solver=solver, stop=STOP)]
    if not solver.affine_only:
        found.append(
            eq.fixed_point(relu_cell, begin, args=(tiny,), shared=(weight,), solver=solver, stop=STOP)
        )
    for solution in found:
        solution.raise_if_failed()
        assert solution.value.dtype == dtype
        assert relative_error(solution.value, exact) <= asked


def sizes_of(dtype: torch.dtype) -> st.SearchStrategy[float]:
    info = torch.finfo(dtype)
    low, high = (
        torch.tensor(v, dtype=torch.float64).log10().item() for v in (100 * info.tiny, info.max / 100)
    )
    return st.floats(low, high).map(lambda exponent: 10**exponent)


CASES = st.sampled_from(DTYPES).flatmap(
    lambda dtype: st.tuples(
        sizes_of(dtype),
        st.just(dtype),
        st.sampled_from(GENERAL + SPLITTING),
        st.sampled_from([0.0, 0.5, 3.0]),
        st.integers(0, 2**31),
    )
)


@given(CASES)
@settings(max_examples=40)
def test_every_size_is_solved_to_the_tolerance_of_its_dtype(case):
    solve_at(*case)


@pytest.mark.slow
@given(CASES)
@settings(max_examples=3000)
def test_every_size_is_solved_to_the_tolerance_of_its_dtype_at_length(case):
    solve_at(*case)


@pytest.mark.parametrize("solver", [eq.Picard(), eq.Anderson(), eq.Newton(), eq.PeacemanRachford()], ids=repr)
def test_a_start_of_another_size_does_not_change_the_accuracy(solver):
    weight, bias = contraction(5, 6, 0.7, seed=0)
    exact = exact_affine(weight, bias.abs())
    for size in (1e-12, 1e-30):
        tiny, begin = size * bias.abs(), torch.ones_like(bias)
        found = [eq.fixed_point(eq.AffineMap(weight, tiny), begin, solver=solver)]
        if not solver.affine_only:
            found.append(eq.fixed_point(relu_cell, begin, args=(tiny,), shared=(weight,), solver=solver))
        found.append(eq.fixed_point(eq.AffineMap(weight, tiny), begin, solver=solver, precision="mixed"))
        for solution in found:
            solution.raise_if_failed()
            assert relative_error(solution.value, size * exact) <= 1e-6


def test_where_the_problem_has_no_size_the_start_decides():
    for start in (1.0, 1e-200, 1e200):
        z0 = torch.full((2, 3), start, dtype=torch.float64)
        solution = eq.fixed_point(lambda z: z / 2, z0, solver=eq.Picard()).raise_if_failed()
        assert (solution.value.abs() <= 1e-11 * start).all()
    zero = eq.fixed_point(lambda z: 0 * z, torch.ones(2, 3), solver=eq.Picard(damping=0.5)).raise_if_failed()
    assert (zero.value.abs() <= 1e-7).all()


def test_the_size_of_a_row_is_its_own_whatever_the_others_are():
    rate = torch.tensor([[1e-7], [0.0]]).double()  # z ↦ rate·z: the image of the second row is 0
    start = torch.ones(2, 1).double()
    found = eq.fixed_point(lambda z, c: c * z, start, (rate,), solver=eq.Picard()).raise_if_failed()
    assert found.tolerance[0] <= 1.001e-8 * 1e-4 * 1e-7
    assert found.value[0].abs() <= found.tolerance[0]


@pytest.mark.parametrize(("bias", "start", "size"), [(-1e-6, 1e6, 1e-6), (-1e6, 1e-3, 1e-3)])
def test_a_bias_that_the_activation_cuts_off_is_a_size_only_where_nothing_of_it_is_left(bias, start, size):
    """Of z = relu(z/2 + b): the first row has ‖f(0)‖ = 1e-6 though ‖b‖ is large, the second f(0) = 0."""
    problem = eq.AffineMap(0.5 * torch.eye(2).double(), torch.tensor([[1e-6, -1e6], [bias, bias]]).double())
    begin = torch.tensor([[1e6, 0.0], [start, 0.0]]).double()
    found = eq.fixed_point(problem, begin, solver=eq.Picard()).raise_if_failed()
    assert found.tolerance[0] <= 1.001e-8 * 2e-6
    assert found.tolerance[1] <= 1.001e-8 * 1e-4 * 2**0.5 * size
    torch.testing.assert_close(
        found.value, torch.tensor([[2e-6, 0.0], [0.0, 0.0]]).double(), rtol=1e-7, atol=0
    )


def test_the_tolerance_follows_the_answer_down_to_a_ten_thousandth_of_the_problem():
    for steep in (0.0, 99.0, 1e6):  # z = relu(1 − steep·z) = 1/(1 + steep), where f(0) = 1
        problem = eq.AffineMap(torch.tensor([[-steep]]).double(), torch.ones(1, 1).double())
        found = eq.fixed_point(
            problem, solver=eq.PeacemanRachford(), stop=eq.Stop(rtol=1e-6)
        ).raise_if_failed()
        assert found.tolerance.item() == pytest.approx(1e-6 * max(found.scale.item(), 1e-4), rel=1e-12)
        assert found.residual.item() <= found.tolerance.item()


def test_the_size_of_a_problem_is_asked_for_only_where_it_decides():
    weight, bias = contraction(4, 6, 0.8, seed=2)
    found = eq.fixed_point(lambda z: relu_cell(z, bias, weight), torch.ones_like(bias), solver=eq.Picard())
    checks = int(found.raise_if_failed().steps.max()) + 1
    assert found.counts.evaluations == checks
    halving = eq.fixed_point(lambda z: z / 2, torch.ones(1, 1), solver=eq.Picard()).raise_if_failed()
    assert halving.counts.evaluations == int(halving.steps[0]) + 2


def test_an_absolute_tolerance_that_was_asked_for_means_what_it_says():
    f = lambda z: z / 2 + 1e-9
    loose = eq.fixed_point(f, torch.zeros(1, 1).double(), solver=eq.Picard(), stop=eq.Stop(atol=1e-6))
    assert loose.converged.all()
    assert loose.steps.tolist() == [0]
    tight = eq.Stop(rtol=0.0, atol=1e-15)
    found = eq.fixed_point(f, torch.ones(1, 1).double(), solver=eq.Picard(), stop=tight).raise_if_failed()
    assert found.residual.item() <= 1e-15
    assert found.tolerance.item() == 1e-15


# -- norms --------------------------------------------------------------------------------------------------


@given(st.sampled_from(DTYPES), st.floats(-320, 308), st.integers(0, 2**31))
@settings(max_examples=40)
def test_norms_of_rows_are_right_at_every_size(dtype, exponent, seed):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(3, 50, dtype=torch.float64, generator=generator)
    spread = 10.0 ** -torch.randint(0, 12, (3, 50), generator=generator)
    z = (z * spread * 10.0**exponent / 60).to(dtype)
    z[1] = 0
    got = row_norms(z)
    for row, norm in zip(z, got, strict=True):
        wide = [abs(float(x)) for x in row]
        largest = max(wide)
        exact = 0.0 if largest == 0 else largest * sum((x / largest) ** 2 for x in wide) ** 0.5
        if exact < torch.finfo(got.dtype).max:
            step = torch.finfo(got.dtype).smallest_normal * torch.finfo(got.dtype).eps
            assert abs(float(norm) - exact) <= 1e-5 * exact + 50 * step
        else:
            assert float(norm) == float("inf")


def test_residuals_of_large_states_are_not_zero():
    weight, bias = (t.float() for t in contraction(4, 50, 0.9, seed=3))
    problem = eq.AffineMap(weight, 3e18 * bias, "identity")
    start = eq.fixed_point(problem, solver=eq.Picard(), stop=eq.Stop(max_steps=3))
    assert not start.converged.any()
    true = (problem.to(torch.float64)(start.value.double()) - start.value.double()).norm(dim=1)
    torch.testing.assert_close(start.residual.double(), true, rtol=1e-4, atol=0)
    found = eq.fixed_point(problem, solver=eq.Picard()).raise_if_failed()
    system = torch.eye(50).double() - weight.double()
    exact = torch.linalg.solve(system, (3e18 * bias).double().T).T
    assert relative_error(found.value, exact) <= 1e-2


def test_a_norm_that_overflows_though_its_numbers_do_not_is_no_answer():
    c = torch.full((1, 100), 3e38)
    found = eq.fixed_point(lambda z, c: c.clone(), 0.9 * c, (c,), solver=eq.Picard())
    assert eq.Status(int(found.status[0])).name == "nonfinite"
    assert not eq.verify(lambda z, c: c.clone(), 0.9 * c, (c,)).converged.any()


# -- statuses -----------------------------------------------------------------------------------------------


def test_a_state_that_runs_away_slowly_is_not_an_answer_though_its_relative_residual_falls():
    stop = eq.Stop(rtol=0.05, patience=1000)
    for solver in (eq.Picard(), eq.Picard(damping=0.5)):
        found = eq.fixed_point(lambda z: z + 1, torch.zeros(2, 3).double(), solver=solver, stop=stop)
        assert [eq.Status(int(s)).name for s in found.status] == ["diverged"] * 2


def test_growth_ends_a_solve_at_once():
    stop = eq.Stop(growth=1e3, patience=400)
    found = eq.fixed_point(lambda z: 10 * z + 1, torch.zeros(1, 1).double(), solver=eq.Picard(), stop=stop)
    assert eq.Status(int(found.status[0])).name == "diverged"
    assert int(found.steps[0]) <= 12  # residuals 1, 10, 100, 1e3, 1e4, and checks at most 8 steps apart


def test_numbers_that_stop_being_finite_on_the_way_are_named():
    f = lambda z: torch.where(z < 3, z + 1, torch.nan)
    found = eq.fixed_point(f, torch.zeros(1, 2).double(), solver=eq.Anderson())
    assert eq.Status(int(found.status[0])).name == "nonfinite"
