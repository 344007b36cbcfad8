import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.solve.krylov import gmres
from problems import contraction


def systems(n, d, seed, spread=0.5, dtype=torch.float64):
    """Matrices I − J with ‖J‖ about `spread`, right-hand sides, and the product with them."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(n, d, d, dtype=torch.float64, generator=generator) * (spread / (2 * d**0.5))
    a = (torch.eye(d, dtype=a.dtype) - a).to(dtype)
    b = torch.randn(n, d, dtype=torch.float64, generator=generator).to(dtype)
    return a, b, product_of(a)


def product_of(a):
    return lambda v: (a @ v[:, :, None])[:, :, 0]


@given(n=st.integers(0, 5), d=st.integers(1, 30), spread=st.floats(0.0, 1.5), seed=st.integers(0, 2**31))
@settings(max_examples=40)
def test_equals_the_direct_solve_in_at_most_as_many_steps_as_dimensions(n, d, spread, seed):
    a, b, product = systems(n, d, seed, spread)
    found = gmres(product, b, rtol=1e-12, restart=d, max_steps=3 * d)
    assert found.converged.all()
    assert (found.steps <= d).all()
    assert (found.residual <= 1e-12 * b.norm(dim=1)).all()
    torch.testing.assert_close(found.residual, (b - product(found.value)).norm(dim=1), rtol=1e-6, atol=1e-16)
    torch.testing.assert_close(found.value, torch.linalg.solve(a, b), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_the_residual_is_the_least_over_the_krylov_space(k):
    _, b, product = systems(4, 20, seed=1, spread=1.9)
    found = gmres(product, b, rtol=0.0, max_steps=k, restart=k)
    powers = [product(b)]
    for _ in range(k - 1):
        powers.append(product(powers[-1]))
    image = torch.stack(powers, dim=2)  # (n, D, k): A r, A² r, …
    image, _ = torch.linalg.qr(image)
    least = (b[:, :, None] - image @ (image.mT @ b[:, :, None]))[:, :, 0].norm(dim=1)
    torch.testing.assert_close(found.residual, least, rtol=1e-8, atol=0)
    assert found.steps.tolist() == [k] * 4


def test_each_row_ends_at_its_own_tolerance():
    _, b, product = systems(5, 40, seed=2, spread=1.8)
    rtol = torch.tensor([1e-1, 1e-3, 1e-6, 1e-9, 1e-12], dtype=b.dtype)
    found = gmres(product, b, rtol=rtol, restart=40)
    assert found.converged.all()
    assert (found.residual <= rtol * b.norm(dim=1)).all()
    assert (found.residual > 1e-3 * rtol * b.norm(dim=1)).all()  # and not needlessly far below it
    assert (found.steps.diff() > 0).all()


def test_restarts_reach_the_same_answer_in_bounded_memory():
    a, b, product = systems(6, 60, seed=3, spread=1.5)
    found = gmres(product, b, rtol=1e-11, restart=7, max_steps=400)
    assert found.converged.all()
    assert (found.steps > 7).all()
    torch.testing.assert_close(found.value, torch.linalg.solve(a, b), rtol=1e-8, atol=1e-8)


def test_max_steps_bounds_the_work_and_the_rest_is_reported():
    _, b, product = systems(3, 50, seed=4, spread=1.9)
    calls = 0

    def counted(v):
        nonlocal calls
        calls += 1
        return product(v)

    found = gmres(counted, b, rtol=1e-13, restart=4, max_steps=10)
    assert found.steps.tolist() == [10] * 3
    assert calls == 10 + 3  # and one product a cycle for the true residual
    assert not found.converged.any()
    torch.testing.assert_close(found.residual, (b - product(found.value)).norm(dim=1))


def test_a_krylov_space_that_closes_early_holds_the_answer():
    d = 12
    eigenvalues = torch.tensor([2.0, 0.5, -1.0] * 4, dtype=torch.float64)
    b = torch.ones(4, d, dtype=torch.float64)
    b[1, 1::3] = 0  # two eigenvalues
    b[2, 1::3], b[2, 2::3] = 0, 0  # one
    b[3] = 0
    found = gmres(lambda v: v * eigenvalues, b, rtol=1e-15, restart=d)
    assert found.steps.tolist() == [3, 2, 1, 0]
    torch.testing.assert_close(found.value, b / eigenvalues, rtol=1e-14, atol=1e-15)


def test_a_start_is_used_and_a_zero_right_hand_side_has_the_zero_answer():
    a, b, product = systems(3, 8, seed=5)
    b[1] = 0
    exact = torch.linalg.solve(a, b)
    found = gmres(product, b, exact + torch.tensor([[0.0], [1.0], [1e-3]], dtype=b.dtype), rtol=1e-10)
    assert found.steps[0] == 0
    assert found.steps[1] == 0
    assert (found.value[1] == 0).all()
    assert 0 < found.steps[2] <= 8
    torch.testing.assert_close(found.value, exact, rtol=1e-9, atol=1e-9)


def test_singular_and_stagnating_rows_end_and_leave_the_others_alone():
    d = 6
    a, b, _ = systems(4, d, seed=6)
    a[1] = 0  # nothing can be reached
    a[2] = torch.diag(torch.tensor([1.0, 2.0, 3.0, 0.0, 0.0, 0.0]))  # the last three coordinates cannot
    a[3] = torch.roll(torch.eye(d, dtype=b.dtype), 1, dims=0)  # a shift gains nothing before its last step
    b[3] = torch.eye(d, dtype=b.dtype)[0]
    found = gmres(product_of(a), b, rtol=1e-12, restart=d - 1, max_steps=1000)
    assert found.converged.tolist() == [True, False, False, False]
    assert (found.steps < 3 * d).all()
    assert torch.isfinite(found.value).all()
    assert found.residual[1] == b[1].norm()
    torch.testing.assert_close(found.residual[2], b[2, 3:].norm())
    torch.testing.assert_close(found.value[0], torch.linalg.solve(a[0], b[0]))
    assert gmres(product_of(a[3:]), b[3:], rtol=1e-12, restart=d).converged.all()  # the whole space has it


def test_rows_do_not_disturb_each_other_even_when_not_finite():
    a, b, product = systems(6, 15, seed=7, spread=1.5)
    alone = gmres(product, b, rtol=1e-9, restart=5)
    a, b = a.clone(), b.clone()
    a[1, 3, 3], b[4, 0] = torch.nan, torch.inf
    found = gmres(product_of(a), b, rtol=1e-9, restart=5)
    good = [0, 2, 3, 5]
    torch.testing.assert_close(found.value[good], alone.value[good], rtol=1e-12, atol=1e-14)
    assert torch.equal(found.steps[good], alone.steps[good])
    assert found.converged.tolist() == [True, False, True, True, False, True]
    assert torch.isfinite(found.value).all()


def test_an_ill_conditioned_system_is_solved_to_rounding_level():
    # cond(A) = 1e7: without the second orthogonalisation the basis degrades, and with it the residual.
    d = 60
    generator = torch.Generator().manual_seed(8)
    left, right = torch.linalg.qr(torch.randn(2, d, d, dtype=torch.float64, generator=generator))[0]
    a = (left * torch.logspace(0, -7, d, dtype=torch.float64)) @ right
    b = torch.randn(3, d, dtype=torch.float64, generator=generator) @ a.T
    found = gmres(lambda v: v @ a.T, b, rtol=1e-13, restart=d, max_steps=d)
    assert found.converged.all()


def test_float32():
    a, b, product = systems(5, 25, seed=9, spread=1.5, dtype=torch.float32)
    found = gmres(product, b, rtol=1e-5, restart=25)
    assert found.converged.all()
    assert found.value.dtype == found.residual.dtype == torch.float32
    torch.testing.assert_close(found.value, torch.linalg.solve(a, b), rtol=1e-3, atol=1e-3)


def test_what_does_not_fit_is_refused():
    b = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"b must be \(n, D\)"):
        gmres(lambda v: v, b[0], rtol=1e-3)
    with pytest.raises(ValueError, match="x0 must be"):
        gmres(lambda v: v, b, b.double(), rtol=1e-3)
    for option in ("max_steps", "restart"):
        for value in (0, 2.0, True):
            with pytest.raises(ValueError, match=f"{option} must"):
                gmres(lambda v: v, b, rtol=1e-3, **{option: value})


def test_the_residual_is_that_of_all_rows_as_they_are_returned():
    """Row 0 is there at the start; row 1, which moves later, is added to it: the operator mixes rows."""
    mix = torch.tensor([[1.0, 5.0], [0.0, 1.0]], dtype=torch.float64)
    shift = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    operator = lambda u: mix @ u @ shift
    b, x0 = torch.ones(2, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)
    x0[0] = b[0] / shift.diagonal()
    found = gmres(operator, b, x0, rtol=1e-10)
    true = (b - operator(found.value)).norm(dim=1)
    torch.testing.assert_close(found.residual, true, rtol=1e-6, atol=1e-12)
    assert found.converged.tolist() == [False, True]
    assert found.coupled.tolist() == [True, False]
    alone = gmres(lambda u: u @ shift, b, x0, rtol=1e-10)
    assert alone.converged.all()
    assert not alone.coupled.any()


def test_converged_means_the_tolerance_and_not_some_multiple_of_it():
    A, b = contraction(4, 12, 0.9, seed=5)
    operator = lambda u: u - u @ A.T
    reached = gmres(operator, b, rtol=1e-14, max_steps=3).residual
    near = gmres(operator, b, rtol=0.0, atol=reached / 1.5, max_steps=3)
    torch.testing.assert_close(near.residual, reached)
    assert not near.converged.any()
    assert gmres(operator, b, rtol=0.0, atol=1.01 * reached, max_steps=3).converged.all()
