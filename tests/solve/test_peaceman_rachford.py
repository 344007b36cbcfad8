import pytest
import torch

import equipoise as eq
from contracts.splitting import SplittingContract
from equipoise.solve import ForwardBackward, PeacemanRachford
from equipoise.solve.problem import make_map
from problems import exact_affine, monotone_weight


class TestPeacemanRachford(SplittingContract):
    solver = PeacemanRachford()

    def errors(self, solver, problem, z, exact, steps):
        f, alpha = make_map(problem, z, (), ()), solver.alpha(problem)
        q_exact = exact - alpha * (exact - problem.preactivation(exact))
        state, norms = solver.init(f, z), []
        for _ in range(steps):
            z, state = solver.step(f, z, z, state)
            norms.append((2 * z - state.h - q_exact).norm(dim=1))  # q = 2z − h
        return torch.stack(norms)


class TestPeacemanRachfordOfAnotherStep(TestPeacemanRachford):
    solver = PeacemanRachford(step_size=0.6)


def test_the_default_step_is_that_of_cocoercivity():
    weight = monotone_weight(9, 0.4, 1.5, seed=0)
    problem = eq.AffineMap(weight, torch.ones(1, 9, dtype=torch.float64))
    m = torch.eye(9, dtype=torch.float64) - weight
    margin, curvature = PeacemanRachford().constants(problem)
    quotients = torch.linalg.eigvals(torch.linalg.solve((m + m.T) / 2, m.T @ m)).real
    assert curvature == pytest.approx(float(quotients.max()), rel=1e-10)
    assert margin == pytest.approx(float(torch.linalg.eigvalsh((m + m.T) / 2)[0]), rel=1e-10)
    assert PeacemanRachford().alpha(problem) == pytest.approx((margin * curvature) ** -0.5, rel=1e-12)

    known = PeacemanRachford(margin=margin, lipschitz=problem.lipschitz)  # λ ≤ ℓ²/μ: never the better bound
    assert known.alpha(problem) == pytest.approx(1 / problem.lipschitz, rel=1e-12)
    assert PeacemanRachford().rate(problem) < known.rate(problem)


def test_the_norm_of_the_cayley_transform_is_bounded_by_the_rate():
    for seed in range(20):
        weight = monotone_weight(6, 0.3, 1.0, seed)
        problem = eq.AffineMap(weight, torch.ones(1, 6, dtype=torch.float64))
        for solver in (PeacemanRachford(), PeacemanRachford(step_size=0.1), PeacemanRachford(step_size=3.0)):
            m, eye = torch.eye(6, dtype=torch.float64) - weight, torch.eye(6, dtype=torch.float64)
            alpha = solver.alpha(problem)
            norm = torch.linalg.matrix_norm((eye - alpha * m) @ torch.linalg.inv(eye + alpha * m), ord=2)
            assert norm <= solver.rate(problem) * (1 + 1e-12)


def test_a_margin_that_is_not_there_is_refused_all_the_same():
    problem = eq.AffineMap(2 * torch.eye(3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="not positive definite"):
        eq.fixed_point(problem, solver=PeacemanRachford(margin=0.5))


def test_the_steps_are_those_of_the_printed_iteration():
    weight = monotone_weight(6, 0.4, 1.5, seed=1)
    bias = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    problem, solver = eq.AffineMap(weight, bias), PeacemanRachford(step_size=0.2)
    f, z = make_map(problem, bias, (), ()), bias
    state = solver.init(f, z)
    q = z - 0.2 * (z - problem.preactivation(z))
    eye = torch.eye(6, dtype=torch.float64)
    for _ in range(10):
        h = 2 * torch.relu(q) - q
        q = 2 * torch.linalg.solve(eye + 0.2 * (eye - weight), (h + 0.2 * bias).T).T - h
        z, state = solver.step(f, z, z, state)
        torch.testing.assert_close(z, torch.relu(q), rtol=1e-12, atol=1e-12)


def test_it_takes_fewer_steps_than_forward_backward():
    weight = monotone_weight(20, 0.5, 2.0, seed=3)
    bias = torch.randn(4, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    problem, stop = eq.AffineMap(weight, bias), eq.Stop(rtol=1e-6, max_steps=20_000, patience=1000)
    few = eq.fixed_point(problem, solver=PeacemanRachford(), stop=stop).raise_if_failed()
    many = eq.fixed_point(problem, solver=ForwardBackward(), stop=stop).raise_if_failed()
    assert 10 * int(few.steps.max()) < int(many.steps.max())


def test_a_start_near_the_solution_is_near_in_q_too():
    weight = monotone_weight(20, 0.5, 2.0, seed=5)
    bias = torch.randn(6, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    problem, stop = eq.AffineMap(weight, bias), eq.Stop(rtol=1e-8)
    cold = eq.fixed_point(problem, solver=PeacemanRachford(), stop=stop).raise_if_failed()
    near = exact_affine(weight, bias) * (1 + 1e-6)
    warm = eq.fixed_point(problem, near, solver=PeacemanRachford(), stop=stop).raise_if_failed()
    assert int(warm.steps.max()) < 0.6 * int(cold.steps.max())


def test_an_explicit_inverse_reaches_rounding_level():
    weight = monotone_weight(60, 0.05, 3.0, seed=7)
    bias = torch.randn(4, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    stop = eq.Stop(rtol=1e-14, max_steps=20_000, patience=2_000)
    solution = eq.fixed_point(eq.AffineMap(weight, bias), solver=PeacemanRachford(), stop=stop)
    assert solution.converged.all(), solution.explain_failure()
