"""A row that fails hands back the state with its lowest residual, and the true residual of that state."""

from dataclasses import replace

import pytest
import torch

import equipoise as eq
from equipoise.solve import Status
from equipoise.solve.driver import approach, confirm

DTYPE = torch.float64
STOP = eq.Stop(rtol=1e-10, max_steps=40)


def climbs(z: torch.Tensor, x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """z = slope z + x: it comes near the solution from far off where |slope| < 1, and leaves it elsewhere."""
    return slope * z + x


def circles(z: torch.Tensor, x: torch.Tensor, speed: torch.Tensor) -> torch.Tensor:
    """A rotation about x whose radius settles at 1, so that no state but x is still."""
    d = z - x
    size = d.norm(dim=1, keepdim=True)
    turned = torch.stack((d[:, 1], -d[:, 0]), dim=1)
    return x + torch.lerp(d, turned, speed) * (0.3 + 1 / (0.2 + size))


def residuals(f, found, args):
    return (f(found.value, *args) - found.value).norm(dim=1)


@pytest.mark.parametrize("solver", [eq.Picard(), eq.Anderson(), eq.Broyden(), [eq.Picard(), eq.Anderson()]])
@pytest.mark.parametrize("ahead", [False, True])
def test_it_is_the_lowest_of_all_that_were_seen_and_the_residual_is_true(solver, ahead, monkeypatch):
    x = torch.randn(6, 2, dtype=DTYPE, generator=torch.Generator().manual_seed(0))
    args = (x, torch.linspace(0.2, 0.9, 6, dtype=DTYPE)[:, None])
    lowest = torch.full((6,), torch.inf, dtype=DTYPE)
    monkeypatch.setattr(eq.Anderson, "steepest", torch.inf)  # so that every step is checked

    def f(z, x, speed):
        image = circles(z, x, speed)
        at = [int((args[0] == row).all(dim=1).nonzero()) for row in x]
        lowest[at] = torch.minimum(lowest[at], (image - z).norm(dim=1))
        return image

    how = {"solver": solver, "stop": STOP}
    if ahead:
        found = approach(f, x + 3, args, **how)
        found = confirm(found, f(found.value, *args))
    else:
        found = eq.fixed_point(f, x + 3, args, **how)
    failed = ~found.converged
    assert bool(failed.any())
    true = residuals(circles, found, args)
    torch.testing.assert_close(found.residual, true, rtol=1e-9, atol=1e-15)
    if not isinstance(solver, eq.Picard | list):  # Picard is not checked at every step
        assert bool((true[failed] <= lowest[failed] * (1 + 1e-9)).all())
    start = replace(found, value=x + 3)
    assert bool((true[failed] < residuals(circles, start, args)[failed]).all())


def test_a_row_that_runs_away_hands_back_its_start():
    x, slope = torch.ones(3, 1, dtype=DTYPE), torch.tensor([[0.5], [1.5], [3.0]], dtype=DTYPE)
    z0 = torch.full_like(x, 0.25)
    found = eq.fixed_point(climbs, z0, (x, slope), solver=eq.Picard(), stop=eq.Stop(max_steps=60))
    assert found.status.tolist() == [Status.converged, Status.diverged, Status.diverged]
    torch.testing.assert_close(found.value[1:], z0[1:])
    torch.testing.assert_close(found.residual, residuals(climbs, found, (x, slope)), rtol=1e-9, atol=1e-12)
    assert "diverged" in found.explain_failure()


def test_a_state_that_is_not_finite_is_handed_back_as_it_is():
    x = torch.tensor([[1.0], [torch.nan]], dtype=DTYPE)
    found = eq.fixed_point(climbs, torch.zeros_like(x), (x, 0.5 + 0 * x.nan_to_num()))
    assert found.status.tolist() == [Status.converged, Status.nonfinite]
    assert bool(found.residual[1].isnan())


def test_a_closure_which_may_mix_its_batch_keeps_its_last_states():
    """z ↦ W z over the batch: rows that failed and rows that converged belong together."""
    x, slope = torch.ones(2, 1, dtype=DTYPE), torch.tensor([[0.5], [1.5]], dtype=DTYPE)
    f = lambda z: slope * z + x
    found = eq.fixed_point(f, torch.zeros_like(x), solver=eq.Picard(), stop=eq.Stop(max_steps=60))
    torch.testing.assert_close(
        found.residual, (f(found.value) - found.value).norm(dim=1), rtol=1e-6, atol=1e-9
    )
    alone = eq.fixed_point(lambda z: 1.5 * z + 1, torch.zeros(1, 1, dtype=DTYPE), solver=eq.Picard())
    torch.testing.assert_close(alone.residual, torch.ones(1, dtype=DTYPE))


def test_a_second_solver_does_not_make_a_row_worse():
    """The first solver comes near, the second leaves: what the first has found is kept."""
    x, slope = torch.ones(2, 1, dtype=DTYPE), torch.full((2, 1), 0.9, dtype=DTYPE)

    class Runs(eq.Picard):
        def step(self, f, z, fz, state):
            return z + 10 * z.abs() + 1, state

    near = eq.fixed_point(climbs, 0 * x, (x, slope), solver=eq.Picard(), stop=eq.Stop(max_steps=30))
    both = eq.fixed_point(climbs, 0 * x, (x, slope), solver=[eq.Picard(), Runs()], stop=eq.Stop(max_steps=30))
    assert not bool(both.converged.any())
    torch.testing.assert_close(both.value, near.value)
    torch.testing.assert_close(both.residual, near.residual)


def test_a_cell_that_mixes_samples_is_found_out_although_its_rows_come_back_best():
    x = torch.randn(4, 2, dtype=DTYPE, generator=torch.Generator().manual_seed(1))

    def mixes(z, x):
        return torch.tanh(z) * 0.5 + x + 2.0 * z.mean(dim=0).sin()

    found = eq.fixed_point(mixes, torch.zeros_like(x), (x,), stop=eq.Stop(max_steps=30))
    value = found.value
    torch.testing.assert_close(found.residual, (mixes(value, x) - value).norm(dim=1), rtol=1e-9, atol=1e-14)
    good = found.residual <= found.tolerance
    assert bool((good | ~found.converged).all())
