"""Auto: the solver of most samples, of those the fastest, by a clock that the test holds."""

from __future__ import annotations

import copy

import pytest
import torch

import equipoise as eq
from equipoise.models.choice import chosen


class Clock:
    """Seconds that each solver is said to take, in the order of the candidates; every trial runs once."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.now, self.calls = list(seconds), 0.0, 0

    def __call__(self) -> float:
        if self.calls % 2:
            self.now += self.seconds[self.calls // 2]
        self.calls += 1
        return self.now


def layer(weight: float, **how) -> eq.Equilibrium:
    return eq.Equilibrium(lambda z, x: weight * z + x, **how)


def equation(weight: float):
    return layer(weight).posed((torch.ones(3, 2, dtype=torch.float64),), None, {})


def test_the_fastest_of_those_that_solve_all_is_first():
    auto = eq.Auto((eq.Anderson(), eq.Picard(), eq.Broyden()))
    assert chosen(equation(0.5), auto, Clock(3.0, 1.0, 2.0))[0].solver == eq.Picard()
    assert chosen(equation(0.5), auto, Clock(1.0, 2.0, 3.0))[0].solver == eq.Anderson()
    # Picard diverges, however fast it does so.
    trials = chosen(equation(-1.5), auto, Clock(3.0, 1.0, 2.0))
    assert trials[0].solver == eq.Broyden()
    assert [one.converged for one in trials] == [3, 3, 0]


def test_a_short_trial_is_timed_twice_and_the_shorter_time_counts():
    auto = eq.Auto((eq.Anderson(), eq.Picard()))
    trials = chosen(equation(0.5), auto, Clock(0.05, 0.01, 0.03, 0.02))
    assert [(one.solver, pytest.approx(one.seconds)) for one in trials] == [
        (eq.Anderson(), 0.01),
        (eq.Picard(), 0.02),
    ]


def test_a_layer_tries_once_and_again_after_so_many_calls(monkeypatch):
    seen = []
    monkeypatch.setattr("equipoise.models.base.chosen", lambda *a: seen.append(a) or chosen(*a))
    one = layer(0.5, solver=eq.Auto(every=3))
    x = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        z = one(x)
    assert len(seen) == 1
    torch.testing.assert_close(z, 2 * x, rtol=1e-7, atol=0)
    (grad,) = torch.autograd.grad(z.sum(), x)
    torch.testing.assert_close(grad, torch.full_like(x, 2.0), rtol=1e-6, atol=0)
    one(x)
    assert len(seen) == 2
    assert {trial.solver for trial in one.chosen} == set(eq.Auto().candidates)
    assert type(one.chosen[0].solver).__name__ in one.last.forward.solver
    assert copy.deepcopy(one).chosen == ()  # measured anew where it goes


def test_what_the_chosen_solver_leaves_goes_to_the_default_chain():
    auto = eq.Auto((eq.Picard(),))
    x = torch.ones(3, 2, dtype=torch.float64)
    assert layer(-1.5, solver=auto)(x).sub(0.4).abs().max() < 1e-6


def test_auto_is_for_layers():
    with pytest.raises(TypeError, match="chooses the solver of a layer"):
        eq.fixed_point(lambda z: z / 2, torch.ones(2, 2), solver=eq.Auto())
    with pytest.raises(ValueError, match="candidates must be solvers"):
        eq.Auto((eq.Auto(),))
    with pytest.raises(ValueError, match="every must be an integer"):
        eq.Auto(every=0)
