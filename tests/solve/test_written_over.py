"""A map that writes into its argument, or each answer into one memory, is solved like one that does not."""

import numpy as np
import pytest
import torch

import equipoise as eq

F64 = torch.float64


def one_memory():
    kept = torch.zeros(2, 3, dtype=F64)
    return lambda z: kept.copy_(0.5 * z + 1)


def of_numpy():
    kept = np.zeros((2, 3))

    def f(z):
        np.multiply(z.numpy(), 0.5, out=kept)
        np.add(kept, 1, out=kept)
        return torch.from_numpy(kept)

    return f


def pair():
    def f(z):
        a, b = z
        a.mul_(0.5).add_(1)
        return a, 0.25 * b + 0.5 * a

    return f


MAPS = {
    "argument": lambda: lambda z: z.mul_(0.5).add_(1),
    "a part": lambda: lambda z: (z[:, :1].mul_(0.5).add_(1), 0.5 * z + 1)[1],
    "one memory": one_memory,
    "numpy": of_numpy,
}
SOLVERS = [None, eq.Picard(), eq.Anderson(), eq.Broyden()]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", MAPS)
def test_converged_is_said_of_the_fixed_point_alone(name, solver):
    f, start = MAPS[name](), torch.zeros(2, 3, dtype=F64)
    found = eq.fixed_point(f, start, solver=solver)
    assert found.converged.all()
    assert not start.any()
    again = MAPS[name]()(found.value.clone())
    assert (again - found.value).abs().max() < 1e-6  # f as it is, of a state that nobody else holds
    if name != "a part":
        assert (found.value - 2).abs().max() < 1e-6


def test_a_tuple_and_rows_that_are_dropped():
    start = (torch.zeros(2, 3, dtype=F64), torch.zeros(2, 1, dtype=F64).expand(2, 3))
    a, b = eq.fixed_point(pair(), start).value
    assert (a - 2).abs().max() < 1e-6
    assert (b - 4 / 3).abs().max() < 1e-6
    x = torch.linspace(0.1, 0.9, 8, dtype=F64)[:, None]
    found = eq.fixed_point(lambda z, x: z.mul_(x).add_(1), torch.zeros(8, 1, dtype=F64), args=(x,))
    assert found.converged.all()
    assert (found.value - 1 / (1 - x)).abs().max() < 1e-5


def test_judging_a_state_leaves_it_as_it_is():
    z = torch.full((2, 3), 3.0, dtype=F64)
    judged = eq.verify(lambda z: z.mul_(0.5).add_(1), z)
    assert not judged.converged.any()
    assert (z == 3).all()


def test_without_version_counters():
    with torch.inference_mode():
        found = eq.fixed_point(lambda z: z.mul_(0.5).add_(1), torch.zeros(2, 3, dtype=F64))
    assert (found.value - 2).abs().max() < 1e-6
