"""The solver's way: its iterates are those of the map, its plane is theirs, its arrows are f(z) − z."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from equipoise.explore import Plane, equilibria_plane, phase_portrait, solver_paths
from equipoise.solve import Anderson, Picard, Stop

W = torch.tensor([[0.5, 0.2], [-0.1, 0.4]], dtype=torch.float64)


def f(z, x):
    return z @ W.T + x


def test_the_paths_of_picard_are_the_iterates():
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    found = solver_paths(f, torch.zeros_like(x), (x,), solver=Picard(), stop=Stop(rtol=1e-6))
    for i in range(2):
        z = torch.zeros(2, dtype=torch.float64)
        for row in found.states[i]:
            assert row == pytest.approx(z.numpy(), abs=1e-12)
            z = W @ z + x[i]
        exact = torch.linalg.solve(torch.eye(2, dtype=torch.float64) - W, x[i])
        assert found.states[i][-1] == pytest.approx(exact.numpy(), rel=1e-4)
    assert found.residuals[0][-1] < 1e-5
    mean = found.mean_residual(100)
    assert len(mean) == 101
    assert mean[-1] == pytest.approx(np.mean([r[-1] for r in found.residuals]))


def test_a_plane_holds_points_that_lie_in_one():
    rng = np.random.default_rng(0)
    basis, coordinates = rng.normal(size=(2, 6)), rng.normal(size=(20, 2))
    points = 3.0 + coordinates @ basis
    plane = equilibria_plane(points)
    assert plane.lift(plane.coordinates(points)) == pytest.approx(points)
    assert sum(plane.shares) == pytest.approx(1.0)
    assert plane.axes @ plane.axes.T == pytest.approx(np.eye(2), abs=1e-12)
    assert np.array_equal(plane.axes, equilibria_plane(torch.from_numpy(points)).axes)
    with pytest.raises(ValueError, match="D ≥ 2"):
        equilibria_plane(np.zeros((3, 1)))


@pytest.mark.parametrize("solver", [Picard(), Anderson()])
def test_the_plane_of_paths_is_that_of_the_iterates_decomposed(solver):
    gen = torch.Generator().manual_seed(0)
    V, x = (torch.randn(s, dtype=torch.float64, generator=gen) for s in ((7, 7), (3, 7)))
    V *= 0.8 / torch.linalg.matrix_norm(V, 2)
    step = lambda z, x: torch.relu(z @ V.T + x)
    found = solver_paths(step, torch.zeros_like(x), (x,), solver=solver, stop=Stop(rtol=1e-8))
    plane = found.plane()
    iterates = np.concatenate(found.states)
    mean = iterates.mean(axis=0)
    _, sizes, right = np.linalg.svd(iterates - mean, full_matrices=False)
    assert plane.mean == pytest.approx(mean)
    assert np.abs(plane.axes @ right[:2].T) == pytest.approx(np.eye(2), abs=1e-8)
    assert plane.shares == pytest.approx(sizes[:2] ** 2 / np.sum(sizes**2))
    assert sum(plane.shares) < 1 - 1e-6
    for states in found.states:
        seen = np.abs(plane.coordinates(states))
        assert seen == pytest.approx(np.abs((states - mean) @ right[:2].T), abs=1e-10)


def test_the_plane_of_many_points_is_that_of_the_whole_decomposition():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(250, 220)) * np.linspace(3, 1, 220)
    plane = equilibria_plane(points)
    _, sizes, V = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    assert np.abs(plane.axes @ V[:2].T) == pytest.approx(np.eye(2), abs=1e-6)
    assert plane.shares == pytest.approx(sizes[:2] ** 2 / np.sum(sizes**2))


def test_a_phase_portrait_is_the_map_less_the_identity():
    x = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    plane = Plane(np.array([0.5, 0.5]), np.array([[0.0, 1.0], [1.0, 0.0]]), (0.5, 0.5))
    s, t = np.linspace(-1, 1, 3), np.linspace(0, 1, 2)
    arrows = phase_portrait(f, plane, torch.zeros(1, 2, dtype=torch.float64), (x,), s, t)
    assert arrows.shape == (2, 3, 2)
    z = torch.tensor([0.5 + t[1], 0.5 + s[2]], dtype=torch.float64)
    move = (f(z[None], x)[0] - z).numpy()
    assert arrows[1, 2] == pytest.approx([move[1], move[0]])


def test_a_start_that_is_the_equilibrium_has_no_residual():
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    found = solver_paths(f, torch.zeros_like(x), (x,), solver=Picard(), stop=Stop(rtol=1e-6))
    assert bool(found.solution.converged.all())
    assert found.residuals[0].tolist() == [0.0]
    assert found.residuals[1][0] == 1.0


@pytest.mark.parametrize(
    ("points", "said"),
    [(np.array([[0.0, 1.0], [np.nan, 1.0]]), "Got nan in row 1, coordinate 0"), (np.zeros((0, 3)), "N ≥ 1")],
)
def test_a_plane_needs_points_that_are_numbers(points, said):
    with pytest.raises(ValueError, match=said):
        equilibria_plane(points)
