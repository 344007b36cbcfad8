"""How near an answer is: a bound that holds against exact rationals, and is there only where it is proved."""

from __future__ import annotations

import pickle
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.solve.error import _factor
from equipoise.solve.norms import row_norms
from problems import contraction, exact_affine, monotone_weight


def rational_equilibrium(weight: torch.Tensor, bias: torch.Tensor, near: torch.Tensor, relu: bool) -> list:
    """z = σ(W z + b) of one row in rationals, on the active set of a float solution, which is checked."""
    W = [[Fraction(float(w)) for w in row] for row in weight]
    b = [Fraction(float(x)) for x in bias]
    on = [i for i, x in enumerate(near) if not relu or float(x) > 0]
    rows = [[Fraction(int(i == j)) - W[i][j] for j in on] + [b[i]] for i in on]
    for c in range(len(on)):  # Gauss-Jordan
        pivot = next(r for r in range(c, len(on)) if rows[r][c] != 0)
        rows[c], rows[pivot] = rows[pivot], rows[c]
        rows[c] = [x / rows[c][c] for x in rows[c]]
        for r in range(len(on)):
            if r != c:
                rows[r] = [x - rows[r][c] * y for x, y in zip(rows[r], rows[c], strict=True)]
    z = [Fraction(0)] * len(b)
    for c, i in enumerate(on):
        z[i] = rows[c][-1]
    image = [sum((w * x for w, x in zip(row, z, strict=True)), b[i]) for i, row in enumerate(W)]
    assert z == ([max(p, Fraction(0)) for p in image] if relu else image)
    return z


def squared_distance(value: torch.Tensor, exact: list) -> Fraction:
    return sum(((Fraction(float(v)) - e) ** 2 for v, e in zip(value, exact, strict=True)), Fraction(0))


@given(
    st.integers(1, 5),
    st.floats(0.1, 0.99),
    st.booleans(),
    st.booleans(),
    st.integers(-290, 290),
    st.sampled_from([1e-2, 1e-8, 1e-13]),
    st.integers(0, 2**31),
)
@settings(max_examples=40)
def test_no_equilibrium_is_farther_than_the_bound(m, q, relu, monotone, power, rtol, seed):
    weight, bias = contraction(2, m, q, seed)
    if monotone:
        weight = monotone_weight(m, 1 - q, 1.5, seed)
    size = 10.0**power
    problem = eq.AffineMap(weight, size * bias, "relu" if relu else "identity")
    stop = eq.Stop(rtol=rtol, max_steps=3000)
    found = eq.fixed_point(problem, solver=[eq.PeacemanRachford(), eq.Newton()], stop=stop).raise_if_failed()
    near = eq.fixed_point(
        eq.AffineMap(weight, bias, problem.activation), solver=eq.Newton(), stop=eq.Stop(rtol=1e-13)
    )
    for row in range(2):
        exact = rational_equilibrium(weight, problem.bias[row], near.value[row], relu)
        bound = found.error[row].item()
        assert squared_distance(found.value[row], exact) <= Fraction(bound) ** 2
        scale = float(row_norms(problem.bias[row : row + 1]))
        assert bound <= 100 * (rtol + 1e-14) / (1 - q) ** 2 * (1 + float(weight.norm())) ** 2 * scale


def test_the_bound_is_that_of_the_contraction():
    weight, bias = contraction(6, 20, 0.9, seed=1)
    found = eq.fixed_point(eq.AffineMap(weight, bias), solver=eq.Picard(), stop=eq.Stop(rtol=1e-5))
    true = (found.value - exact_affine(weight, bias)).norm(dim=1)
    assert (true <= found.error).all()
    assert (found.error <= (1 + 1e-6) * found.residual / (1 - 0.9)).all()  # or less, by the margin


def test_the_factor_covers_every_mask():
    row = torch.zeros(4, 4).double()
    row[0] = 0.9  # ‖W‖₁ = 0.9, ‖W‖ > 1
    weights = [
        row,
        row.T,
        -2 * torch.eye(3).double(),
        *(monotone_weight(3, 0.3, 2.0, seed) for seed in range(4)),
    ]
    for W in weights:
        m = len(W)
        masks = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * m)
        worst = torch.linalg.matrix_norm(torch.linalg.inv(torch.eye(m) - masks[:, :, None] * W), ord=2).max()
        assert worst <= _factor(W) < torch.inf


def test_families_carry_it_in_every_dtype():
    X = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for make in (eq.GaussianReLU, eq.Monotone):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            model = make(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(dtype)
            found = model.solve(X.to(dtype))
            problem = model.affine_map(X.to(dtype))
            exact = exact_affine(problem.weight.double(), problem.bias.double())
            assert ((found.value.double() - exact).norm(dim=1) <= found.error).all()
    linear = eq.LinearEquilibrium(3, 1, dtype=torch.float64)
    assert (linear.solve(X).error <= 1e-13 * linear.solve(X).scale / (1 - linear.gamma)).all()
    adjoint = model.solve_adjoint(found.value, X.to(torch.bfloat16))
    assert adjoint.error is not None


@pytest.mark.parametrize(
    "weight", [torch.eye(3), 1.5 * torch.eye(3), torch.tensor([[0.0, 3], [0, 0]])], ids=str
)
def test_nothing_is_bounded_where_nothing_is_proved(weight):
    problem = eq.AffineMap(weight.double(), -torch.ones(2, len(weight)).double())
    assert eq.fixed_point(problem, solver=eq.Picard()).error is None
    half = eq.AffineMap(weight.double() / 10, torch.ones(2, len(weight)).double(), "tanh")
    assert eq.fixed_point(half).error is None
    assert eq.fixed_point(lambda z: z / 2, torch.ones(1, 1)).error is None


def test_an_answer_that_is_not_finite_has_no_bound():
    weight, bias = contraction(2, 3, 0.5, seed=0)
    bias[0, 0] = torch.nan
    error = eq.fixed_point(eq.AffineMap(weight, bias), solver=eq.Picard()).error
    assert error[0] == torch.inf
    assert error[1] < 1e-7


def test_weights_that_have_changed_are_not_those_that_were_solved():
    weight, bias = contraction(2, 3, 0.5, seed=0)
    found = eq.fixed_point(eq.AffineMap(weight, bias), solver=eq.Picard())
    weight.mul_(0.5)
    with pytest.raises(RuntimeError, match="changed in place"):
        _ = found.error
    assert pickle.loads(pickle.dumps(found)).error is None


def test_converged_is_not_near():
    """z + 1/(1 + |z|) has no fixed point: its residual falls below any tolerance; its error is not known."""
    found = eq.fixed_point(lambda z: z + 1 / (1 + z.abs()), torch.full((1, 1), 1e5).double())
    assert found.converged.all()
    assert found.error is None
