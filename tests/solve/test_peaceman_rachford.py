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
