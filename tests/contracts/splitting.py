"""What a splitting solver must pass on top of the solvers' suite."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from contracts.solver import SolverContract
from equipoise.solve import Activation
from equipoise.solve.activation import ACTIVATIONS
from problems import contraction, exact_affine, monotone_weight


class SplittingContract(SolverContract):
    general = False
    handles_monotone = True

    def errors(self, solver, problem, z, exact, steps):
        """The norms that the solver's rate speaks of, at each of its first steps: (steps, N)."""
        raise NotImplementedError

    @given(
        m=st.integers(1, 10),
        margin=st.floats(0.05, 2.0),
        scale=st.floats(0.0, 2.0),
        factor=st.floats(0.1, 1.9),
        seed=st.integers(0, 2**31),
    )
    @settings(max_examples=40)
    def test_no_step_contracts_less_than_the_rate_promises(self, m, margin, scale, factor, seed):
        weight = monotone_weight(m, margin, scale, seed)
        bias = torch.randn(3, m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        problem = eq.AffineMap(weight, bias)
        step = factor * type(self.solver)().alpha(problem)
        for solver in (type(self.solver)(), type(self.solver)(step_size=step)):
            rate = solver.rate(problem)
            assert 0 <= rate < 1
            errors = self.errors(solver, problem, 5 * bias, exact_affine(weight, bias), 30)
            assert (errors[1:] <= rate * errors[:-1] + 1e-12 * (1 + bias.norm(dim=1))).all()
            assert type(self.solver)().rate(problem) <= rate + 1e-15  # the default step is the best one

    def test_the_rate_is_attained(self):
        # M = μI + aJ is normal and 'φ = 0': ‖Mx‖ = ℓ‖x‖ and ⟨x, Mx⟩ = μ‖x‖², so every bound is an equality.
        m = torch.tensor([[0.3, 2.0], [-2.0, 0.3]], dtype=torch.float64)
        problem = eq.AffineMap(torch.eye(2) - m, torch.ones(1, 2, dtype=m.dtype), "identity")
        exact = torch.linalg.solve(m, problem.bias.T).T
        errors = self.errors(self.solver, problem, 3 * problem.bias, exact, 20)
        measured = errors[1:] / errors[:-1]
        torch.testing.assert_close(measured, torch.full_like(measured, self.solver.rate(problem)))

    @pytest.mark.parametrize("activation", ACTIVATIONS)
    def test_every_activation_with_a_proximal_map(self, activation):
        weight = monotone_weight(8, margin=1.0, scale=1.0, seed=3)
        bias = 3 * torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
        problem = eq.AffineMap(weight, bias, activation)
        solution = eq.fixed_point(problem, solver=self.solver, stop=self.stop).raise_if_failed()
        assert (problem(solution.value) - solution.value).norm(dim=1).max() < 1e-8 * bias.norm()

    def test_known_constants_are_used_and_not_computed(self):
        weight = monotone_weight(6, margin=0.7, scale=1.0, seed=5)
        bias = torch.ones(2, 6, dtype=weight.dtype)
        probe = eq.AffineMap(weight, bias)
        solver = type(self.solver)(margin=0.7, lipschitz=1.1 * probe.lipschitz)
        problem = eq.AffineMap(weight, bias)
        solution = eq.fixed_point(problem, solver=solver, stop=self.stop).raise_if_failed()
        assert not {"margin", "lipschitz", "curvature"} & set(problem.cache)
        torch.testing.assert_close(solution.value, exact_affine(weight, bias), rtol=1e-6, atol=1e-8)
        assert solver.rate(problem) > type(self.solver)().rate(probe)

    def test_spectra_and_factors_are_computed_once_for_each_weight(self, monkeypatch):
        weight, bias = contraction(30, 7, 0.8, seed=6)
        bias = bias * torch.logspace(-4, 4, 30, dtype=bias.dtype)[:, None]
        calls = []
        for name in ("eigvalsh", "matrix_norm", "inv"):
            original = getattr(torch.linalg, name)

            def counted(*args, name=name, original=original, **kwargs):
                calls.append(name)
                return original(*args, **kwargs)

            monkeypatch.setattr(torch.linalg, name, counted)
        problem = eq.AffineMap(weight, bias)
        for other in (problem, problem.with_bias(bias + 1), problem.take(torch.arange(5))):
            eq.fixed_point(other, solver=self.solver, stop=self.stop).raise_if_failed()
        assert len(calls) == len(set(calls)), calls
        assert "eigvalsh" in calls

    def test_a_map_without_a_margin_is_refused(self):
        bias = torch.ones(1, 3, dtype=torch.float64)
        for scale, mu in ((1.5, "-0.5"), (1.0, "0")):
            with pytest.raises(ValueError, match=rf"strongly monotone.*Got μ = {mu}"):
                eq.fixed_point(eq.AffineMap(scale * torch.eye(3).double(), bias), solver=self.solver)

    def test_a_margin_that_is_rounding_is_none(self):
        for seed in range(8):  # I − W = AᵀA of rank 8: λ_min is 0, computed as ±1e-16
            a = torch.randn(8, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
            problem = eq.AffineMap(torch.eye(9, dtype=a.dtype) - a.T @ a, a)
            with pytest.raises(ValueError, match="strongly monotone"):
                eq.fixed_point(problem, solver=self.solver)

    def test_an_activation_without_a_proximal_map_is_refused(self):
        gelu = Activation("gelu", torch.nn.functional.gelu, torch.ones_like)
        with pytest.raises(TypeError, match=r"'relu'.*Got 'gelu'"):
            eq.fixed_point(eq.AffineMap(torch.zeros(2, 2), torch.ones(1, 2), gelu), solver=self.solver)

    @pytest.mark.parametrize("option", ["margin", "lipschitz", "step_size"])
    @pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
    def test_options_out_of_range_are_refused(self, option, value):
        with pytest.raises(ValueError, match=f"{option} must be a finite number > 0"):
            type(self.solver)(**{option: value})

    def test_a_margin_above_the_lipschitz_constant_is_refused(self):
        with pytest.raises(ValueError, match="margin must be ≤ lipschitz"):
            type(self.solver)(margin=2.0, lipschitz=1.0)
