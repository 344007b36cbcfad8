"""u = b + J u, whatever solves it and whatever the size of b."""

import pytest
import torch

import equipoise as eq
from equipoise.differentiate.linear import solve_linear
from problems import contraction

CHAIN = [eq.Picard(damping=0.01), eq.Anderson()]
SOLVERS = [eq.GMRES(), eq.GMRES(restart=3), eq.Anderson(), eq.Picard(), CHAIN]
each_solver = pytest.mark.parametrize("solver", SOLVERS, ids=str)
STOP = eq.Stop(rtol=1e-11, max_steps=300)


@each_solver
def test_the_closed_form_with_the_true_residual(solver):
    J, b = contraction(6, 8, 0.8, seed=0)
    found = solve_linear(lambda u: u @ J.T, b, solver, STOP)
    want = torch.linalg.solve(torch.eye(8, dtype=b.dtype) - J, b.T).T
    assert found.converged.all()
    torch.testing.assert_close(found.value, want, rtol=1e-9, atol=1e-10)
    true = (b + found.value @ J.T - found.value).norm(dim=1)
    torch.testing.assert_close(found.residual, true, rtol=0.5, atol=1e-15)
    torch.testing.assert_close(found.scale, found.value.norm(dim=1), rtol=1e-9, atol=0)


@each_solver
def test_rows_of_any_size_are_solved_alike(solver):
    J, b = contraction(6, 8, 0.8, seed=0)
    sizes = torch.tensor([1.0, 1e-30, 1e-200, 1e150, 0.0, 1e-13], dtype=b.dtype)[:, None]
    plain = solve_linear(lambda u: u @ J.T, b, solver, STOP)
    scaled = solve_linear(lambda u: u @ J.T, b * sizes, solver, STOP)
    assert scaled.converged.all()
    torch.testing.assert_close(scaled.value, plain.value * sizes, rtol=1e-8, atol=0)


@each_solver
@pytest.mark.parametrize("sizes", [[1.0, 1e-3, 0.0, 30.0], [1.0, 1e-90, 1.0, 1.0]], ids=str)
def test_where_the_product_mixes_rows_the_equation_is_still_the_one_that_was_asked(solver, sizes):
    J, b = contraction(4, 3, 0.4, seed=2)
    b = b * torch.tensor(sizes, dtype=b.dtype)[:, None]
    mix = lambda u: u @ J.T + 0.3 * u.roll(1, dims=0)
    found = solve_linear(mix, b, solver, STOP)
    whole = torch.stack([mix(e.view_as(b)).flatten() for e in torch.eye(12, dtype=b.dtype)], dim=1)
    want = torch.linalg.solve(torch.eye(12, dtype=b.dtype) - whole, b.flatten()).view_as(b)
    if found.converged.all():  # else a row that failed is part of the others' equations
        torch.testing.assert_close(found.value, want, rtol=1e-7, atol=1e-9)
    elif isinstance(solver, eq.GMRES):
        assert (found.status == eq.Status.coupled).any() or not found.converged.any()
    if isinstance(solver, eq.Picard):
        assert bool(found.converged.all()) == (sizes[1] > 1e-80)
        # A row that was lost beside the others, on which it depends, is no answer.
        assert bool((found.status == eq.Status.coupled).any()) == (sizes[1] < 1e-80)


@each_solver
def test_rows_that_are_not_finite_are_told_apart(solver):
    J, b = contraction(3, 4, 0.5, seed=1)
    b[1, 2] = torch.nan
    found = solve_linear(lambda u: u @ J.T, b, solver, STOP)
    assert found.status.tolist() == [0, int(eq.Status.nonfinite), 0]


@each_solver
def test_no_rows(solver):
    J, b = contraction(1, 4, 0.5, seed=1)
    found = solve_linear(lambda u: u @ J.T, b[:0], solver, STOP)
    assert found.value.shape == (0, 4)


def test_a_singular_system_is_not_solved():
    b = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    J = torch.diag(torch.tensor([0.5, 1.0], dtype=torch.float64))  # (I − J) u = b has no solution in row 0
    found = solve_linear(lambda u: u @ J.T, b, eq.GMRES(), STOP)
    assert found.converged.tolist() == [False, True]


def test_the_tolerance_is_that_of_the_arithmetic():
    J, b = contraction(3, 4, 0.5, seed=1)
    half = torch.float16

    def product(u):
        return (u.to(half) @ J.to(half).T).float()

    found = solve_linear(product, b.float(), eq.GMRES(), eq.Stop(), half)
    assert found.converged.all()
    assert found.stop.rtol == eq.Stop().resolve(half).rtol
