"""The suite every solver must pass. A new solver joins with a subclass that names itself:

class TestPicard(SolverContract):
    solver = eq.Picard()
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.solve import Solver
from problems import contraction, exact_affine, monotone_weight, tanh_contraction

STOP = eq.Stop(rtol=1e-9, max_steps=4000)


class SolverContract:
    solver: Solver
    general = True  # takes any f, not only an AffineMap
    handles_monotone = False  # finds equilibria of strongly monotone maps with ‖W‖ > 1
    has_global_reach = True  # a contraction converges from any start
    row_tolerance = 1e-7  # how far batch mates may move an answer, relative, at `stop`
    stop = STOP  # answers are held to 10 times its rtol
    geometric = True  # residuals fall geometrically, so that any tolerance may be asked for

    # -- known solutions ------------------------------------------------------------------------------

    @given(n=st.integers(1, 6), m=st.integers(1, 20), q=st.floats(0.0, 0.9), seed=st.integers(0, 2**31))
    @settings(max_examples=25)
    def test_identity_activation_equals_the_linear_solve(self, n, m, q, seed):
        weight, bias = contraction(n, m, q, seed)
        solution = eq.fixed_point(eq.AffineMap(weight, bias, "identity"), solver=self.solver, stop=self.stop)
        solution.raise_if_failed()
        exact = torch.linalg.solve(torch.eye(m, dtype=weight.dtype) - weight, bias.T).T
        assert_close_rows(solution.value, exact, self.accuracy / (1 - q))

    @given(n=st.integers(1, 6), m=st.integers(1, 20), q=st.floats(0.0, 0.9), seed=st.integers(0, 2**31))
    @settings(max_examples=25)
    def test_relu_equals_the_active_set_solution(self, n, m, q, seed):
        weight, bias = contraction(n, m, q, seed)
        solution = eq.fixed_point(eq.AffineMap(weight, bias), solver=self.solver, stop=self.stop)
        solution.raise_if_failed()
        assert_close_rows(solution.value, exact_affine(weight, bias), self.accuracy / (1 - q))

    def test_monotone_map_of_large_norm(self):
        weight = monotone_weight(12, margin=0.5, scale=3.0, seed=1)
        assert torch.linalg.matrix_norm(weight, ord=2) > 1.5
        bias = torch.randn(5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        solution = eq.fixed_point(eq.AffineMap(weight, bias), solver=self.solver, stop=self.stop)
        if self.handles_monotone:
            solution.raise_if_failed()
        found = solution.converged
        assert_close_rows(solution.value[found], exact_affine(weight, bias)[found], 10 * self.accuracy)

    def test_scalar_map_on_which_picard_cycles(self):
        # z = relu(−3.5 z + 1) has the one solution 1/4.5; plain iteration goes 1, 0, 1, 0 …
        problem = eq.AffineMap(
            torch.tensor([[-3.5]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
        )
        solution = eq.fixed_point(problem, solver=self.solver, stop=self.stop)
        if self.handles_monotone:
            solution.raise_if_failed()
        if solution.converged[0]:
            assert solution.value[0, 0] == pytest.approx(1 / 4.5, rel=self.accuracy)

    @given(n=st.integers(1, 5), m=st.integers(1, 12), q=st.floats(0.05, 0.9), seed=st.integers(0, 2**31))
    @settings(max_examples=15)
    def test_tanh_cell_with_batched_and_shared_arguments(self, n, m, q, seed):
        self.need_general()
        f, weight, bias = tanh_contraction(n, m, q, seed)
        z0 = torch.zeros_like(bias)
        solution = eq.fixed_point(f, z0, args=(bias,), shared=(weight,), solver=self.solver, stop=self.stop)
        solution.raise_if_failed()
        reference = z0
        for _ in range(500):
            reference = f(reference, bias, weight)
        assert_close_rows(solution.value, reference, self.accuracy / (1 - q))

    def test_tuple_state_of_two_shapes(self):
        self.need_general()
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(4, 6, dtype=torch.float64, generator=generator)

        def f(z, x):
            a, b = z  # (N, 6), (N, 2, 3)
            mean = b.mean(dim=(1, 2), keepdim=False)[:, None]
            return torch.tanh(0.5 * a + x + 0.1 * mean), 0.3 * torch.sin(b) + a.reshape(-1, 2, 3)

        z0 = (torch.zeros(4, 6, dtype=x.dtype), torch.zeros(4, 2, 3, dtype=x.dtype))
        solution = eq.fixed_point(f, z0, args=(x,), solver=self.solver, stop=self.stop).raise_if_failed()
        reference = z0
        for _ in range(300):
            reference = f(reference, x)
        for got, want in zip(solution.value, reference, strict=True):
            assert got.shape == want.shape
            torch.testing.assert_close(got, want, rtol=10 * self.accuracy, atol=10 * self.accuracy)

    # -- what is reported is true -----------------------------------------------------------------------

    def test_residual_status_and_counts_are_true(self):
        weight, bias = contraction(7, 15, 0.8, seed=5)
        problem = eq.AffineMap(weight, bias)
        stop = self.stop_at(1e-6)
        solution = eq.fixed_point(problem, solver=self.solver, stop=stop)
        fz = problem(solution.value)
        torch.testing.assert_close(
            solution.residual, (fz - solution.value).norm(dim=1), rtol=1e-6, atol=1e-14
        )
        torch.testing.assert_close(solution.scale, fz.norm(dim=1), rtol=1e-9, atol=0)
        assert (solution.residual <= 1e-12 + stop.rtol * solution.scale).all()
        assert solution.converged.all()
        assert 1 <= solution.counts.evaluations <= solution.counts.row_evaluations
        assert (solution.steps >= 1).all()

    def test_too_few_steps_are_never_an_answer(self):
        weight, bias = contraction(4, 30, 0.95, seed=6)
        problem = eq.AffineMap(weight, bias)
        solution = eq.fixed_point(
            problem, bias * 50, solver=self.solver, stop=eq.Stop(rtol=1e-13, max_steps=1)
        )
        if self.general or self.affine_one_step_is_not_enough(solution):
            failed = ~solution.converged
            true = (problem(solution.value) - solution.value).norm(dim=1)
            torch.testing.assert_close(solution.residual, true, rtol=1e-6, atol=1e-13)
            assert (true[failed] > 1e-13 * solution.scale[failed]).all()
            if failed.any():
                with pytest.raises(eq.EquilibriumError, match=r"row \d+: max_steps|row \d+: diverged"):
                    solution.raise_if_failed()

    def affine_one_step_is_not_enough(self, solution):
        return bool((~solution.converged).any())

    def test_trace_holds_every_step_and_ends_at_the_answer(self):
        weight, bias = contraction(3, 8, 0.6, seed=7)
        problem = eq.AffineMap(weight, bias)
        solution = eq.fixed_point(problem, solver=self.solver, stop=self.stop_at(1e-8), trace=True)
        for row in range(3):
            residuals, iterates = solution.trace.residuals(row), solution.trace.iterates(row)
            assert len(residuals) == int(solution.steps[row]) + 1
            torch.testing.assert_close(iterates[-1], solution.value[row])
            assert residuals[-1] == solution.residual[row]
            true = (problem.take(torch.full((len(iterates),), row))(iterates) - iterates).norm(dim=1)
            torch.testing.assert_close(residuals, true, rtol=1e-6, atol=1e-14)

    # -- samples do not disturb each other --------------------------------------------------------------

    def test_a_sample_alone_equals_the_same_in_a_batch(self):
        weight, bias = contraction(40, 10, 0.85, seed=8)
        bias = bias * torch.logspace(-3, 3, 40, dtype=bias.dtype)[:, None]  # rows that end at different steps
        problem = eq.AffineMap(weight, bias)
        together = eq.fixed_point(problem, torch.zeros_like(bias), solver=self.solver, stop=self.stop)
        together.raise_if_failed()
        for row in (0, 17, 39):
            only = torch.tensor([row])
            alone = eq.fixed_point(
                problem.take(only), torch.zeros(1, 10, dtype=bias.dtype), solver=self.solver, stop=self.stop
            )
            assert_close_rows(alone.value, together.value[only], self.row_tolerance)

    def test_a_nan_row_is_named_and_the_others_go_on(self):
        weight, bias = contraction(6, 5, 0.5, seed=9)
        bias[4, 2] = torch.nan
        solution = eq.fixed_point(eq.AffineMap(weight, bias), solver=self.solver, stop=self.stop)
        assert solution.status.tolist() == [eq.Status.converged] * 4 + [
            eq.Status.nonfinite,
            eq.Status.converged,
        ]
        with pytest.raises(eq.EquilibriumError, match=r"row 4: nonfinite"):
            solution.raise_if_failed()
        good = [0, 1, 2, 3, 5]
        assert_close_rows(solution.value[good], exact_affine(weight, bias[good]), 10 * self.accuracy)

    def test_a_hopeless_row_beside_converging_ones(self):
        self.need_general()
        x = torch.tensor([[0.0], [1.0], [0.0]], dtype=torch.float64)

        def f(z, x):  # z = ½z + 1 where x = 0; z = z + z² + 1 where x = 1, which has no solution
            return torch.where(x == 0, 0.5 * z + 1, z + z**2 + 1)

        solution = eq.fixed_point(f, torch.zeros_like(x), args=(x,), solver=self.solver, stop=self.stop)
        assert solution.converged.tolist() == [True, False, True]
        torch.testing.assert_close(
            solution.value[[0, 2]], torch.full((2, 1), 2.0, dtype=x.dtype), rtol=10 * self.accuracy, atol=0
        )
        with pytest.raises(eq.EquilibriumError, match="row 1"):
            solution.raise_if_failed()

    def test_empty_batch(self):
        weight, bias = contraction(1, 4, 0.5, seed=0)
        solution = eq.fixed_point(eq.AffineMap(weight, bias[:0]), solver=self.solver)
        assert solution.value.shape == (0, 4)
        assert solution.status.shape == (0,)
        solution.raise_if_failed()

    # -- starts, precision, options ---------------------------------------------------------------------

    def test_starting_at_the_solution_takes_no_step(self):
        weight, bias = contraction(5, 9, 0.7, seed=11)
        problem = eq.AffineMap(weight, bias)
        first = eq.fixed_point(problem, solver=self.solver, stop=self.stop)
        again = eq.fixed_point(problem, first, solver=self.solver, stop=self.stop)
        assert again.steps.tolist() == [0] * 5
        assert torch.equal(again.value, first.value)

    def test_mixed_precision_is_verified_in_float64(self):
        weight, bias = contraction(8, 25, 0.8, seed=12)
        problem = eq.AffineMap(weight, bias)
        stop = self.stop_at(1e-11)
        solution = eq.fixed_point(problem, solver=self.solver, stop=stop, precision="mixed")
        solution.raise_if_failed()
        assert solution.value.dtype == torch.float64
        assert (
            (problem(solution.value) - solution.value).norm(dim=1) <= 1.1 * stop.rtol * solution.scale + 2e-12
        ).all()

    def test_float32(self):
        weight, bias = contraction(4, 20, 0.7, seed=13)
        stop = self.stop_at(1e-4)
        solution = eq.fixed_point(eq.AffineMap(weight.float(), bias.float()), solver=self.solver, stop=stop)
        solution.raise_if_failed()
        assert solution.value.dtype == torch.float32
        assert_close_rows(solution.value.double(), exact_affine(weight, bias), 10 * stop.rtol)

    def test_options_are_frozen_and_unknown_ones_refused(self):
        with pytest.raises(TypeError):
            type(self.solver)(tolerance=1.0)
        for field in dataclasses.fields(self.solver):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(self.solver, field.name, getattr(self.solver, field.name))
        assert repr(self.solver).startswith(type(self.solver).__name__)

    def test_a_general_map_is_refused_by_name_where_parts_are_needed(self):
        if self.general:
            pytest.skip("takes any map")
        with pytest.raises(TypeError, match="AffineMap"):
            eq.fixed_point(lambda z: 0.5 * z, torch.ones(2, 3), solver=self.solver)

    @property
    def accuracy(self):
        return 10 * self.stop.rtol

    def stop_at(self, rtol):
        return dataclasses.replace(self.stop, rtol=rtol) if self.geometric else self.stop

    def need_general(self):
        if not self.general:
            pytest.skip("works on an AffineMap only")


def assert_close_rows(got, want, relative):
    """Rows agree in norm, relative to the row (or absolutely, near zero)."""
    error = (got - want).norm(dim=1)
    allowed = relative * want.norm(dim=1).clamp_min(1e-3)
    assert (error <= allowed).all(), f"error {error.tolist()} over {allowed.tolist()}"
