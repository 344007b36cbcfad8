import pytest

import equipoise as eq
from contracts.solver import SolverContract


class TestPicard(SolverContract):
    solver = eq.Picard()


class TestDampedPicard(SolverContract):
    solver = eq.Picard(damping=0.6)


@pytest.mark.parametrize("damping", [0.0, -0.1, 1.1, float("nan")])
def test_damping_outside_its_range_is_refused(damping):
    with pytest.raises(ValueError, match=r"damping must lie in \(0, 1\]"):
        eq.Picard(damping=damping)
