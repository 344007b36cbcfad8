import pytest
import torch

import equipoise as eq
from contracts.splitting import SplittingContract
from equipoise.solve import ForwardBackward
from equipoise.solve.problem import make_map
from problems import monotone_weight


class TestForwardBackward(SplittingContract):
    solver = ForwardBackward()
    stop = eq.Stop(rtol=1e-9, max_steps=100_000, patience=1_000)

    def errors(self, solver, problem, z, exact, steps):
        f = make_map(problem, z, (), ())
        state, norms = solver.init(f, z), [(z - exact).norm(dim=1)]
        for _ in range(steps):
            z, state = solver.step(f, z, z, state)
            norms.append((z - exact).norm(dim=1))
        return torch.stack(norms)


@pytest.mark.parametrize("factor", [2.0, 5.0])
def test_a_step_outside_the_open_interval_is_refused(factor):
    problem = eq.AffineMap(monotone_weight(5, 0.5, 1.0, seed=0), torch.ones(1, 5, dtype=torch.float64))
    limit = problem.margin / problem.lipschitz**2
    with pytest.raises(ValueError, match=r"step_size must lie in \(0, 2μ/ℓ²\)"):
        eq.fixed_point(problem, solver=ForwardBackward(step_size=factor * limit))
