import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from contracts.solver import SolverContract
from equipoise.solve import Newton, newton
from equipoise.solve.problem import make_map
from problems import contraction, exact_affine, monotone_weight

DENSE, KRYLOV = Newton(), Newton(dense_limit=0)


class TestNewton(SolverContract):
    solver = DENSE
    handles_monotone = True


class TestNewtonKrylov(SolverContract):
    solver = KRYLOV
    handles_monotone = True


# -- rates ------------------------------------------------------------------------------------------------


def test_the_residual_is_squared_at_every_step():
    weight, bias = contraction(3, 6, 0.9, seed=0)
    solution = eq.fixed_point(
        lambda z, b: torch.sin(2 * z @ weight.T) + b, bias, args=(bias,), solver=DENSE, trace=True
    ).raise_if_failed()
    for row in range(3):
        residuals = solution.trace.residuals(row)
        near = (residuals[:-1] < 0.3) & (residuals[:-1] > 1e-7)
        assert int(near.sum()) >= 2
        assert (residuals[1:][near] <= 3 * residuals[:-1][near] ** 2).all()


@pytest.mark.parametrize("seed", range(5))
def test_a_piecewise_linear_map_is_solved_to_rounding_level_in_a_few_steps(seed):
    weight = monotone_weight(40, margin=0.3, scale=2.0, seed=seed)
    bias = torch.randn(30, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    solution = eq.fixed_point(eq.AffineMap(weight, bias), solver=DENSE, stop=eq.Stop(rtol=1e-13))
    solution.raise_if_failed()
    assert int(solution.steps.max()) <= 10
    assert solution.counts.fallbacks == 0
    torch.testing.assert_close(solution.value, exact_affine(weight, bias), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("solver", [DENSE, KRYLOV])
@pytest.mark.parametrize("activation", ["tanh", "hardtanh", "leaky_relu", "softshrink", "relu6"])
def test_every_activation_of_a_strongly_monotone_map(solver, activation):
    weight = monotone_weight(20, margin=0.2, scale=3.0, seed=1)
    bias = 3 * torch.randn(20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    solution = eq.fixed_point(eq.AffineMap(weight, bias, activation), solver=solver).raise_if_failed()
    assert int(solution.steps.max()) <= 60


def test_a_linear_map_takes_one_step_and_one_factorisation(monkeypatch):
    shapes = []
    solve = torch.linalg.solve_ex
    monkeypatch.setattr(
        torch.linalg, "solve_ex", lambda a, b, **k: shapes.append(tuple(a.shape)) or solve(a, b, **k)
    )
    weight, bias = contraction(9, 30, 0.9, seed=0)
    solution = eq.fixed_point(eq.AffineMap(weight, bias, "identity"), solver=DENSE).raise_if_failed()
    assert solution.steps.tolist() == [1] * 9
    assert shapes == [(1, 30, 30)]


# -- globalisation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", [DENSE, KRYLOV])
def test_the_cycle_of_the_full_steps_is_left(solver):
    # I − W is strongly monotone, yet the active sets {1}, {1, 2}, {2, 3}, {3, 1}, {1, 2} … repeat for ever.
    weight = -1.9 * torch.roll(torch.eye(3, dtype=torch.float64), 1, dims=1)
    bias = torch.ones(1, 3, dtype=torch.float64)
    problem = eq.AffineMap(weight, bias)
    assert problem.margin > 0.04
    start = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)

    z, visited = start, []
    for _ in range(6):
        slope = (problem.preactivation(z) > 0).double()
        visited.append(slope[0].int().tolist())
        z = torch.linalg.solve(torch.eye(3, dtype=z.dtype) - slope.mT * weight, (slope * bias)[0])[None]
    assert visited == [[1, 1, 0], [0, 1, 1], [1, 0, 1]] * 2

    solution = eq.fixed_point(problem, start, solver=solver).raise_if_failed()
    torch.testing.assert_close(solution.value, torch.full_like(bias, 1 / 2.9), rtol=1e-7, atol=0)
    assert solution.counts.fallbacks == 0


@given(
    n=st.integers(1, 4),
    m=st.integers(1, 10),
    scale=st.floats(0.1, 10.0),
    far=st.floats(0.0, 1e3),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40)
def test_guarded_rows_reach_the_equilibrium_from_anywhere(n, m, scale, far, seed):
    weight = monotone_weight(m, margin=0.1, scale=scale, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    bias, start = torch.randn(2, n, m, dtype=torch.float64, generator=generator)

    class Guarded(Newton):  # from the first step on
        def init(self, f, z):
            state = super().init(f, z)
            state.spare.fill_(-1)
            return state

    solution = eq.fixed_point(eq.AffineMap(weight, bias), far * start, solver=Guarded())
    solution.raise_if_failed()
    assert solution.counts.fallbacks == 0
    exact = exact_affine(weight, bias)
    torch.testing.assert_close(solution.value, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("start", [1.3, 3.0, 100.0])
@pytest.mark.parametrize("solver", [DENSE, KRYLOV])
def test_steps_that_overshoot_are_shortened(start, solver):
    # z − arctan z: the full steps from |z| > 1.4 go ever farther from the root at 0.
    solution = eq.fixed_point(
        lambda z: z - torch.arctan(z), torch.full((1, 1), start, dtype=torch.float64), solver=solver
    )
    assert solution.converged.all()
    assert abs(float(solution.value)) < 1e-9


def test_a_step_that_overflows_is_not_taken():
    # The full step from −10 goes to 22015, and its exponential to infinity.
    solution = eq.fixed_point(
        lambda z: z - torch.expm1(z), torch.full((1, 1), -10.0, dtype=torch.float64), solver=DENSE
    )
    assert solution.converged.all()


def test_a_full_step_out_of_all_proportion_is_not_trusted():
    # I − W = 1e-9: from the active start 2 the full step goes to −1e9. The equilibrium is relu(−1) = 0.
    weight = torch.tensor([[1 - 1e-9]], dtype=torch.float64)
    problem = eq.AffineMap(weight, torch.full((1, 1), -1.0, dtype=torch.float64))
    solution = eq.fixed_point(problem, torch.full((1, 1), 2.0, dtype=torch.float64), solver=DENSE, trace=True)
    solution.raise_if_failed()
    assert abs(float(solution.value)) < 1e-9
    assert float(solution.trace.iterates(0).abs().max()) < 1e3


@pytest.mark.parametrize("solver", [DENSE, KRYLOV])
def test_a_singular_system_takes_a_counted_plain_step(solver):
    # I − J = 2z is singular at the start 0 of the first two rows, whose plain step f(0) = 1 is the solution.
    # The third row has ended at the start: its system is singular too (I − J = 0), but it needs no step.
    x = torch.tensor([[0.0], [0.0], [1.0], [0.0]], dtype=torch.float64)
    z0 = torch.tensor([[0.0], [0.0], [0.0], [2.0]], dtype=torch.float64)
    solution = eq.fixed_point(lambda z: torch.where(x == 0, z + 1 - z**2, z), z0, solver=solver)
    assert solution.converged.all()
    assert solution.steps.tolist()[:3] == [1, 1, 0]
    assert solution.counts.fallbacks == 2
    torch.testing.assert_close(solution.value.flatten(), torch.tensor([1.0, 1.0, 0.0, 1.0]).double())


# -- linear algebra ---------------------------------------------------------------------------------------


@given(n=st.integers(1, 7), m=st.integers(1, 9), keep=st.floats(0.0, 1.0), seed=st.integers(0, 2**31))
@settings(max_examples=30)
def test_solving_on_the_active_coordinates_solves_the_whole_system(n, m, keep, seed):
    weight, rhs = contraction(n, m, 0.9, seed)
    generator = torch.Generator().manual_seed(seed)
    slope = torch.rand(n, m, dtype=torch.float64, generator=generator)
    slope = slope * (torch.rand(n, m, generator=generator) < keep)
    whole = torch.eye(m, dtype=torch.float64) - slope[:, :, None] * weight
    exact = torch.linalg.solve(whole, rhs)
    sizes, solve = [], newton._solve
    for stack in (100, 1 << 20):  # a row or a few at a time, and all together
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(newton, "_STACK", stack)
            patch.setattr(newton, "_solve", lambda a, b: sizes.append(a.numel()) or solve(a, b))
            torch.testing.assert_close(newton._solve_affine(weight, slope, rhs), exact)
        assert max(sizes) <= stack


def test_inexact_steps_tighten_as_the_residual_falls():
    merit = torch.tensor([1.0, 1.0, 0.08, 1e-9], dtype=torch.float64)
    before = torch.tensor([torch.inf, 0.5, 1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(
        newton._forcing(merit, before), torch.tensor([1e-2, 1e-2, 0.9 * 0.08**2, 1e-3], dtype=torch.float64)
    )


def test_direct_and_krylov_steps_agree_and_count_their_products():
    weight = monotone_weight(30, margin=0.5, scale=1.0, seed=3)
    bias = torch.randn(10, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    problem, stop = eq.AffineMap(weight, bias), eq.Stop(rtol=1e-11)
    direct = eq.fixed_point(problem, solver=DENSE, stop=stop).raise_if_failed()
    krylov = eq.fixed_point(problem, solver=KRYLOV, stop=stop).raise_if_failed()
    torch.testing.assert_close(direct.value, krylov.value, rtol=1e-9, atol=1e-9)
    assert direct.counts.jvps == 0
    assert krylov.counts.jvps > int(krylov.steps.max())


def test_the_fischer_burmeister_function_and_its_newton_equation():
    a = torch.tensor([0.0, 3.0, 0.0, -1.0, 2.0, -2.0, 1e-9], dtype=torch.float64)
    b = torch.tensor([2.0, 0.0, 0.0, 1.0, 3.0, -3.0, 1e9], dtype=torch.float64)
    phi = newton._fischer_burmeister(a, b)
    assert (phi[:3] == 0).all()  # complementary pairs
    torch.testing.assert_close(phi[3:6], torch.hypot(a, b)[3:6] - a[3:6] - b[3:6])
    assert float(phi[6]) == pytest.approx(-1e-9)  # no cancellation

    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(4, 4, dtype=torch.float64, generator=generator)
    z, bias = torch.randn(2, 4, dtype=torch.float64, generator=generator)
    slope, rhs = newton._fischer_burmeister_system(z, z - (weight @ z + bias))
    step = torch.linalg.solve(torch.eye(4, dtype=torch.float64) - slope[:, None] * weight, rhs)
    jacobian = torch.autograd.functional.jacobian(
        lambda z: newton._fischer_burmeister(z, z - (weight @ z + bias)), z
    )
    residual = newton._fischer_burmeister(z, z - (weight @ z + bias))
    torch.testing.assert_close(jacobian @ step, -residual)


# -- products with the Jacobian -----------------------------------------------------------------------------


class Cube(torch.autograd.Function):
    """x³/10: reverse mode only, in the old form, which torch.func refuses."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.1 * x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 0.3 * x**2 * grad


class CubeOnce(torch.autograd.Function):
    """x³/10: reverse mode once, and forward mode."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x):
        return 0.1 * x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 0.3 * x**2 * grad

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 0.3 * x**2 * tangent


class CubeOnceOnly(Cube):
    """x³/10: reverse mode once, and nothing else."""

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 0.3 * x**2 * grad


@torch.no_grad()
def cube_without_gradients(x):
    return 0.1 * x**3


@pytest.mark.parametrize("cube", [lambda x: 0.1 * x**3, Cube.apply, CubeOnce.apply, cube_without_gradients])
def test_products_with_the_jacobian_are_exact_however_f_can_be_differentiated(cube):
    z, v, w = torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    f = make_map(lambda z: cube(z) + 0.5, z, (), ())
    with torch.no_grad():
        product = f.linearise(z)
        for vector in (v, w, v):
            torch.testing.assert_close(product(vector), 0.3 * z**2 * vector)
    assert f.counts.jvps == 3
    solution = eq.fixed_point(lambda z: cube(z) + 0.5, torch.zeros_like(z), solver=KRYLOV).raise_if_failed()
    assert int(solution.steps.max()) <= 6


def test_products_where_f_cannot_be_differentiated_are_refused_with_a_remedy():
    with pytest.raises(TypeError, match="use Anderson or Broyden"):
        eq.fixed_point(lambda z: CubeOnceOnly.apply(z) + 0.5, torch.zeros(2, 3), solver=KRYLOV)


def test_products_of_maps_that_do_not_depend_on_the_state_or_run_in_inference_mode():
    z = torch.zeros(2, 3, dtype=torch.float64)
    constant = eq.fixed_point(torch.ones_like, z, solver=KRYLOV).raise_if_failed()
    assert constant.steps.tolist() == [1, 1]
    with torch.inference_mode():
        x = torch.ones(2, 3, dtype=torch.float64)
        inferred = eq.fixed_point(lambda z, x: torch.cos(z * x), x, args=(x,), solver=DENSE)
    inferred.raise_if_failed()
    torch.testing.assert_close(inferred.value.clone(), torch.full((2, 3), 0.7390851332151607).double())


@pytest.mark.parametrize(
    ("option", "value"), [("dense_limit", -1), ("dense_limit", 2.5), ("krylov", 0), ("krylov", True)]
)
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(ValueError, match=f"{option} must"):
        Newton(**{option: value})
